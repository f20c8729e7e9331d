"""The rows of a call's table of steps, and how a call of these rows is run."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Generic, Protocol, TypeVar

from trireme.devices.cpu.runtime import native as runtime
from trireme.support.records import dataclass

POLL_S = 2e-3
"""Estimated seconds after which native code looks at the clock."""
WAKE_S = 1e-4
"""Work for workers, in estimated seconds, that makes waking them worth while."""
TRY_S = 4e-3
"""Work for workers below which doing it alone is tried too."""


class TimedStep(Protocol):
    """What a row asks of a step."""

    @property
    def chunks(self) -> int:
        """How often its kernel is called."""

    @property
    def seconds(self) -> float:
        """An estimate for one thread."""

    @property
    def reads(self) -> Sized:
        """What it reads; a pointer each."""

    @property
    def writes(self) -> Sized:
        """What it writes; a pointer each."""


AnyStep = TypeVar("AnyStep", bound=TimedStep)


@dataclass(frozen=True)
class StepRow(Generic[AnyStep]):
    """A row of the table of a call, which does a step or, of very many chunks, a part of one.

    number: of the step; words: where its pointers begin in bytes, its chunks, the first chunk's
        number, whether to look at the clock
    """

    step: AnyStep
    number: int
    words: tuple[int, int, int, bool]


def step_rows(steps: Sequence[AnyStep]) -> list[StepRow[AnyStep]]:
    """Return the rows of the table of steps that run one after another."""
    rows: list[StepRow[AnyStep]] = []
    at, since_poll = 0, 0.0
    for number, step in enumerate(steps):
        since_poll += step.seconds
        polls = since_poll > POLL_S
        since_poll = 0.0 if polls else since_poll
        for base in range(0, step.chunks, runtime.MOST_CHUNKS):
            chunks = min(step.chunks - base, runtime.MOST_CHUNKS)
            rows.append(StepRow(step, number, (at, chunks, base, polls)))
        at += 8 * (len(step.reads) + len(step.writes))
    return rows


def call_flags(rows: Sequence[StepRow[AnyStep]]) -> dict[str, bool]:
    """Return how a call of these rows is run: arguments of PoolCall."""
    shared = [row.step.seconds for row in rows if row.step.chunks > 1]
    return {
        "shared": bool(shared),
        "wakes": sum(shared) > WAKE_S,
        "tries": sum(shared) < TRY_S,
        "polls": any(row.words[-1] for row in rows),
    }
