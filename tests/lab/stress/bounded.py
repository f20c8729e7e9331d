"""Try many cases in child processes of bounded memory and CPU time.

A child is a program that gives its cases to `try_cases`. `ends_of` starts it, and starts it again
behind a case that killed it.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from lab import child_environment

Case = TypeVar("Case")

MEMORY_BYTES = 4 << 30
CASE_CPU_S = 5.0
"""CPU seconds of a case, of all its threads, until it is interrupted; twice as many kill it."""
STALL_S = 300.0
"""Wall seconds without a word of a child: a case that waits for ever uses no CPU time."""
SHOWN = 2500
BAD = frozenset({"hang", "killed", "untyped", "wrong"})

_END = re.compile(r"end (\d+) (\S+) (\S+) ?(.*)")


@dataclass(frozen=True)
class End:
    """What a case ended in.

    kind: "ran" or another word of the attempt's; the name of a TriremeError; "hang", "killed", or
        "untyped" for any other exception and for an InternalError
    text: what the error says, or where it came from
    """

    kind: str
    text: str = ""
    cpu_s: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether it is neither an answer nor a typed error."""
        return self.kind in BAD


class Hang(BaseException):
    """A case took too long; not an Exception, so that nothing swallows it."""


def try_cases(
    cases: Iterable[tuple[int, Case]],
    attempt: Callable[[Case], str],
    first: int,
    memory_bytes: int = MEMORY_BYTES,
    cpu_s: float = CASE_CPU_S,
) -> None:
    """Attempt the cases from number `first` on and print a line before and after each.

    cases: (number, case) in the order of their numbers
    attempt: case -> a word and what more there is to say, parted by a space
    """

    def late(signum: int, frame: object) -> None:
        raise Hang

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGPROF, late)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    for number, case in cases:
        if number < first:
            continue
        print(f"case {number}", flush=True)
        start = _used_s()
        resource.setrlimit(resource.RLIMIT_CPU, (int(start + 2 * cpu_s) + 1, hard))
        kind, text = _ended(case, attempt, cpu_s)
        line = text.replace("\n", " | ")[-SHOWN:]
        print(f"end {number} {_used_s() - start:.2f} {kind} {line}", flush=True)


def _used_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _ended(case: Case, attempt: Callable[[Case], str], cpu_s: float) -> tuple[str, str]:
    from trireme.support.errors import InternalError, TriremeError

    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        kind, _, text = attempt(case).partition(" ")
        return kind, text
    except InternalError:
        return "untyped", traceback.format_exc()
    except TriremeError as error:
        return type(error).__name__, str(error)
    except Hang:
        return "hang", traceback.format_exc()
    except Exception:
        return "untyped", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def ends_of(
    command: Sequence[str],
    input: bytes = b"",
    stall_s: float = STALL_S,
    first: int = 0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, End]]:
    """Yield the number and the End of each case, in the order of their numbers.

    command: the child's, to which the number of the first case is appended
    input: the child's standard input
    environment: variables that the child has besides this process's
    Errors: RuntimeError, if a child ends between two cases
    """
    while True:
        begun = ended = -1
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(input)
            given.seek(0)
            with subprocess.Popen(
                [sys.executable, *command, str(first)],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**child_environment(), "PYTHONFAULTHANDLER": "1", **(environment or {})},
            ) as child:
                try:
                    for line in _lines(child, stall_s):
                        if line.startswith("case "):
                            begun = int(line[5:])
                        elif found := _END.fullmatch(line):
                            ended = int(found[1])
                            yield ended, End(found[3], found[4], float(found[2]))
                finally:
                    is_stalled = child.poll() is None and _is_silent(child)
                    if is_stalled:
                        child.kill()
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-SHOWN:]
        if child.returncode == 0:
            return
        status = "a stall" if is_stalled else str(child.returncode)
        if begun == ended:
            raise RuntimeError(f"a child ended with {status} between two cases: {said}")
        yield begun, End("killed", f"by {status}: {said}")
        first = begun + 1


def _is_silent(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a child still runs a second after its last line."""
    try:
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        return True
    return False


def _lines(child: subprocess.Popen[bytes], stall_s: float) -> Iterator[str]:
    """Yield a child's lines until it ends, or says nothing for `stall_s`."""
    assert child.stdout is not None
    said: IO[bytes] = child.stdout
    rest = b""
    ends_s = time.monotonic() + stall_s
    while (left_s := ends_s - time.monotonic()) > 0:
        if not select.select([said], [], [], left_s)[0]:
            return
        if not (part := os.read(said.fileno(), 1 << 16)):
            return
        ends_s = time.monotonic() + stall_s
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)


def outcomes(
    command: Sequence[str], input: bytes = b"", stall_s: float = STALL_S
) -> dict[int, End]:
    """Return the End of each case by number; see `ends_of`."""
    return dict(ends_of(command, input, stall_s))
