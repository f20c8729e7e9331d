"""Sum what a placement needs of each memory space: arena, weights, scratch and code.

The arena holds the values that tasks exchange, scratch what lives and dies inside one task, beyond
the memory on the device's chip. Weights and code stay from run to run. Where a device can fetch
weights over its link, those that find no room are streamed in every run: the last in task order,
each before its node runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from trireme.backend.arena import LiveRange, MemoryUse, pack
from trireme.backend.device import added_weights
from trireme.placement.problem import MARGIN, Problem
from trireme.placement.stages import Tasks


def memory_uses(
    problem: Problem, assigned: Sequence[int], tasks: Tasks, packed: bool = False
) -> list[MemoryUse]:
    """Return what some tasks need of each memory space, in the order of the spaces.

    packed: pack the arenas, which takes longer, instead of allowing for it by MARGIN
    """
    ranges, uses = live_ranges(problem, assigned, tasks), []
    weights, code = _resident(problem, assigned, tasks)
    scratch = [0] * problem.spaces
    for d, nbytes in enumerate(scratch_bytes(problem, assigned, tasks)):
        scratch[problem.space[d]] += nbytes
    for s, memory in enumerate(problem.machine.spaces):
        limit = problem.machine.budget.get(memory, 0)
        arena = math.ceil(peak_bytes(ranges[s], problem.nbytes, len(tasks)) * MARGIN)
        streams = bool(limit) and memory in problem.machine.streams
        over = arena + scratch[s] + code[s] + weights[s] - limit
        streamed = min(weights[s], max(over, 0)) if streams else 0
        if packed:
            arena = _packed(problem, ranges[s])
        uses.append(
            MemoryUse(
                memory,
                limit,
                arena,
                weights[s],
                scratch[s],
                code[s],
                streamed,
                streamed * problem.links[0][s][1],
                streams,
            )
        )
    return uses


def streamed_s(problem: Problem, assigned: Sequence[int], tasks: Tasks) -> dict[int, float]:
    """Return, by node, the seconds in which the weights it lacks are fetched in every run."""
    if not problem.may_stream:
        return {}
    uses = memory_uses(problem, assigned, tasks)
    stay = [use.weights - use.streamed for use in uses]
    found: dict[int, float] = {}
    for device, members in tasks:
        s = problem.space[device]
        if not uses[s].streamed:
            continue
        for i, weights in zip(members, _weights(problem, device, members), strict=True):
            missing = max(weights - stay[s], 0)
            stay[s] = max(stay[s] - weights, 0)
            if missing:
                found[i] = missing * problem.links[0][s][1]
    return found


def _resident(
    problem: Problem, assigned: Sequence[int], tasks: Tasks
) -> tuple[list[int], list[int]]:
    """Return the bytes of weights, and of code, in each memory space."""
    weights, code = [0] * problem.spaces, [0] * problem.spaces
    if problem.resident:
        for i, device in enumerate(assigned):
            code[problem.space[device]] += problem.resident[i][device].code
        for device, members in tasks:
            weights[problem.space[device]] += sum(_weights(problem, device, members))
    return weights, code


def _weights(problem: Problem, device: int, members: Sequence[int]) -> Iterator[int]:
    """Yield the bytes of weights that each node adds to its task, in order."""
    return added_weights(problem.resident[i][device] for i in members)


def scratch_bytes(problem: Problem, assigned: Sequence[int], tasks: Tasks) -> list[int]:
    """Return, by device, the most that lives at once inside a task beyond the chip's memory.

    Nodes run in graph order; a value inside lives from its maker to its last reader.
    """
    most = [0] * problem.k
    if not problem.machine.budget:
        return most
    sram = problem.machine.sram or (0,) * problem.k
    for device, members in tasks:
        if problem.machine.memory[device] not in problem.machine.budget or len(members) < 2:
            continue
        at = {i: step for step, i in enumerate(members)}
        inside = {
            value: (at[i], max(at[r] for r in readers))
            for i in members
            for value, readers in problem.made(i)
            if all(r in at for r in readers)
        }
        peak = peak_bytes(inside, problem.nbytes, len(members))
        most[device] = max(most[device], peak - sram[device])
    return most


def live_ranges(
    problem: Problem, assigned: Sequence[int], tasks: Tasks
) -> list[dict[int, list[int]]]:
    """Return, for each memory space, the first and last task in which each value lives there.

    Only values that tasks exchange: what lives and dies inside a task is scratch.
    """
    task_of = {i: t for t, (_, members) in enumerate(tasks) for i in members}
    spans: list[dict[int, list[int]]] = [{} for _ in range(problem.spaces)]
    for maker, reads in problem.readers.items():
        made = task_of[maker] if maker >= 0 else 0
        home = problem.space[assigned[maker]] if maker >= 0 else 0
        for value, reader in reads:
            used = task_of[reader] if reader >= 0 else len(tasks)
            where = problem.space[assigned[reader]] if reader >= 0 else 0
            if used == made and maker >= 0:
                continue
            for space, until in ((home, made if where != home else used), (where, used)):
                span = spans[space].setdefault(value, [made, until])
                span[1] = max(span[1], until)
    return spans


def peak_bytes(ranges: Mapping[int, Sequence[int]], nbytes: Mapping[int, int], steps: int) -> int:
    """Return the most bytes alive at once."""
    changes = [0] * (steps + 2)
    for value, (first, last) in ranges.items():
        changes[first] += nbytes[value]
        changes[last + 1] -= nbytes[value]
    return max(accumulate(changes), default=0)


def _packed(problem: Problem, rows: Mapping[int, Sequence[int]]) -> int:
    """Return the bytes of an arena for some live ranges."""
    nbytes = problem.nbytes
    return pack([LiveRange(v, a, b, nbytes[v]) for v, (a, b) in rows.items()]).nbytes
