"""The command that measures devices, as errors and reports name it."""

from __future__ import annotations

from collections.abc import Iterable


def command(names: Iterable[str], *options: str) -> str:
    """Return what measures these devices; instances by their kind, as which they are priced."""
    kinds = dict.fromkeys(name.partition("#")[0] for name in names)
    return " ".join(("trireme calibrate", *options, "--devices", ",".join(kinds)))
