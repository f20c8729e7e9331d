"""Runs tests in forks of one process that has imported the package and collected every test.

`Warm` is a plugin of pytest that runs `work` where the tests would run. Starting pytest takes ten
CPU seconds, a fork takes milliseconds. A fork changes the mutant's function in memory; its file is
changed as well, for processes that tests start. What ran while modules were imported has had its
effect: such a mutant needs a process of its own (`limits.run_tests`).
"""

import contextlib
import gc
import os
import pathlib
import resource
import subprocess
import sys
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from lab.mutation import limits as runs

UNCHANGED = 77
"""Exit status of a fork that cannot change a function in memory."""
_POLL_S = 0.05


class Warm:
    """A plugin of pytest; `items` holds the collected tests by their ids."""

    def __init__(self, log: pathlib.Path, work: Callable[["Warm"], None]) -> None:
        self.log, self.work = log, work
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[str, list[types.FunctionType]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        for one in gc.get_objects():
            if type(one) is types.FunctionType:
                self.functions[one.__code__.co_filename].append(one)
        gc.freeze()
        self.work(self)
        return True

    def run_tests(
        self,
        tests: Sequence[str],
        limit_s: float,
        usual_s: Mapping[str, float],
        change: tuple[pathlib.Path, str, str] | None = None,
        stop: bool = True,
    ) -> runs.Outcome | None:
        """Run tests in a fork until one fails or `limit_s` CPU seconds are over.

        `change` is a file of the package, its text and its changed text. The outcome is None where
        the change cannot be made in memory.
        """
        self.log.write_text("")
        items = [self.items[test] for test in tests if test in self.items]
        child = _Fork(self.log.with_suffix(".txt"), lambda: self._run(items, change, stop))
        status, output, cpu_s = runs.watched(child, self.log, limit_s, usual_s)
        if status == UNCHANGED:
            return None
        passed = sum(line.startswith("passed\t") for line in self.log.read_text().splitlines())
        return runs.Outcome(*runs.verdict_of(status, output), passed, round(cpu_s, 2))

    def _run(
        self, items: Sequence[pytest.Item], change: tuple[pathlib.Path, str, str] | None, stop: bool
    ) -> int:
        if change and not replace_code(self.functions[str(change[0])], *change):
            return UNCHANGED
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.log.read_text().splitlines()[-1].startswith("failed\t"):
                print(f"\nFAILED {item.nodeid}")
                if stop:
                    return 1
        return 0


def replace_code(
    functions: Sequence[types.FunctionType], path: pathlib.Path, before: str, after: str
) -> int:
    """Give the functions of a file their changed code; return how many changed, 0 if one cannot."""
    old, new = (compile(text, str(path), "exec", dont_inherit=True) for text in (before, after))
    changed = {one: other for one, other in _pairs(old, new) if one != other}
    found = [function for function in functions if function.__code__ in changed]
    with contextlib.suppress(ValueError):  # another number of variables from outside
        for function in found:
            function.__code__ = changed[function.__code__]
        return len(found)
    return 0


def _pairs(
    old: types.CodeType, new: types.CodeType
) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Yield the code of each function in a file before and after."""
    yield old, new
    inner, other = (
        [part for part in code.co_consts if isinstance(part, types.CodeType)] for code in (old, new)
    )
    if len(inner) == len(other):
        for one, two in zip(inner, other, strict=True):
            yield from _pairs(one, two)


class _Fork:
    """A child that calls a function and exits with what that returns; as subprocess.Popen."""

    def __init__(self, output: pathlib.Path, call: Callable[[], int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid, self.status = os.fork(), None
        if self.pid == 0:
            _be_child(output, call)
        with contextlib.suppress(PermissionError):
            os.setpgid(self.pid, self.pid)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (1e9 if timeout is None else timeout)
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            else:
                time.sleep(_POLL_S)
        return self.status


def _be_child(output: pathlib.Path, call: Callable[[], int]) -> None:
    status = 3
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (runs.MEMORY_BYTES, runs.MEMORY_BYTES))
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = call()
        sys.stdout.flush()
    finally:
        os._exit(status)
