"""Notes for the user of a model: facts that are no errors."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger(__name__)

OnNote = Callable[[str], None]
"""Called with a sentence, for example on a graph of the file that is not run."""


def log_note(note: str) -> None:
    """Log a note as a warning."""
    _log.warning("%s", note)
