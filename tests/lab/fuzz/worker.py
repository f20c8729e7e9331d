"""Functions run in a process of their own, so that a crash in one ends a call and not the caller.

ONNX Runtime has kernels that end the process. What asks it goes through a Worker: the child is
started by the first call, runs one function after another, and is started again behind a crash.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from lab import child_environment

STALL_S = 300.0
"""Wall seconds of a call, after which the child is killed."""


class Crashed(Exception):
    """The process that ran the function ended, or was killed because it stalled."""


class Worker:
    """A child process that runs functions for this one, one at a time."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, function: Callable[..., Any], *args: Any, stall_s: float = STALL_S) -> Any:
        """Return function(*args), computed in the child.

        function: one of a module, which the child imports by name
        Errors: Crashed; and whatever the function raises
        """
        child = self.child = self.child or _start()
        timer = threading.Timer(stall_s, child.kill)
        timer.start()
        try:
            pickle.dump((function, args), child.stdin)
            child.stdin.flush()
            returned, made = pickle.load(child.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            self.child = None
            raise Crashed(f"the process ended with {_ended(child)}") from error
        finally:
            timer.cancel()
        if returned:
            return made
        raise made

    def close(self) -> None:
        """End the child."""
        if self.child is not None:
            _ended(self.child)
            self.child = None


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lab.fuzz.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )


def _ended(child: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a child that ended, or that ends because nobody asks any more."""
    child.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    return child.wait()


def serve() -> None:
    """Run what is asked on stdin until it ends; what the functions print goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            function, args = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve()
