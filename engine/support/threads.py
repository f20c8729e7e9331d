"""Start threads; a system that refuses one is a typed error."""

from __future__ import annotations

import threading

from trireme.support.errors import RunError


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Errors: RunError, where the system refuses"""
    try:
        thread.start()
    except RuntimeError as error:
        raise RunError(
            f"the thread {thread.name} cannot be started: {error}",
            facts=[f"{threading.active_count()} threads of Python live in this process"],
            fix="fewer sessions, servers or threads; or raise the system's limit of threads",
        ) from error
