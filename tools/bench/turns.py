"""Programs of one model that take turns in this process: what each takes beside the others.

They run in fresh random order each round, and what counts is the ratio of best times within a
round, as in the rest of `trireme bench`. Where a device is simulated, wall time is the simulator's,
and the ratio is that of virtual times.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trireme.calibration import Calibration
from trireme.device import HOST, Clock, Device
from trireme.dtypes import Array
from trireme.running.per_node import gap
from trireme.session import Session
from trireme.tools.options import make_feeds, session_arguments

LEAST_CALLS, WATCHED_CALLS = 3, 9
Told = Callable[..., None]


@dataclass(frozen=True)
class Match:
    """What is compared: the session as it was asked for, its inputs, and how it is timed.

    label: the model, its devices and threads
    rounds, turn_s: turns of each program, and the least seconds of each
    calibration: what placements are priced by; this user's when None
    """

    first: Session
    feeds: Mapping[str, Array]
    label: str
    rounds: int
    turn_s: float
    seed: int = 0
    calibration: Calibration | Path | None = None
    told: Told = lambda *what: None

    @property
    def shared(self) -> list[Device]:
        """The open devices, for further sessions; each session keeps states of its own."""
        return [device for name, device in self.first.devices.items() if name != HOST]


@dataclass
class Entrant:
    """A program, its outputs, and the best times of each round."""

    session: Session
    outputs: Mapping[str, Array]
    wall_s: list[float] = field(default_factory=list)
    virtual_s: list[float] = field(default_factory=list)

    @classmethod
    def ready(cls, session: Session, feeds: Mapping[str, Array]) -> Entrant:
        """Return an entrant that has run often enough to have chosen its mode."""
        outputs = session.run(feeds)
        for _ in range(2):
            session.run(feeds)
        session.runs.settle()
        return cls(session, outputs)

    @property
    def is_simulated(self) -> bool:
        """Whether a device that it runs on is simulated."""
        specs, tasks = self.session.placement.specs, self.session.plan.tasks
        return any(not t.is_copy and specs[t.device].clock == "virtual" for t in tasks)

    def turn(self, feeds: Mapping[str, Array], turn_s: float, clock: Clock) -> tuple[float, float]:
        """Return the best wall time of some runs, and the virtual time of some that are watched.

        clock: which of the two counts
        """
        if clock == "virtual":
            runs = LEAST_CALLS if self.is_simulated else WATCHED_CALLS
            profile = self.session.profile(feeds, runs=runs, warmup=0)
            return min(profile.wall_s), profile.virtual_s
        best_s, calls, end = float("inf"), 0, time.perf_counter() + turn_s
        while calls < LEAST_CALLS or time.perf_counter() < end:
            start = time.perf_counter()
            self.session.run(feeds)
            best_s = min(best_s, time.perf_counter() - start)
            calls += 1
        return best_s, self.session.profile(feeds, runs=1, warmup=0).virtual_s

    def ratio(self, other: Entrant, clock: Clock) -> float:
        """Return this one's time over the other's, the median over the rounds."""
        rounds = zip(self.seconds(clock), other.seconds(clock), strict=True)
        return statistics.median(a / b for a, b in rounds)

    def seconds(self, clock: Clock) -> list[float]:
        """Return the best time of each round, by a clock."""
        return self.virtual_s if clock == "virtual" else self.wall_s

    def apart(self, other: Entrant) -> float:
        """Return the largest difference of an output from another's, 0 when bit-identical."""
        return max(_apart(array, other.outputs[name]) for name, array in self.outputs.items())


def _apart(ours: Array, theirs: Array) -> float:
    same = ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return 0.0 if same else float(np.float64(gap(ours, theirs).largest))


def take_turns(entrants: Sequence[Entrant], match: Match) -> Clock:
    """Time every entrant in every round; the first round warms up and is not kept.

    Returns which clock counts: virtual time for all of them, where one is simulated.
    """
    clock: Clock = "virtual" if any(one.is_simulated for one in entrants) else "wall"
    order = random.Random(match.seed)
    for number in range(match.rounds + 1):
        match.told(f"{match.label}: round", number, match.rounds)
        turns = list(entrants)
        order.shuffle(turns)
        for entrant in turns:
            wall_s, virtual_s = entrant.turn(match.feeds, match.turn_s, clock)
            if number:
                entrant.wall_s.append(wall_s)
                entrant.virtual_s.append(virtual_s)
    return clock


def matches(options: argparse.Namespace, counts: Sequence[int], told: Told) -> Iterator[Match]:
    """Yield what the options ask to compare, for each model with each number of threads."""
    for model, threads in itertools.product(options.models, counts):
        with _match(options, model, threads, told) as match:
            yield match


@contextmanager
def _match(options: argparse.Namespace, model: str, threads: int, told: Told) -> Iterator[Match]:
    given = session_arguments(argparse.Namespace(**{**vars(options), "threads": threads}))
    given["calibration"] = Path(given["calibration"])
    turn_s = options.round_s or options.duration / options.rounds
    label = f"{Path(model).name}, {options.devices}, {threads} threads"
    with Session(model, **given) as first:
        feeds = make_feeds(options, first.inputs)
        yield Match(
            first, feeds, label, options.rounds, turn_s, options.seed, given["calibration"], told
        )


def text_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as what is in them."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
