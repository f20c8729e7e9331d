"""Threads that run ops, handed over without a lock that a signal could leave taken.

A pool of concurrent.futures takes Python's Conditions on the caller's thread. A signal handler that
raises there leaves one taken, and a worker then waits for it for ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from trireme.support.errors import RunError
from trireme.support.forks import register_at_fork
from trireme.support.threads import start_thread

_Jobs = queue.SimpleQueue[Callable[[], None] | None]


class OpThreads:
    """Threads that run jobs in the order in which they come; started when first needed.

    name: of the threads, with a number; count: of them
    """

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self.reset_after_fork()
        register_at_fork(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Have a thread run a job, which raises nothing. Errors: RunError, as start_thread"""
        while len(self._threads) < self._count:
            thread = threading.Thread(
                target=_serve,
                args=(self._jobs,),
                name=f"{self._name}_{len(self._threads)}",
                daemon=True,
            )
            self._threads.append(thread)
            try:
                start_thread(thread)
            except RunError:
                self._threads.remove(thread)
                raise
        self._jobs.put(job)

    @property
    def are_alive(self) -> bool:
        """Whether no thread ended by itself: Python lets other threads raise exceptions in one."""
        return all(thread.ident is None or thread.is_alive() for thread in self._threads)

    def end(self) -> None:
        """Return when all jobs are over and the threads have ended; a later job starts others."""
        jobs, threads = self._jobs, self._threads
        self.reset_after_fork()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()

    def leave(self) -> None:
        """Wait for no thread: one of them hangs. A later job starts others."""
        jobs, threads = self._jobs, self._threads
        self.reset_after_fork()
        for _ in threads:
            jobs.put(None)

    def reset_after_fork(self) -> None:
        """Have no thread and no job."""
        self._jobs: _Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []


def _serve(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
