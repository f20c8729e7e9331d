"""Run the cases of a subject in a child process of bounded CPU time.

As a program, `python -m lab.stress.children MODULE NAME SUBJECT SEED STOP MODELS
FIRST`: `NAME` of a module makes, from the seed, the models (one path a line) and the subject, what
runs a case.
"""

from __future__ import annotations

import importlib
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from lab.stress.bounded import ends_of, try_cases
from lab.stress.part import StressRun
from lab.stress.rows import StressFailure, StressRow

CASE_CPU_S = 120.0
Attempt = Callable[[int], str]
MakeAttempt = Callable[[int, Sequence[Path], str], Attempt]


def run_cases(
    asked: StressRun,
    module: str,
    name: str,
    good: Collection[str],
    environment: dict[str, str] | None = None,
) -> StressRow:
    """Return the row of the subject's cases; an end that is not in `good` is a failure.

    module, name: where the MakeAttempt is
    """
    models = "\n".join(map(str, asked.models))
    command = ["-m", __name__, module, name, asked.subject, str(asked.seed)]
    command += [str(asked.cases.stop), models]
    ends, failures = Counter[str](), list[StressFailure]()
    for number, end in ends_of(command, first=asked.cases.start, environment=environment):
        ends[end.kind] += 1
        if end.kind not in good:
            failures.append(asked.failure(number, end.kind, end.text))
        asked.tell(number, asked.cases.stop)
    return asked.row(cases=ends.total(), ends=ends, failures=failures)


def main(
    module: str, name: str, subject: str, seed: str, stop: str, models: str, first: str
) -> None:
    """Try the cases from `first` on."""
    warnings.simplefilter("ignore")
    make: MakeAttempt = getattr(importlib.import_module(module), name)
    attempt = make(int(seed), [Path(path) for path in models.split("\n") if path], subject)
    numbers = ((number, number) for number in range(int(first), int(stop)))
    try_cases(numbers, attempt, int(first), resource.RLIM_INFINITY, CASE_CPU_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
