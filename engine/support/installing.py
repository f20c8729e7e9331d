"""Commands that install missing packages for the running Python."""

from __future__ import annotations

import shlex
import sys

DISTRIBUTION = "trireme-engine"
"""The name to install by; PyPI's `trireme` is another project."""


def install_command(*packages: str) -> str:
    """Return the command that installs packages for this Python."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *packages])


def install_extra(extra: str) -> str:
    """Return the command that installs an optional part of trireme for this Python."""
    return install_command(f"{DISTRIBUTION}[{extra}]")
