"""The command that calibrates devices, for errors and reports."""

from __future__ import annotations

from collections.abc import Iterable


def command(names: Iterable[str], *options: str) -> str:
    """Return the command; it names an instance ("cpu#2") by its kind, whose prices it shares."""
    kinds = dict.fromkeys(name.partition("#")[0] for name in names)
    return " ".join(("trireme calibrate", *options, "--devices", ",".join(kinds)))
