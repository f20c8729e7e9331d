"""Try many cases in child processes of bounded memory and CPU time.

A child is a program that gives its cases to `try_cases`; `outcomes` starts it, and starts it again
behind a case that killed it.
"""

import os
import re
import resource
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass

MEMORY_BYTES = 4 << 30
CASE_CPU_S = 5
"""CPU seconds of a case, of all its threads, until it is interrupted; twice as many kill it."""
STALL_S = 300
"""Wall seconds of a child: a case that waits for ever uses no CPU time."""
SHOWN = 2500


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
    def is_bad(self):
        """Whether it is neither an answer nor a typed error."""
        return self.kind in ("hang", "killed", "untyped", "wrong")


class Hang(BaseException):
    """A case took too long; not an Exception, so that nothing swallows it."""


def try_cases(cases, attempt, first, memory_bytes=MEMORY_BYTES, cpu_s=CASE_CPU_S):
    """Attempt the cases from number `first` on and print a line before and after each.

    cases: (number, case) in the order of their numbers
    attempt: case -> a word and what more there is to say, parted by a space
    """

    def late(signum, frame):
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


def _used_s():
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def _ended(case, attempt, cpu_s):
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


def outcomes(command, input=None, stall_s=STALL_S):
    """Return the End of each case by number.

    command: the child's, to which the number of the first case is appended
    """
    found, first = {}, 0
    while True:
        status, said, errors = _child([*command, str(first)], input, stall_s)
        for number, cpu_s, kind, text in re.findall(r"^end (\d+) (\S+) (\S+) ?(.*)$", said, re.M):
            found[int(number)] = End(kind, text, float(cpu_s))
        if status == 0:
            return found
        begun = [int(number) for number in re.findall(r"^case (\d+)$", said, re.M)]
        if not begun or begun[-1] in found:
            raise AssertionError(f"a child ended with {status}: {errors[-SHOWN:]}")
        found[begun[-1]] = End("killed", f"by {status}: {errors[-SHOWN:]}")
        first = begun[-1] + 1


def _child(command, input, stall_s):
    """Run a child and return its exit status, or "a stall", and what it printed."""
    try:
        child = subprocess.run(
            [sys.executable, *command],
            input=input,
            capture_output=True,
            timeout=stall_s,
            check=False,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"},
        )
        ended = child.returncode, child.stdout, child.stderr
    except subprocess.TimeoutExpired as late:
        ended = "a stall", late.stdout or b"", late.stderr or b""
    status, said, errors = ended
    return status, said.decode(errors="replace"), errors.decode(errors="replace")
