"""What an assignment is predicted to take: seconds of a run in virtual time, and its parts.

Tasks and copies run in the order of the tasks: devices of a resource group take turns, a value is
copied once to each memory space that reads it, as soon as it is made; copies take turns on their
way and overlap with compute. A task that follows only tasks of its own device is launched while
they run, if the device starts one after another by itself: its launch is hidden. Weights that are
streamed hold their device before the node that needs them. `plan` makes the same tasks for real,
`virtual_time` the same run of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trireme.placement.budget import streamed_s
from trireme.placement.problem import CALLER, Problem
from trireme.placement.stages import Tasks


def makespan_s(
    problem: Problem,
    assigned: Sequence[int],
    tasks: Tasks,
    most_s: float = math.inf,
    tails: Sequence[Sequence[float]] = (),
) -> float:
    """Return the predicted seconds of a run; every node must have an estimate where it is.

    The caller is node -1, the last in every list: over at 0, in host memory.
    most_s: infinity is returned as soon as it is seen that the run takes longer than this
    tails: the least time from the end of each node on each device to that of the run, for most_s
    """
    group, work_s, launch_s = problem.group, problem.work_s, problem.machine.launch_s
    issue_s, width, after = problem.machine.issue_s, problem.spaces, problem.after
    inputs, space, streaming = problem.inputs, problem.space, {}
    if problem.may_stream:
        streaming = streamed_s(problem, assigned, tasks)
    where = [space[d] for d in assigned]
    where.append(0)
    finish = [0.0] * (problem.n + 1)
    free = [0.0] * problem.groups
    link = [0.0] * (width * width)
    arrival: dict[int, float] = {}
    last = 0.0
    _issue(problem, where, (CALLER,), 0, 0.0, arrival, link)
    for device, members in tasks:
        here, ready, work = space[device], free[group[device]], launch_s[device]
        if streaming:
            work += sum([streaming.get(i, 0.0) for i in members])
        own = work_s[device]
        for i in members:
            work += own[i]
            for value, maker in inputs[i]:
                made = finish[maker] if where[maker] == here else arrival[value * width + here]
                if made > ready:
                    ready = made
            for j in after[i]:
                if finish[j] > ready:
                    ready = finish[j]
        issue = issue_s[device] if issue_s else None
        if issue is not None and follows(problem, assigned, device, members):
            work = max(work - launch_s[device], issue)
        end = free[group[device]] = ready + work
        if end > last:
            last = end
        if tails and end + tails[members[-1]][device] > most_s:
            return math.inf
        for i in members:
            finish[i] = end
        _issue(problem, where, members, here, end, arrival, link)
    return max(last, max(link))


def follows(problem: Problem, assigned: Sequence[int], device: int, members: Sequence[int]) -> bool:
    """Whether a task of these nodes waits for tasks of its own device, and for nothing else."""
    inside = set(members)
    before = {maker for i in members for _, maker in problem.inputs[i]}
    before.update(*(problem.after[i] for i in members))
    before -= inside
    return bool(before) and all(j != CALLER and assigned[j] == device for j in before)


def _issue(
    problem: Problem,
    where: Sequence[int],
    makers: Sequence[int],
    source: int,
    made_s: float,
    arrival: dict[int, float],
    link: list[float],
) -> None:
    """Start copies of what nodes of a task made to every space that reads it, each on its way's
    turn."""
    width, reads, copies_s = problem.spaces, problem.reads, problem.copies_s
    for maker in makers:
        for value, reader in reads[maker]:
            target = where[reader]
            if target != source and value * width + target not in arrival:
                way = source * width + target
                start = link[way] if link[way] > made_s else made_s
                arrival[value * width + target] = link[way] = start + copies_s[value][way]


def copies_of(problem: Problem, assigned: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (value, from, to) of each copy an assignment needs: once a value and memory space."""
    space = problem.space
    for maker, reads in problem.readers.items():
        source = space[assigned[maker]] if maker >= 0 else 0
        seen = set()
        for value, reader in reads:
            target = space[assigned[reader]] if reader >= 0 else 0
            if target != source and (value, target) not in seen:
                seen.add((value, target))
                yield value, source, target


def loads_s(problem: Problem, assigned: Sequence[int], tasks: Tasks) -> list[float]:
    """Return the busy seconds of each resource group, then of each way between memory spaces."""
    width, groups = problem.spaces, problem.groups
    loads = [0.0] * (groups + width * width)
    for i, device in enumerate(assigned):
        loads[problem.group[device]] += problem.seconds[i][device] or 0.0
    for i, fetching_s in streamed_s(problem, assigned, tasks).items():
        loads[problem.group[assigned[i]]] += fetching_s
    for device, _ in tasks:
        loads[problem.group[device]] += problem.machine.launch_s[device]
    for value, source, target in copies_of(problem, assigned):
        loads[groups + source * width + target] += problem.copy_s(value, source, target)
    return loads
