"""Start threads, and threads that run tasks; a system that refuses one is a typed error.

A pool of concurrent.futures takes Python's Conditions on the caller's thread. A signal handler that
raises there leaves one taken, and a worker then waits for it for ever. Tasks are handed over here
without a lock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork

_Jobs = queue.SimpleQueue[Callable[[], None] | None]


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


class TaskThreads:
    """Threads that run jobs in the order in which they come; started when first needed.

    name: of the threads, with a number where there are several; count: of them
    """

    def __init__(self, name: str, count: int = 1) -> None:
        self._names = [name] if count == 1 else [f"{name}_{k}" for k in range(count)]
        self.reset_after_fork()
        register_at_fork(self)

    def start(self) -> None:
        """Start the threads that are not there. Errors: RunError, as start_thread"""
        if self._is_ending:
            self.end()  # an interrupt kept the last from their end
        for name in self._names[len(self._threads) :]:
            thread = threading.Thread(target=_serve, args=(self._jobs,), name=name, daemon=True)
            self._threads.append(thread)
            try:
                start_thread(thread)
            except RunError:
                self._threads.remove(thread)
                raise

    def submit(self, job: Callable[[], None]) -> None:
        """Have a thread run a job, which raises nothing. Errors: RunError, as start_thread"""
        if self._is_ending or len(self._threads) < len(self._names):
            self.start()
        self._jobs.put(job)

    @property
    def are_alive(self) -> bool:
        """Whether no thread ended by itself: Python lets other threads raise exceptions in one."""
        return all(thread.ident is None or thread.is_alive() for thread in self._threads)

    def end(self, is_stuck: Callable[[], bool] | None = None, look_s: float | None = None) -> None:
        """Return when all jobs are over and the threads have ended; a later job starts others.

        is_stuck: asked every look_s whether the threads hang; these are not waited for
        """
        self._is_ending = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():
                continue  # a collector may run this anywhere
            thread.join(look_s)
            while thread.is_alive() and not (is_stuck is not None and is_stuck()):
                thread.join(look_s)
        self.reset_after_fork()

    def leave(self) -> None:
        """Wait for no thread: one of them hangs. A later job starts others."""
        for _ in self._threads:
            self._jobs.put(None)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Have no thread and no job."""
        self._jobs: _Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_ending = False


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
