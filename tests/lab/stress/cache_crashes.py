"""Children that save, open and run a model while calls of the system fail, or until a kill.

As a program, `python -m lab.stress.cache_crashes WHAT FOLDER SEED COUNT`. The engine is
imported once; each case is a forked child. WHAT is

    fail    one call of the system after another fails, as on a full, broken or forbidden disk
    kill    a child is killed at one call after another, or at a random time

After each case another child opens the model. Its results are those of a model that was saved
whole. A line of JSON says how many calls there are and how many cases ran. Any other result ends
the script with the case.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.model_file import dumps, save
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError

CALLS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.utime"}
CALLS |= {"mmap.__new__"}
ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE)
ROWS, COLUMNS = 64, 3000
X = np.linspace(-1, 1, 5 * ROWS, dtype=np.float32).reshape(5, ROWS)


class Calls:
    """Count the calls of the system about a folder; `then` runs at the `at`-th."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = str(folder), 0
        self.at: int | None = None
        self.then: Callable[[], None] | None = None
        sys.addaudithook(self.seen)

    def watch(self, at: int | None, then: Callable[[], None]) -> None:
        """Count from 0; run `then` at the call of that number."""
        self.count, self.at, self.then = 0, at, then

    def seen(self, event: str, about: Any) -> None:
        """See an event of the interpreter."""
        if self.then is None or event not in CALLS:
            return
        place = about[0] if about else None
        is_mapped_file = event == "mmap.__new__" and place != -1
        if is_mapped_file or str(place).startswith(self.folder):
            self.count += 1
            if self.count - 1 == self.at:
                self.then()


def model(turn: int) -> Graph:
    """Return the model of a turn."""
    rng = np.random.default_rng(turn)
    b = GraphBuilder("m")
    x = b.input("x", TensorType((5, ROWS), "float32"))
    w = b.constant("w", rng.standard_normal((ROWS, COLUMNS)).astype(np.float32))
    return b.finish(b.add("relu", b.add("matmul", x, w)))


def run(folder: Path) -> Array:
    """Return the result of the folder's model, with the caches of the folder."""
    caches = folder / "caches"
    how = ExecutionOptions(
        model_cache=caches / "models", device_options={"cpu": {"cache_dir": caches / "cpu"}}
    )
    with Session(folder / "m.trm", execution_options=how, threads=1) as session:
        found: Array = next(iter(session.run({"x": X}).values()))
        return found


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked child; return its process. The child's status is 0 where work() is true."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 3
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(status)
    return child


def status_of(child: int) -> int:
    """Wait for a child and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raising(code: int) -> Callable[[], None]:
    """Return what fails as the system does."""

    def then() -> None:
        raise OSError(code, os.strerror(code))

    return then


class CrashCases:
    """A folder with a model and caches, and the results of every model so far."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.calls = folder, random.Random(seed), Calls(folder)
        self.turn = 0
        save(model(0), folder / "m.trm")
        self.wanted = {0: run(folder).tobytes()}

    def remember(self, turn: int) -> None:
        """Keep the results of a model, computed from bytes: no cache, no file."""
        with Session(dumps(model(turn)), threads=1) as session:
            self.wanted[turn] = next(iter(session.run({"x": X}).values())).tobytes()

    def empty(self) -> None:
        """Remove all but the model."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name != "m.trm":
                path.unlink()

    def count(self, saves: bool) -> int:
        """Return the calls of a save, or of an open."""
        read, write = os.pipe()

        def work() -> bool:
            self.calls.watch(None, lambda: None)
            self.step(saves)
            os.write(write, str(self.calls.count).encode())
            return True

        if status_of(in_child(work)):
            sys.exit("the model cannot be opened at all")
        os.close(write)
        with os.fdopen(read) as told:
            return int(told.read())

    def step(self, saves: bool) -> Array:
        """Save the model of the turn, or not, and run it."""
        if saves:
            save(model(self.turn), self.folder / "m.trm")
        return run(self.folder)

    def check(self, what: str) -> None:
        """The next open succeeds, has the results of a whole model, and nothing else is left."""

        def work() -> bool:
            found = run(self.folder).tobytes()
            return found in (self.wanted[self.turn], self.wanted.get(self.turn - 1))

        if status_of(in_child(work)):
            sys.exit(f"the next open failed after {what}")
        left = [path.name for path in self.folder.glob(".*")]
        if len(left) > 1:
            sys.exit(f"{left} are left after {what}")

    def fail(self, count: int) -> dict[str, Any]:
        """Opens with empty caches and with full ones, where one call fails."""
        cases = []
        for is_empty in (True, False):
            if is_empty:
                self.empty()
            cases += [(is_empty, at) for at in range(self.count(False))]
        chosen = cases if count >= len(cases) else self.rng.sample(cases, count)
        for is_empty, at in chosen:
            if is_empty:
                self.empty()
            code = self.rng.choice(ERRORS)
            what = f"{errno.errorcode[code]} at call {at}, {'empty' if is_empty else 'full'} caches"

            def work(at: int = at, code: int = code) -> bool:
                self.calls.watch(at, raising(code))
                try:
                    return self.step(False).tobytes() == self.wanted[0]
                except ModelFileError as error:  # reading the model itself failed
                    return "m.trm" in str(error) and error.__cause__ is not None

            if status_of(in_child(work)):
                sys.exit(f"wrong after {what}")
            self.check(what)
        return {"calls": len(cases), "cases": len(chosen)}

    def kill(self, count: int) -> dict[str, Any]:
        """Saves and opens that are killed: half at a call, half at a time."""
        calls = self.count(True)
        start = time.perf_counter()
        status_of(in_child(lambda: self.step(True) is not None))
        took_s = time.perf_counter() - start
        killed = 0
        for case in range(count):
            self.turn += 1
            self.remember(self.turn)
            at = self.rng.randrange(calls)
            delay_s = self.rng.uniform(0, took_s)

            def work(at: int = at, is_timed: int = case % 2) -> bool:
                if not is_timed:
                    self.calls.watch(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
                return self.step(True) is not None

            child = in_child(work)
            if case % 2:
                time.sleep(delay_s)
                os.kill(child, signal.SIGKILL)
            killed += status_of(child) == -signal.SIGKILL
            self.check(f"kill {case} at call {at} of {calls}, or after {delay_s:.3f} s")
            save(model(self.turn), self.folder / "m.trm")
        left = [path.name for path in self.folder.rglob("*.tmp")]
        return {"calls": calls, "cases": count, "killed": killed, "left": left}


def main(what: str, folder: str, seed: str, count: str) -> None:
    """Run the cases and print what ran."""
    cases = CrashCases(Path(folder), int(seed))
    print(json.dumps(getattr(cases, what)(int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
