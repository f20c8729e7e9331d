"""Placements as a linear programme without stage labels: paths say how many tasks there must be.

Node i is on device d to the share x[i][d]; on each edge, shares flow from the maker's devices to
the reader's. A copy of a value to a memory space is at least the flow that any reader of it takes
there. And a device has as many tasks as any path enters it: a run of a path's nodes on one device
is a task apart from the next such run, for a task is convex. Of two devices that count is all but
exact, of more the tasks of different paths may not fit one order; so the least price of the
programme is a bound, and its shares are a placement to be scored. They are 0 and 1 as they come on
nearly all graphs; where they are not, they are made so by branching.
Source: the flow form of the local polytope (Wainwright and Jordan, "Graphical models, exponential
families, and variational inference", 2008), with tasks counted along paths. Solved by SCIP
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trireme.placement.prices import INFINITE, Prices
from trireme.placement.problem import CALLER, Assignment, Problem

_SCALE = 100.0
"""What the known price is scaled to, so that tolerances are relative."""
_MARGIN = 1e-5
"""Share of the known price that the solver's tolerance may have put the bound too high."""

Way = tuple[int, int]


@dataclass(frozen=True)
class Relaxed:
    """What the programme says: no placement has a lower price than `bound`; this one is near."""

    bound: float
    assigned: Assignment


def relax(problem: Problem, prices: Prices, known: float, limit_s: float) -> Relaxed | None:
    """Return what the programme says of a problem with a placement of price `known`; None if
    nothing was found within the limit.
    """
    model = PathModel(problem)
    scale = _SCALE / known
    run = model.solve(model.price(prices, scale), limit_s)
    if run is None:
        return None
    return Relaxed(run.best_objective_bound / scale - _MARGIN * known, model.assigned(run))


def relax_makespan(problem: Problem, known: float, limit_s: float) -> Relaxed | None:
    """Return what the programme says of the makespan, `known` that of a placement; None if nothing
    was found within the limit.

    The run ends no sooner than the work of any resource group, the copies of any way, or any path.
    """
    model = PathModel(problem)
    scale = _SCALE / known
    run = model.solve(model.end(scale), limit_s)
    if run is None:
        return None
    return Relaxed(run.best_objective_bound / scale - _MARGIN * known, model.assigned(run))


class PathModel:
    """The shares of a problem, and what follows from them.

    on[i][d]: the share of node i on device d
    flow[j, i][d, e]: the share of the edge from j to i that goes from d to e
    copied: (value, way between spaces) -> shares whose sum says whether it is copied so
    tasks[d]: how many tasks the device has at least
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.builder = importlib.import_module("ortools.linear_solver.python.model_builder")
        self.model = self.builder.Model()
        self.on: list[dict[int, Any]] = []
        self.flow: dict[tuple[int, int], dict[tuple[int, int], Any]] = {}
        for i, able in enumerate(problem.able):
            self.on.append({d: self.model.new_bool_var("") for d in able})
            self.model.add(sum(self.on[i].values()) == 1)
            for j in problem.before[i]:
                self.flow[j, i] = self._flow(self.on[j], self.on[i])
        self.copied = dict(self._copies())
        self.tasks = [self._tasks(d) for d in problem.devices]

    def _share(self) -> Any:
        return self.model.new_num_var(0.0, 1.0, "")

    def _flow(self, one: Mapping[int, Any], two: Mapping[int, Any]) -> dict[tuple[int, int], Any]:
        if len(one) == 1 or len(two) == 1:
            return {(d, e): one[d] if len(two) == 1 else two[e] for d in one for e in two}
        flow = {(d, e): self._share() for d in one for e in two}
        for d in one:
            self.model.add(sum(flow[d, e] for e in two) == one[d])
        for e in two:
            self.model.add(sum(flow[d, e] for d in one) == two[e])
        return flow

    def _copies(self) -> Iterator[tuple[tuple[int, Way], list[Any]]]:
        for maker, reads in self.problem.readers.items():
            taken: dict[tuple[int, Way], list[list[Any]]] = {}
            for value, reader in reads:
                for way, shares in self._ways(maker, reader).items():
                    taken.setdefault((value, way), []).append(shares)
            for key, rows in taken.items():
                copied = rows[0] if len(rows) == 1 else [self._share()]
                for shares in rows if len(rows) > 1 else ():
                    self.model.add(copied[0] >= sum(shares))
                yield key, copied

    def _ways(self, maker: int, reader: int) -> dict[Way, list[Any]]:
        """Return, for each way that a read value may go, the shares of the edge that do."""
        space = self.problem.space
        if maker == CALLER:
            ends = [((0, space[e]), share) for e, share in self._variables_of(reader)]
        elif reader == CALLER:
            ends = [((space[d], 0), share) for d, share in self._variables_of(maker)]
        else:
            flow = self.flow[maker, reader]
            ends = [((space[d], space[e]), share) for (d, e), share in flow.items()]
        ways: dict[Way, list[Any]] = {}
        for way, share in ends:
            if way[0] != way[1]:
                ways.setdefault(way, []).append(share)
        return ways

    def _variables_of(self, i: int) -> Sequence[tuple[int, Any]]:
        return list(self.on[i].items()) if i != CALLER else []

    def _tasks(self, device: int) -> Any:
        """Return a count no less than how often any path enters the device."""
        problem, model = self.problem, self.model
        most = float(problem.n)
        count = model.new_num_var(0.0, most, "")
        entered: list[Any] = []
        for i, row in enumerate(self.on):
            entered.append(model.new_num_var(0.0, most, ""))
            share = row.get(device)
            if share is not None and not problem.before[i]:
                model.add(entered[i] >= share)
            for j in problem.before[i]:
                stays = self.flow[j, i].get((device, device))
                enters = 0 if share is None else share if stays is None else share - stays
                model.add(entered[i] >= entered[j] + enters)
            if not problem.next[i]:
                model.add(count >= entered[i])
        return count

    def price(self, prices: Prices, scale: float) -> Any:
        """Return the total price of everything, times the scale."""
        nbytes = self.problem.nbytes
        terms = [
            (prices.own[i][d], share) for i, row in enumerate(self.on) for d, share in row.items()
        ]
        terms += [
            (prices.copy_price(nbytes[value], *way), share)
            for (value, way), shares in self.copied.items()
            for share in shares
        ]
        terms += list(zip(prices.launch, self.tasks, strict=True))
        return sum(price * scale * share for price, share in terms if 0 < price < INFINITE)

    def end(self, scale: float) -> Any:
        """Return the end of a run: no less than any load or path, in seconds times the scale."""
        problem, model = self.problem, self.model
        end = model.new_num_var(0.0, 2 * _SCALE, "")
        for load in self._loads(scale).values():
            model.add(end >= sum(load))
        over: list[Any] = []
        for i in range(problem.n):
            over.append(model.new_num_var(0.0, 2 * _SCALE, ""))
            for when in self._over(i, over, scale):
                model.add(over[i] >= when)
            model.add(end >= over[i])
        for value, maker in problem.outputs:
            copy = [
                share * (problem.copy_s(value, problem.space[d], 0) * scale)
                for d, share in self.on[maker].items()
            ]
            model.add(end >= over[maker] + sum(copy))
        return end

    def _loads(self, scale: float) -> dict[tuple[str, int], list[Any]]:
        """Return what each resource group and each way between spaces is busy with."""
        problem = self.problem
        loads: dict[tuple[str, int], list[Any]] = {}
        for d, tasks in enumerate(self.tasks):
            load = loads.setdefault(("group", problem.group[d]), [])
            load.append(tasks * (problem.machine.launch_s[d] * scale))
            load += [
                row[d] * (problem.own_s(i, d) * scale) for i, row in enumerate(self.on) if d in row
            ]
        for (value, (s, t)), shares in self.copied.items():
            price = problem.copy_s(value, s, t) * scale
            load = loads.setdefault(("way", s * problem.spaces + t), [])
            load += [share * price for share in shares]
        return loads

    def _over(self, i: int, over: Sequence[Any], scale: float) -> Iterator[Any]:
        """Yield times before which a node is not over: what it reads, copied, a launch, its own."""
        problem, row = self.problem, self.on[i]
        space, launch_s = problem.space, problem.machine.launch_s
        own = sum(share * (problem.own_s(i, d) * scale) for d, share in row.items())
        given = [value for value, maker in problem.inputs[i] if maker == CALLER]
        yield own + sum(
            share * ((launch_s[d] + self._copy_s(given, 0, space[d])) * scale)
            for d, share in row.items()
            if given or not problem.before[i]
        )
        for j in problem.before[i]:
            values = [value for value, maker in problem.inputs[i] if maker == j]
            crossing = [
                share * ((launch_s[e] + self._copy_s(values, space[d], space[e])) * scale)
                for (d, e), share in self.flow[j, i].items()
                if d != e
            ]
            yield over[j] + own + sum(crossing)

    def _copy_s(self, values: Sequence[int], source: int, target: int) -> float:
        """Return the seconds of the longest copy of some values."""
        return max((self.problem.copy_s(v, source, target) for v in values), default=0.0)

    def solve(self, least: Any, limit_s: float) -> Any:
        """Return the solver after it looked for the least of an expression; None if in vain."""
        self.model.minimize(least)
        run = self.builder.Solver("scip")
        run.set_time_limit_in_seconds(limit_s)
        found = (self.builder.SolveStatus.OPTIMAL, self.builder.SolveStatus.FEASIBLE)
        return run if run.solve(self.model) in found else None

    def assigned(self, run: Any) -> Assignment:
        """Return each node where the solver puts most of it."""
        return tuple(max(row, key=lambda d: run.value(row[d])) for row in self.on)
