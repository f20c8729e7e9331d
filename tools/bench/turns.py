"""Compare programs of one model that take turns, for `bench --modes` and `--singles`.

How they are timed: engine/runtime/models/autotune.py.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from trireme.backend.device import HOST, Clock, Device, Progress, no_progress
from trireme.cost.calibration import Calibration
from trireme.ir.bind_shapes import shape_advice
from trireme.runtime.models.autotune import Timed, time_programs
from trireme.runtime.session.compare import gap
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import RunError
from trireme.tools.feeds import make_feeds
from trireme.tools.parsed import session_arguments


@dataclass(frozen=True)
class Match:
    """The subject of a comparison: the session with its arguments, its inputs, and how it is timed.

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
    progress: Progress = no_progress

    @property
    def shared(self) -> list[Device]:
        """The open devices, for further sessions; each session keeps states of its own."""
        return [device for name, device in self.first.devices.items() if name != HOST]


@dataclass
class Entrant(Timed[Session]):
    """A program of a session, and its outputs."""

    outputs: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def ready(cls, session: Session, feeds: Mapping[str, Array]) -> Entrant:
        """Return an entrant that has run often enough to have chosen its mode."""
        outputs = session.run(feeds)
        for _ in range(2):
            session.run(feeds)
        session.profile(feeds, runs=1, warmup=0)  # which also has the mode chosen
        return cls(session, outputs=outputs)

    def apart(self, other: Entrant) -> float:
        """Return the largest difference of an output from another's, 0 when bit-identical."""
        return max(_apart(array, other.outputs[name]) for name, array in self.outputs.items())


def _apart(ours: Array, theirs: Array) -> float:
    same = ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
    return 0.0 if same else float(np.float64(gap(ours, theirs).largest))


def time_match(entrants: Sequence[Entrant], match: Match) -> Clock:
    """Time every entrant in every round; return which clock counts."""
    progress = partial(match.progress, f"{match.label}: round")
    return time_programs(entrants, match.feeds, match.rounds, match.turn_s, match.seed, progress)


def matches(
    options: argparse.Namespace, counts: Sequence[int], progress: Progress
) -> Iterator[Match]:
    """Yield what the options ask to compare, for each model with each number of threads."""
    for model, threads in itertools.product(options.models, counts):
        with _match(options, model, threads, progress) as match:
            yield match


@contextmanager
def _match(
    options: argparse.Namespace, model: str, threads: int, progress: Progress
) -> Iterator[Match]:
    given = session_arguments(argparse.Namespace(**{**vars(options), "threads": threads}))
    turn_s = options.round_s or options.duration / options.rounds
    label = f"{Path(model).name}, {options.devices}, {threads} threads"
    with Session(model, **given) as first:
        if first.has_open_shapes:
            raise RunError(
                f"{model} has no one program whose modes or devices could be compared: its shapes "
                "are open",
                fix=shape_advice(first.inputs) or "bench without --modes and --singles",
            )
        feeds = make_feeds(options, first.inputs)
        yield Match(first, feeds, label, options.rounds, turn_s, options.seed, progress=progress)


def text_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table whose columns are as wide as what is in them."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]
