"""Runs tests on a copy of the package, within limits that a busy machine does not change.

`copy_package` makes the copy, `changed` puts a mutant into it, `run_tests` runs tests against it in
a new process and says which one failed; warm.py runs them in a fork. CPU seconds are
limited, not wall time: a process that gets little of the machine is no slower, and one that waits
for ever uses none.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from lab.mutation import mutants

ROOT = pathlib.Path(__file__).resolve().parents[3]
COPIED = ("schema", "converters", "devices", "tools")
EMITTED = ("devices/cpu/codegen/", "engine/disk_cache", "devices/opencl/programs")
"""Files whose change a full cache of kernels would hide: their mutants begin with empty caches."""

DEFAULT, SWEEPS = "not slow and not timed", "sweep"
START_S = 15.0
"""CPU seconds to start pytest, import and collect, several times what it takes."""
SLOWER, SLOW_S = 10, 20.0
"""A test hangs when it takes that many times its usual CPU seconds and that many more."""
STILL_S = 100.0
"""A run hangs when it uses no CPU for so long."""
MEMORY_BYTES = 8 << 30
_FAILED = re.compile(r"(?:FAILED|ERROR) ([^\s:\[]+[^\[ ]*(?:\[.*?\])?)(?: - .*)?$")
_POLL_S, _TICKS = 0.5, os.sysconf("SC_CLK_TCK")


class Child(Protocol):
    """A process that leads a group, as subprocess.Popen has it."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status; raises subprocess.TimeoutExpired."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run of tests said.

    verdict: killed; survived (all tests ran); unresolved (the limit came first)
    by: the failed test, "time", "no progress" or "exit status N"
    passed: tests that ran and passed
    """

    verdict: str
    by: str
    passed: int
    cpu_s: float


def copy_package(folder: pathlib.Path) -> pathlib.Path:
    """Copy the package as it is imported; return the folder that holds it."""
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "engine", folder / "trireme", ignore=ignore)
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / "trireme" / name, ignore=ignore)
    return folder


def copied(folder: pathlib.Path, path: str) -> pathlib.Path:
    """Where a file of the repository is in a copy of the package."""
    return folder / "trireme" / path.removeprefix("engine/")


@contextlib.contextmanager
def changed(package: pathlib.Path, mutant: mutants.Mutant) -> Iterator[None]:
    """A mutant in a copy of the package, for the time of a `with`."""
    file = copied(package, mutant.path)
    source, status = file.read_text(), file.stat()
    file.write_text(mutant.applied(source))
    try:
        yield
    finally:
        file.write_text(source)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextlib.contextmanager
def home_for(folder: pathlib.Path, path: str) -> Iterator[pathlib.Path]:
    """A home whose caches are those of `folder`/home, or empty: nothing written there is kept.

    Object code of a mutant is linked by later runs if it is stored under a key that it shares.
    Bytecode is kept in any case.
    """
    home, kept = home_of(folder), folder / "home"
    shutil.rmtree(home, ignore_errors=True)
    parts = ["bytecode"] if path.startswith(EMITTED) else [""]
    for part in parts:
        if (kept / part).exists():
            shutil.copytree(kept / part, home / part, copy_function=os.link, symlinks=True)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


def home_of(folder: pathlib.Path) -> pathlib.Path:
    """The home of the processes that run tests against a mutant."""
    return folder / "home-of-a-mutant"


def environment(package: pathlib.Path, home: pathlib.Path, log: pathlib.Path) -> dict[str, str]:
    """The environment in which tests import a copy of the package."""
    path = f"{package}{os.pathsep}{ROOT / 'tests'}"
    return os.environ | {
        "PYTHONPATH": path,
        "PYTHONPYCACHEPREFIX": str(home / "bytecode"),
        "TRIREME_TEST_HOME": str(home),
        "TRIREME_MUTANT_LOG": str(log),
    }


def run_tests(
    package: pathlib.Path,
    home: pathlib.Path,
    tests: Sequence[str],
    limit_s: float,
    usual_s: Mapping[str, float],
    marks: str = DEFAULT,
    stop: bool = True,
) -> Outcome:
    """Run tests in their order until one fails or `limit_s` CPU seconds and the start are over.

    With other marks than the default suite's, all tests of their functions run. Tests that the
    mutant makes vanish are no failure.
    """
    log, listed = package / "log.tsv", package / "tests.txt"
    log.write_text("")
    listed.write_text("\n".join(tests))
    functions = dict.fromkeys(test.split("[")[0] for test in tests)
    command = ["pytest", "-p", "lab.mutation.plugin", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [*(["-x"] if stop else []), "-m", marks, *functions]
    env = environment(package, home, log)
    if marks == DEFAULT:
        env["TRIREME_MUTANT_TESTS"] = str(listed)
    status, output, cpu_s = _run(command, env, START_S + limit_s, log, usual_s)
    passed = sum(line.startswith("passed\t") for line in log.read_text().splitlines())
    return Outcome(*verdict_of(status, output), passed, round(cpu_s, 2))


def verdict_of(status: int | str, output: str) -> tuple[str, str]:
    """Return the verdict on a mutant, and by what it was killed, from how pytest ended."""
    if status in (0, 5):
        return "survived", ""
    if isinstance(status, str):
        return ("unresolved", "") if status == "limit" else ("killed", status)
    failed = [match[1] for line in output.splitlines() if (match := _FAILED.match(line))]
    if failed:
        return "killed", failed[-1]
    return "killed", f"exit status {status}"


def _run(
    command: list[str],
    env: dict[str, str],
    limit_s: float,
    log: pathlib.Path,
    usual_s: Mapping[str, float],
) -> tuple[int | str, str, float]:
    """Run a command; return its exit status or why it was ended, its output, its CPU seconds."""

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))

    with log.with_suffix(".txt").open("w") as file:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            preexec_fn=limit_memory,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return watched(child, log, limit_s, usual_s)


def watched(
    child: Child, log: pathlib.Path, limit_s: float, usual_s: Mapping[str, float]
) -> tuple[int | str, str, float]:
    """Wait for a child that leads a group; return what `_run` does."""
    before_s = children_cpu_s()
    try:
        status = _watch(child, limit_s, log, usual_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()
    output = log.with_suffix(".txt").read_text(errors="replace")
    return status, output, children_cpu_s() - before_s


def _watch(
    child: Child, limit_s: float, log: pathlib.Path, usual_s: Mapping[str, float]
) -> int | str:
    """Wait for a process group; say "time", "no progress" or "limit" if it must be ended."""
    cpu_s, since = 0.0, time.monotonic()
    while True:
        try:
            return child.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            now_s = max(_group_cpu_s(child.pid), cpu_s)
        if now_s > cpu_s:
            since = time.monotonic()
        cpu_s = now_s
        if hangs(log, cpu_s, usual_s):
            return "time"
        if time.monotonic() - since > STILL_S:
            return "no progress"
        if cpu_s > limit_s:
            return "limit"


def hangs(log: pathlib.Path, cpu_s: float, usual_s: Mapping[str, float]) -> bool:
    """Whether the test that runs now takes many times its usual CPU seconds."""
    lines = log.read_text().splitlines()
    event, begun_s, test = lines[-1].split("\t") if lines else ("", "", "")
    if event != "begun" or test not in usual_s:
        return False
    return cpu_s - float(begun_s) > SLOWER * usual_s[test] + SLOW_S


def children_cpu_s() -> float:
    """CPU seconds of the children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _group_cpu_s(group: int) -> float:
    """CPU seconds of the living processes of a group and their ended children."""
    ticks = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS
