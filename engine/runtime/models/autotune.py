"""Placements tried on this machine: programs of one model take turns, and the fastest is kept.

They run in fresh random order each round, and what counts is the ratio of best times within a
round, for a machine has phases. Where a device is simulated, wall time is the simulator's. Then
virtual times of the measured and modelled tasks are compared. `Session(measure=True)` tries
placements here; `bench --modes` and `--singles` time theirs by the same turns.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from trireme.backend.device import Clock, Progress, no_progress
from trireme.cost.model import CostModel
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Value
from trireme.placement.objective import Objective
from trireme.placement.options import PlacementOptions
from trireme.placement.placement import Placement, Tried
from trireme.placement.singles import alone_on, solve_singles
from trireme.placement.solve import solve_several
from trireme.plan.plan import Plan
from trireme.profiling.profile import Profile
from trireme.runtime.loop.executors import Executors
from trireme.runtime.program.feeds import random_feeds
from trireme.support.dtypes import Array
from trireme.support.errors import PlacementError, TriremeError
from trireme.support.records import dataclass
from trireme.support.timing import RepeatLimits, interleave, time_calls
from trireme.support.units import time_text

LEAST_CALLS = 3
"""Calls of a turn that is timed by the wall clock, at least."""
WATCHED_CALLS = 20
"""Calls of a turn whose tasks are watched, for virtual time."""
ROUNDS = 7
"""Rounds in which placements are tried."""
TURN_S = 0.02
"""The least seconds of a turn."""
LIMIT_S = 2.0
"""Seconds after which no further round begins."""
LEAST_GAIN = 0.01
"""A placement is faster than the first if it takes less by more than this share of the time."""
MIXTURE_GAIN = 0.03
"""A mixture of devices is faster than one device if it takes less by more than this share."""
OFTEN = 0.75
"""The share of the rounds in which the mixture must be faster."""
TIMED = ("makespan", "serial")
"""Objectives that are the time of a run."""


class Opened(Protocol):
    """The timed object: a Session."""

    @property
    def runs(self) -> Executors:
        """What runs the program in the chosen mode."""

    @property
    def inputs(self) -> list[Value]:
        """What to feed."""

    @property
    def plan(self) -> Plan:
        """The tasks, and what they wait for."""

    @property
    def placement(self) -> Placement:
        """Where every node runs."""

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs by name."""

    def profile(self, feeds: Mapping[str, Any], runs: int = 20, warmup: int = 2) -> Profile:
        """Return what `runs` runs took, after `warmup` runs that are not counted."""

    def close(self) -> None:
        """Release the resources."""


S = TypeVar("S", bound=Opened)


@dataclass
class Timed(Generic[S]):
    """A program, and the best times of each round."""

    session: S
    wall_s: list[float] = field(default_factory=list)
    virtual_s: list[float] = field(default_factory=list)

    @property
    def is_simulated(self) -> bool:
        """Whether one of its devices is simulated."""
        specs, tasks = self.session.placement.specs, self.session.plan.tasks
        return any(not t.is_copy and specs[t.device].clock == "virtual" for t in tasks)

    def turn(self, feeds: Mapping[str, Array], turn_s: float, clock: Clock) -> tuple[float, float]:
        """Return the best wall time of some runs, and what the described machine would take.

        That is the virtual time of watched runs where a device is simulated, and else the wall
        time: all devices are there, and watching takes time of its own.
        turn_s: the least seconds of the runs; 0 for as few runs as can be
        clock: which of the two counts
        """
        if self.is_simulated:
            runs = WATCHED_CALLS if turn_s and clock == "virtual" else 1
            profile = self.session.profile(feeds, runs=runs, warmup=0)
            return min(profile.wall_s), profile.best_virtual_s
        repeat = RepeatLimits(turn_s, least=LEAST_CALLS if turn_s else 1)
        best_s = min(time_calls(lambda: self.session.run(feeds), repeat))
        return best_s, best_s

    def ratio(self, other: Timed[S], clock: Clock) -> float:
        """Return this one's time over the other's, the median over the rounds."""
        rounds = zip(self.seconds(clock), other.seconds(clock), strict=True)
        return statistics.median(a / b for a, b in rounds)

    def seconds(self, clock: Clock) -> list[float]:
        """Return the best time of each round, by a clock."""
        return self.virtual_s if clock == "virtual" else self.wall_s


def time_programs(
    entrants: Sequence[Timed[S]],
    feeds: Mapping[str, Array],
    rounds: int,
    turn_s: float,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    limit_s: float = float("inf"),
) -> Clock:
    """Time every entrant in every round; `timing.interleave` has the rounds and their limit.

    Returns which clock counts: virtual time for all of them, where one is simulated.
    """
    clock: Clock = "virtual" if any(one.is_simulated for one in entrants) else "wall"
    for turn in interleave(entrants, rounds, random.Random(seed), progress, limit_s):
        entrant = turn.entrant
        wall_s, virtual_s = entrant.turn(feeds, turn_s if turn.in_time else 0.0, clock)
        if turn.counts:
            entrant.wall_s.append(wall_s)
            entrant.virtual_s.append(virtual_s)
    return clock


def check_free(options: PlacementOptions) -> None:
    """See that there are placements to choose from by measuring them.

    Errors: PlacementError, if the options leave no placement, or the objective is no time
    """
    if not options.is_free:
        what = "a placement is held" if options.fixed is not None else "the shards are asked for"
        raise PlacementError(f"nothing is left to measure: {what}", fix="measure without it")
    if options.goal not in TIMED:
        raise PlacementError(
            f"a run's time says nothing of {options.goal}",
            fix="measure with objective makespan",
        )


def autotune(
    first: Placement,
    graph: Graph,
    costs: CostModel,
    open_one: Callable[[Placement], Opened],
    progress: Progress = no_progress,
) -> Placement:
    """Return the fastest of a placement, two others and each device alone, as measured here.

    `measured` says what each took; the first is kept unless another gains LEAST_GAIN. A mixture of
    devices must gain MIXTURE_GAIN over the fastest device alone, and once more in further rounds of
    the two. Inputs are random, the seed always the same.
    graph: the graph of the placement, before shards
    open_one: opens a session that holds a placement
    Errors: as `place`
    """
    objective = cast(Objective, first.score.objective)
    if any(uses_state(node) for node in graph.nodes):
        return replace(first, measured=(Tried("not measured: a trial would write states"),))
    several = solve_several(graph, costs, objective)
    alone = solve_singles(graph, costs, objective).values()
    placements = distinct([first, *several, *alone])
    if len(placements) == 1:
        return replace(first, measured=(Tried("not measured: there is no other placement to try"),))
    return _fastest(placements, open_one, progress)


def _fastest(
    placements: Sequence[Placement], open_one: Callable[[Placement], Opened], progress: Progress
) -> Placement:
    """Return the placement that ran fastest, which tells what all of them took."""
    with ExitStack() as stack:
        entrants: list[Timed[Opened]] = []
        lines: list[Tried] = []
        tried: list[Placement] = []
        for number, placement in enumerate(placements):
            progress("preparing placements to try", number, len(placements))
            try:
                session = open_one(placement)
                stack.callback(session.close)
                feeds = random_feeds(session.inputs)
                session.profile(feeds, runs=1, warmup=0)  # which also has the mode chosen
            except TriremeError as error:
                lines.append(Tried(f"not measured: {_counts(placement)}: {error}"))
                continue
            entrants.append(Timed(session))
            tried.append(placement)
        if not entrants:
            return replace(placements[0], measured=tuple(lines))

        rounds = partial(progress, "trying placements")
        clock = time_programs(entrants, feeds, ROUNDS, TURN_S, progress=rounds, limit_s=LIMIT_S)
        best = _best(entrants, feeds, clock)
    rows = [
        Tried(
            f"measured: {_counts(placement)}: predicted {time_text(placement.makespan_s)}, "
            f"{clock} {time_text(statistics.median(one.seconds(clock)))}",
            kept=i == best,
        )
        for i, (placement, one) in enumerate(zip(tried, entrants, strict=True))
    ]
    return _kept(tried[best], placements, (*rows, *lines))


def _best(entrants: Sequence[Timed[Opened]], feeds: Mapping[str, Array], clock: Clock) -> int:
    """Return which program is the fastest, after a further match where that is a mixture."""
    alone = [i for i, one in enumerate(entrants) if alone_on(one.session.placement)]
    mixed = [i for i in range(len(entrants)) if i not in alone]
    if not alone or not mixed:
        return _fastest_of(range(len(entrants)), entrants, clock)
    single, mixture = (_fastest_of(some, entrants, clock) for some in (alone, mixed))
    if not _significantly_faster(entrants[mixture], entrants[single], clock):
        return single
    one, other = Timed(entrants[mixture].session), Timed(entrants[single].session)
    time_programs([one, other], feeds, ROUNDS, TURN_S, seed=1, limit_s=LIMIT_S)
    return mixture if _significantly_faster(one, other, clock) else single


def _fastest_of(some: Iterable[int], entrants: Sequence[Timed[Opened]], clock: Clock) -> int:
    """Return the fastest of some programs: the first unless another gains LEAST_GAIN over it."""
    first, *others = some
    gains = {i: entrants[i].ratio(entrants[first], clock) for i in others}
    best = min(gains, key=lambda i: gains[i], default=first)
    return best if gains.get(best, 1.0) < 1 - LEAST_GAIN else first


def _significantly_faster(mixture: Timed[S], single: Timed[S], clock: Clock) -> bool:
    rounds = list(zip(mixture.seconds(clock), single.seconds(clock), strict=True))
    often = sum(a < b for a, b in rounds) >= OFTEN * len(rounds)
    return often and mixture.ratio(single, clock) < 1 - MIXTURE_GAIN


def _kept(best: Placement, placements: Sequence[Placement], lines: tuple[Tried, ...]) -> Placement:
    """Return a placement with what the first knows: the bound, the candidates, who was tried."""
    first = placements[0]
    if best is first:
        return replace(first, measured=lines, near_ties="")
    bound = max((best.score, first.score), key=lambda score: score.lower_bound)
    score = replace(best.score, lower_bound=bound.lower_bound, bound_from=bound.bound_from)
    used = {name for one in placements for name in one.specs if one.nodes_on(name)}
    unused = {
        name: "what uses it was slower when measured" if name in used else why
        for name, why in best.unused.items()
    }
    return replace(
        best,
        score=score,
        candidates=first.candidates,
        unused=unused,
        measured=lines,
        near_ties="",
    )


def distinct(placements: Iterable[Placement]) -> list[Placement]:
    """Return the placements without those that are the same as one before."""
    found: list[Placement] = []
    for placement in placements:
        if not any(is_same(placement, other) for other in found):
            found.append(placement)
    return found


def is_same(one: Placement, other: Placement) -> bool:
    """Whether two placements of one model run the same tasks in the same places."""
    return (
        one.device_of == other.device_of
        and one.stage_of == other.stage_of
        and len(one.source.nodes) == len(other.source.nodes)
    )


def _counts(placement: Placement) -> str:
    counts = [f"{name} {len(placement.nodes_on(name))}" for name in placement.specs]
    return f"{', '.join(counts)} nodes in {placement.tasks} tasks"
