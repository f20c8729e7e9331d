"""The part `mutants`: damaged model files end in a typed error or in an answer.

Each case is a file of a format, damaged by its seed and number, that a child process of bounded
memory and CPU time reads; every RUN_EVERY-th is opened and run as well. A signal, a case that takes
too long, and any error that is no TriremeError are failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lab.stress import damaged_files, mutations
from lab.stress.bounded import ends_of
from lab.stress.part import StressPart, StressRun
from lab.stress.rows import Figure, StressRow
from lab.stress.seeds import SEEDS

RUN_EVERY = 4
LARGEST_SEED = 1 << 20
"""Bytes of the largest file of the caller's that is damaged: larger ones are mostly weights."""


def run(asked: StressRun) -> StressRow:
    """Damage files of the format that is the subject."""
    format, cases = asked.subject, asked.cases
    seeds = SEEDS[format]() + given_seeds(asked.models, format)
    command = ["-m", damaged_files.__name__, format, str(asked.seed), str(cases.stop)]
    command.append(str(RUN_EVERY))
    ends, failures, slowest_s = Counter[str](), [], 0.0
    for number, end in ends_of(command, mutations.packed(seeds), first=cases.start):
        ends[end.kind] += 1
        slowest_s = max(slowest_s, end.cpu_s)
        if end.is_bad:
            failures.append(asked.failure(number, end.kind, end.text))
        if number % 100 == 0:
            asked.tell(number, cases.stop)
    figures = [Figure("seed files", len(seeds)), Figure("slowest case", slowest_s, "CPU s")]
    return asked.row(cases=ends.total(), ends=ends, figures=figures, failures=failures)


def given_seeds(models: Sequence[Path], format: str) -> list[bytes]:
    """Return the caller's files of a format that are small enough."""
    paths = [path for path in models if path.suffix == f".{format}"]
    return [p.read_bytes() for p in paths if p.stat().st_size <= LARGEST_SEED]


PART = StressPart(
    "damaged .trm, .onnx and .tflite files, in child processes with limits",
    tuple(SEEDS),
    "cases",
    {"": {"change": 1_000, "night": 100_000, "release": 1_000_000}},
    run,
)
