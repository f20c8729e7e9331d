"""Shell completion by argcomplete, where it is installed (the extra `completion`).

eval "$(register-python-argcomplete trireme)"
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping

from trireme.backend.registry import device_names
from trireme.devices.described import soc_names
from trireme.passes.pipeline import PASSES
from trireme.tools.bench.peers import PEERS

MODELS = ("trm", "tflite", "onnx", "pt2")
_ASKED = "_ARGCOMPLETE"
"""The variable of the environment that a shell sets when it asks for completions."""
_LISTS: Mapping[str, Callable[[], Iterable[str]]] = {
    "devices": device_names,
    "against": lambda: PEERS,
    "passes_off": lambda: PASSES,
}
"""Options that take names with commas between, and the names."""


def is_asked() -> bool:
    """Whether a shell asks for completions instead of running a command."""
    return _ASKED in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, and end; else, or without argcomplete, return."""
    if not is_asked():
        return
    try:
        import argcomplete
        from argcomplete.completers import FilesCompleter
    except ImportError:
        return
    tables = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for table in tables:
        for action in (one for sub in table.choices.values() for one in sub._actions):
            if action.dest in ("model", "models"):
                action.completer = FilesCompleter(MODELS)
            elif action.dest == "soc":
                action.completer = _described
            elif action.dest in _LISTS:
                action.completer = _listed(_LISTS[action.dest])
    argcomplete.autocomplete(parser)


def _described(**_: object) -> list[str]:
    """Return the machines that come with trireme."""
    return soc_names()


def _listed(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Return what completes the last of several names with commas between."""

    def complete(prefix: str, **_: object) -> list[str]:
        before, comma, _last = prefix.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names() if name not in given]

    return complete
