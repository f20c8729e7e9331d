"""Write docs/reference/: cli.md from the parser, api.md from docstrings, devices.md from devices,
serve-config.md and metrics.md from the tables of serving.

Usage: python tools/generate_reference.py [--check]
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import trireme
from trireme.backend.device_kind import Option
from trireme.backend.registry import device_names, kind_named
from trireme.tools.cli import EXIT_CODES
from trireme.tools.command_table import COMMANDS, EXAMPLES
from trireme.tools.parser import make_parser
from trireme.tools.reference_modules import NAMES
from trireme.tools.serving_reference import config_page, metrics_page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
COMMAND = "python tools/generate_reference.py"
_NOTE = f"<!-- Written by `{COMMAND}`: edit the code instead. -->\n"
_CLI = """
Every command takes a `.trm`, `.tflite`, `.onnx` or `.pt2` file as its model. `--json` prints JSON
on standard output; `--json FILE` writes the JSON to a file and leaves the text as it is.
`python -m trireme` is the same command.
"""
_DEVICES = """What each kind of device can be opened with: by
`trireme.backend.registry.open_device(name, **options)`, or for a session by
`ExecutionOptions(device_options={name: options})`."""
_OTHER_CODES = {
    0: "success",
    1: "a comparison failed",
    2: "a wrong argument",
    70: "a fault of trireme",
    130: "interrupted",
}


def cli_page() -> str:
    """Return the page of the command line."""
    commands = _commands()
    options = {name: _options(parser) for name, parser in commands.items()}
    users: dict[tuple[str, str], list[str]] = {}
    for name, own in options.items():
        for option in own:
            users.setdefault(option, []).append(name)
    shared = {option: names for option, names in users.items() if len(names) > 1}
    lines = [_NOTE, "# The command line", _CLI, "| command | result |", "|---|---|"]
    lines += [f"| [`{name}`](#{name}) | {COMMANDS[name].help} |" for name in commands]
    for name, parser in commands.items():
        lines += ["", f"## {name}", "", f"{parser.description}", "", "```text"]
        lines += [" ".join(parser.format_usage().split()).removeprefix("usage: "), "```", ""]
        lines += _table(row for title, row in options[name] if (title, row) not in shared)
        titles = dict.fromkeys(title for title, row in options[name] if (title, row) in shared)
        lines += [f"Shared options: {', '.join(f'[{one}](#shared-{one})' for one in titles)}.", ""]
        lines += ["```sh", *(f"trireme {name} {one}".rstrip() for one in EXAMPLES[name]), "```"]
    for title in dict.fromkeys(title for title, _ in shared):
        lines += ["", f"## Shared: {title}", "", *_shared_table(title, shared)][:-1]
    return "\n".join([*lines, *_exit_codes()]) + "\n"


def _table(rows: Iterable[str]) -> list[str]:
    """Return a table of options and a blank line; nothing when there are none."""
    found = list(rows)
    return ["| option | meaning |", "|---|---|", *found, ""] if found else []


def _shared_table(title: str, shared: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """Return the table of a shared group: the commands of most rows, then the rows."""
    here = {row: names for (group, row), names in shared.items() if group == title}
    usual = max(here.values(), key=list(here.values()).count)
    rows = []
    for row, names in here.items():
        missing = [name for name in usual if name not in names]
        also = [name for name in names if name not in usual]
        notes = [f"not {_codes(missing)}"] * bool(missing) + [f"also {_codes(also)}"] * bool(also)
        rows.append(f"{row.removesuffix(' |')} ({'; '.join(notes)}) |" if notes else row)
    return [f"Options of {_codes(usual)}.", "", *_table(rows)]


def _commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    actions = make_parser()._actions
    (table,) = (one for one in actions if isinstance(one, argparse._SubParsersAction))
    return {name: table.choices[name] for name in COMMANDS}


def _options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Return (title of the group, row) of each option."""
    return [
        (group.title or "options", _row(parser, one))
        for group in parser._action_groups
        for one in group._group_actions
        if one.help != argparse.SUPPRESS and one.dest != "help"
    ]


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the row of an option."""
    help = parser._get_formatter()._expand_help(action) if action.help else ""
    fallback = action.default
    if fallback not in (None, False, [], "", argparse.SUPPRESS) and "default" not in help:
        help = f"{help} (default: {fallback})"
    flags = ", ".join(action.option_strings)
    return f"| `{_escaped(f'{flags} {_value(action)}'.strip())}` | {_escaped(help)} |"


def _value(action: argparse.Action) -> str:
    """Return what stands behind an option: its metavar or its choices."""
    if action.nargs == 0:
        return ""
    if action.choices is not None:
        word = "{" + ",".join(map(str, action.choices)) + "}"
    elif isinstance(action.metavar, str):
        word = action.metavar
    else:
        word = action.dest.upper() if action.option_strings else action.dest
    return {"?": f"[{word}]", "+": f"{word} ...", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _exit_codes() -> Iterator[str]:
    """Yield the table of exit codes."""
    kinds: dict[int, list[str]] = {}
    for error, code in EXIT_CODES:
        kinds.setdefault(code, []).append(f"`{error.__name__}`")
    yield from ("", "## Exit codes", "", "| code | meaning |", "|---|---|")
    for code in sorted({*kinds, *_OTHER_CODES}):
        means = [_OTHER_CODES[code]] if code in _OTHER_CODES else []
        yield f"| {code} | {', '.join(means + kinds.get(code, []))} |"


def api_page() -> str:
    """Return the page of the Python API."""
    top = [name for name in trireme.__all__ if name not in ("__version__", "eager", "ops")]
    lines = [
        _NOTE,
        "# The Python API",
        "",
        f"`import trireme` gives {_codes(top)}. `trireme.ops` is the package of the ops; "
        "`trireme.__version__` is the version. Import the other names from their module.",
    ]
    for heading, modules in NAMES.items():
        lines += ["", f"## {heading}"]
        for path, names in modules.items():
            lines += ["", f"### trireme.{path}"]
            module = vars(importlib.import_module(f"trireme.{path}"))
            for name in names:
                lines += ["", f"#### {name}", "", *_entry(name, module[name])]
    return "\n".join(lines) + "\n"


def _entry(name: str, found: Any) -> Iterator[str]:
    """Yield signature and docstring of a function or class, and the members of a class."""
    yield from _quoted(f"{_signature(name, found)}\n{_indented(inspect.getdoc(found) or '')}")
    if not isinstance(found, type) or issubclass(found, BaseException):
        return
    members = dict(_members(found))
    if members:
        yield ""
        yield from ("| member | meaning |", "|---|---|")
        for member, doc in members.items():
            yield f"| `{_escaped(member)}` | {_escaped(doc)} |"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Yield (call, first paragraph of the docstring) of the public members of a class.

    Members of a shown base are left out. A docstring that refers to another class ("See ...") marks
    a member that the engine calls.
    """
    inherited = [base for base in kind.__mro__[1:] if base.__module__.startswith("trireme.")]
    inherited = [base for base in inherited if base.__name__ not in SHOWN]
    found = {n: m for base in reversed([kind, *inherited]) for n, m in vars(base).items()}
    for name, member in found.items():
        if name.startswith("_"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if isinstance(member, FunctionType):
            call = f"{name}({', '.join(_parameters(member, False)[1:])})"
        elif isinstance(member, property) or hasattr(member, "func"):
            member, call = getattr(member, "fget", None) or member.func, name
        else:
            continue
        doc = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
        if doc and not doc.startswith("See "):
            yield call, doc


def _signature(name: str, found: Any) -> str:
    """Return `name(parameters)`, on one line where that fits."""
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return f"class {name}: {', '.join(one.name for one in found)}"
    word = "class " if isinstance(found, type) else ""
    if isinstance(found, type) and not _has_signature(found):
        return f"{word}{name}"
    parameters = _parameters(found)
    result = "" if isinstance(found, type) else _result(found)
    line = f"{word}{name}({', '.join(parameters)}){result}"
    if len(line) <= 96:
        return line
    return "\n".join([f"{word}{name}(", *(f"    {one}," for one in parameters), f"){result}"])


def _result(call: Callable[..., Any]) -> str:
    """Return ` -> type` of what a function returns."""
    kind = inspect.signature(call).return_annotation
    return "" if kind is inspect.Signature.empty else f" -> {_annotation(kind)}"


def _annotation(kind: Any) -> str:
    return inspect.formatannotation(kind).replace("'", "")


def _has_signature(kind: type) -> bool:
    """Whether a class has a constructor of its own: not a protocol, nor an error."""
    if issubclass(kind, BaseException) or getattr(kind, "_is_protocol", False):
        return False
    return (
        dataclasses.is_dataclass(kind)
        or kind.__init__ is not object.__init__
        or (issubclass(kind, tuple))
    )


def _parameters(call: Callable[..., Any], annotations: bool = True) -> list[str]:
    """Return the parameters of a call as text; functions as defaults by their names."""
    texts, star = [], False
    for one in inspect.signature(call).parameters.values():
        if one.name.startswith("_"):
            continue
        if one.kind is one.VAR_POSITIONAL:
            star = True
        if one.kind is one.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        kind = (
            "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        )
        text = kind + one.name
        if annotations and one.annotation is not one.empty:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            equals = " = " if annotations else "="
            text += f"{equals}{_default(one.default)}"
        texts.append(text)
    return texts


def _default(value: Any) -> str:
    """Return a default as text: the same in every process. Options have short defaults."""
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    kind = type(value)
    if dataclasses.is_dataclass(kind) and value == kind():
        return f"{kind.__name__}()"
    shown = repr(value)
    return "..." if isinstance(value, Path) or " at 0x" in shown or "<" in shown else shown


def _quoted(text: str) -> list[str]:
    """Return text as a block."""
    return ["```text", *text.rstrip().splitlines(), "```"]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def devices_page() -> str:
    """Return the page of the devices: what their kinds declare."""
    lines = [_NOTE, "# Devices", "", _DEVICES]
    for kind in map(kind_named, device_names()):
        lines += ["", f"## {kind.name}", "", f"{kind.summary[0].upper()}{kind.summary[1:]}."]
        if kind.instances:
            lines[-1] += f" Several run side by side, as `{kind.name}#1,{kind.name}#2`."
        lines += ["", "| option | type | default | meaning |", "|---|---|---|---|"]
        lines += [_option_row(one) for one in kind.declared()]
    return "\n".join(lines) + "\n"


def _option_row(option: Option) -> str:
    values = f" (one of {', '.join(map(str, option.choices))})" if option.choices else ""
    flag = f"; `{option.flag}` on the command line" if option.flag else ""
    cells = (f"`{option.name}`", f"`{_annotation(option.type)}`", f"`{option.default!r}`")
    texts = (*cells, f"{option.help}{values}{flag}")
    return f"| {' | '.join(map(_escaped, texts))} |"


def _escaped(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


SHOWN = frozenset(name for part in NAMES.values() for names in part.values() for name in names)
"""The names that the page of the API has: their members are not repeated in subclasses."""

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "api.md": api_page,
    "devices.md": devices_page,
    "serve-config.md": lambda: config_page(_NOTE),
    "metrics.md": lambda: metrics_page(_NOTE),
}


def stale(folder: Path = FOLDER) -> list[str]:
    """Return the names of the pages that are not what the code says."""
    kept = {name: folder / name for name in PAGES}
    return [
        name
        for name, page in PAGES.items()
        if not kept[name].exists() or kept[name].read_text() != page()
    ]


def main() -> int:
    """Write the pages, or with --check say which are stale; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say which pages are stale")
    if parser.parse_args().check:
        wrong = stale()
        print("\n".join(f"stale: {name}" for name in wrong) or "current")
        return 1 if wrong else 0
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(FOLDER / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
