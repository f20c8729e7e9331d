"""Predict the virtual time of an assignment.

`simulated_s` asks the simulator, `virtual_time`. `makespan_s` gives the same bits in one pass over
the tasks, for the search, which asks thousands of times. `plan` makes the same tasks and copies for
real.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from trireme.backend.links import link_name
from trireme.placement.budget import streamed_s
from trireme.placement.problem import CALLER, Problem
from trireme.placement.stages import Tasks
from trireme.placement.virtual_time import end_s, hidden_launch_s, timeline
from trireme.support.records import dataclass


@dataclass(frozen=True)
class TimedTask:
    """A task or a copy of an assignment, as the simulator sees it. `waits` are earlier indices."""

    resource: str
    waits: tuple[int, ...]
    seconds: float


def simulated_s(problem: Problem, assigned: Sequence[int], tasks: Tasks) -> float:
    """Return when a run ends that is predicted for some tasks, by the simulator."""
    timed = timed_tasks(problem, assigned, tasks)
    return end_s(timeline(timed, [task.seconds for task in timed]))


def timed_tasks(problem: Problem, assigned: Sequence[int], tasks: Tasks) -> list[TimedTask]:
    """Return the tasks of an assignment, each before the copies of what it makes.

    Copies of graph inputs come first. A value is copied once to each memory space that reads it.
    """
    space, spaces = problem.space, problem.machine.spaces
    where = [*(space[d] for d in assigned), 0]
    streaming = streamed_s(problem, assigned, tasks)
    timed: list[TimedTask] = []
    task_of: dict[int, int] = {}
    copy_of: dict[tuple[int, int], int] = {}

    def copies(maker: int) -> None:
        source = where[maker]
        waits = (task_of[maker],) if maker != CALLER else ()
        for value, reader in problem.reads[maker]:
            target = where[reader]
            if target != source and (value, target) not in copy_of:
                copy_of[value, target] = len(timed)
                link = link_name(spaces[source], spaces[target])
                timed.append(TimedTask(link, waits, problem.copy_s(value, source, target)))

    copies(CALLER)
    for device, members in tasks:
        here = space[device]
        waits = {task_of[j] for i in members for j in problem.after[i] if j in task_of}
        for i in members:
            for value, maker in problem.inputs[i]:
                if where[maker] != here:
                    waits.add(copy_of[value, here])
                elif maker in task_of:
                    waits.add(task_of[maker])
        seconds = _task_s(problem, assigned, device, members, streaming)
        task_of.update(dict.fromkeys(members, len(timed)))
        timed.append(TimedTask(problem.machine.resource[device], tuple(sorted(waits)), seconds))
        for i in members:
            copies(i)
    return timed


def _task_s(
    problem: Problem,
    assigned: Sequence[int],
    device: int,
    members: Sequence[int],
    streaming: Mapping[int, float],
) -> float:
    """Return the seconds of a task: its launch, unless that is hidden, its weights, its nodes."""
    launch_s, issue_s = problem.machine.launch_s[device], None
    seconds = launch_s + sum([streaming.get(i, 0.0) for i in members])
    for i in members:
        seconds += problem.own_s(i, device)
    if problem.machine.issue_s:
        issue_s = problem.machine.issue_s[device]
    if issue_s is not None and follows(problem, assigned, device, members):
        seconds = hidden_launch_s(seconds, launch_s, issue_s)
    return seconds


def makespan_s(
    problem: Problem,
    assigned: Sequence[int],
    tasks: Tasks,
    most_s: float = math.inf,
    tails: Sequence[Sequence[float]] = (),
) -> float:
    """Return `simulated_s` to the last bit, several times as fast.

    Every node must have an estimate where it is. The caller is node -1, the last in every list:
    over at 0, in host memory.
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
            work = hidden_launch_s(work, launch_s[device], issue)
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
    """Start copies of what nodes of a task made to every space that reads it, in the order of each
    link's queue."""
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
