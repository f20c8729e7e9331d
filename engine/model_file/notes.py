"""What a user is to know of a model that was read, though it is no error."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

OnNote = Callable[[str], None]
"""Is told of what a model holds and does not run, say, in a sentence."""


def log_note(note: str) -> None:
    """Log a note as a warning."""
    _log.warning("%s", note)
