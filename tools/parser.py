"""The parser of the command line, made of the table of commands."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from trireme import __version__
from trireme.backend.registry import device_names
from trireme.support import errors
from trireme.tools.command_table import COMMANDS, EXAMPLES
from trireme.tools.completion import is_asked
from trireme.tools.options import add_json


class CommandParser(argparse.ArgumentParser):
    """A parser of one command, whose arguments may stand before, between and after its options."""

    _intermixes = True

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the options and what is unknown; the base class calls back for each part."""
        if self._subparsers is not None or not self._intermixes or is_asked():
            return super().parse_known_args(args, namespace)
        self._intermixes = False
        try:
            options, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixes = True
        if unknown:  # the base class would have the program's parser refuse them
            self.error(f"unknown arguments: {' '.join(unknown)}{self._nearest(unknown[0])}")
        return options, unknown

    def _nearest(self, unknown: str) -> str:
        """Return what is meant by an argument that there is not, as the end of a sentence."""
        word = unknown.partition("=")[0]
        if word in device_names():
            return "; several devices are one argument, as in --devices npu,cpu"
        flags = [(flag, one) for one in self._actions for flag in one.option_strings]
        near = [flag for flag, one in flags if str(one.metavar).lower() == word.strip("-")]
        near = near or difflib.get_close_matches(word, [flag for flag, _ in flags], 1)
        return f"; did you mean {' or '.join(near)}?" if near else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, with the choice that is nearest."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = difflib.get_close_matches(str(value), map(str, action.choices or ()), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None

    def error(self, message: str) -> NoReturn:
        """End the process with the usage and the message."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {errors.shortened(message)} (see {self.prog} --help)\n")


def _usage_of(one: argparse.Action) -> str:
    """Return how usage shows an argument without a flag."""
    name = str(one.metavar or one.dest)
    return {"+": f"{name} ...", "*": f"[{name} ...]"}.get(str(one.nargs), name)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = CommandParser(
        prog="trireme", description="Convert, place, run and explain models on CPU, OpenCL and NPU."
    )
    parser.add_argument("--version", action="version", version=f"trireme {__version__}")
    table = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = table.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog="\n".join(
                ["examples:", *(f"  trireme {name} {one}".rstrip() for one in EXAMPLES[name])]
            ),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for add in (*command.shared, add_json):
            add(sub)
        for flags, options in command.own:
            sub.add_argument(*flags, **options)
        given = [one for one in sub._actions if not one.option_strings]
        names = [_usage_of(one) for one in given]
        sub.usage = " ".join(["%(prog)s [options]", *names])
        sub.set_defaults(command=command.run)
    return parser
