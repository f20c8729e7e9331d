"""Virtual time: its rules, on small tasks and random ones, and the search's evaluator beside it."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from placement_cases import random_problem

from trireme.backend.device import Resident
from trireme.placement.budget import streamed_s
from trireme.placement.makespan import (
    TimedTask,
    follows,
    makespan_s,
    simulated_s,
    timed_tasks,
)
from trireme.placement.problem import Problem
from trireme.placement.stages import asap, rules
from trireme.placement.virtual_time import end_s, simulate_stream, timeline


def tasks_of(*rows):
    """Return tasks, and the seconds of each, of rows (resource, seconds, waits...)."""
    tasks = [TimedTask(resource, tuple(waits), seconds) for resource, seconds, *waits in rows]
    return tasks, [task.seconds for task in tasks]


def times(slices):
    return [(piece.start_s, piece.end_s) for piece in slices]


def test_resources_overlap_and_a_resource_runs_one_task_at_a_time():
    tasks = tasks_of(("cpu", 2), ("gpu", 3), ("cpu", 1), ("gpu", 1, 2))
    assert times(timeline(*tasks)) == [(0, 2), (0, 3), (2, 3), (3, 4)]


def test_a_run_by_itself_takes_each_resource_in_task_order():
    """Task 2 is ready at 0, but task 1 stands before it in the queue of the gpu."""
    tasks = tasks_of(("cpu", 5), ("gpu", 1, 0), ("gpu", 1))
    assert times(timeline(*tasks)) == [(0, 5), (5, 6), (6, 7)]


def test_a_serial_run_is_one_task_after_another():
    tasks = tasks_of(("cpu", 2), ("gpu", 3), ("a>b", 1))
    assert times(timeline(*tasks, serial=True)) == [(0, 2), (2, 5), (5, 6)]
    assert timeline([], []) == [] and end_s([]) == 0.0


def test_a_stream_takes_what_is_ready_of_the_oldest_run():
    """Run 1 has the cpu while run 0 has the gpu; then task 2 of run 0 goes before all of run 2."""
    tasks = tasks_of(("cpu", 1), ("gpu", 2, 0), ("cpu", 1, 1))
    found = simulate_stream(*tasks, depth=3, runs=3)
    assert times(found.slices(0)) == [(0, 1), (1, 3), (3, 4)]
    assert times(found.slices(1)) == [(1, 2), (3, 5), (5, 6)]
    assert times(found.slices(2)) == [(2, 3), (5, 7), (7, 8)]


def test_a_run_of_a_stream_begins_when_one_ends():
    tasks = tasks_of(("cpu", 1), ("gpu", 2, 0))
    found = simulate_stream(*tasks, depth=1, runs=3)
    assert times(found.slices(0)) == [(0, 1), (1, 3)]
    assert times(found.slices(1)) == [(3, 4), (4, 6)]
    assert times(found.slices(2)) == [(6, 7), (7, 9)]


def test_a_task_that_uses_a_state_waits_for_the_run_before():
    """Task 0 reads what task 2 of the run before writes."""
    tasks = tasks_of(("cpu", 1), ("gpu", 1, 0), ("npu", 1, 1))
    free = simulate_stream(*tasks, depth=4, runs=4)
    tied = simulate_stream(*tasks, depth=4, runs=4, between=[(2, 0)])
    assert free.ends_s == [3, 4, 5, 6] and tied.ends_s == [3, 6, 9, 12]
    late = simulate_stream(*tasks, depth=1, runs=4, between=[(2, 0)])
    assert late.ends_s == tied.ends_s, "what the run before has done already is not waited for"


def random_tasks(rng):
    """Tasks with random waits; their seconds are few whole numbers, so that many ends meet."""
    count = rng.randint(1, 12)
    whole = rng.random() < 0.5
    rows = []
    for task in range(count):
        waits = sorted(rng.sample(range(task), rng.randint(0, min(task, 3))))
        seconds = rng.randint(0, 3) if whole else rng.uniform(0.0, 3.0)
        rows.append((rng.choice(("cpu", "gpu", "a>b")), float(seconds), *waits))
    return tasks_of(*rows)


def test_a_run_is_what_one_pass_over_its_tasks_gives():
    for seed in range(400):
        tasks, seconds = random_tasks(random.Random(seed))
        free, want = {}, []
        for task in tasks:
            ready = max((want[other][1] for other in task.waits), default=0.0)
            start = max(ready, free.get(task.resource, 0.0))
            want.append((start, start + task.seconds))
            free[task.resource] = want[-1][1]
        assert times(timeline(tasks, seconds)) == want, f"seed {seed}"


def test_a_stream_follows_the_rules():
    """Checked one by one: waits, one task at a time, runs in flight, the next to start."""
    for seed in range(400):
        rng = random.Random(seed)
        tasks, seconds = random_tasks(rng)
        pairs = [(a, b) for a in range(len(tasks)) for b in range(len(tasks))]
        between = rng.sample(pairs, rng.choice((0, 0, min(2, len(pairs)))))
        depth, runs = rng.randint(1, 4), rng.randint(1, 8)
        stream = simulate_stream(tasks, seconds, depth, runs, between)
        at = {(run, p.task): p for run in range(runs) for p in stream.slices(run)}
        assert list(at) == [(run, task) for run in range(runs) for task in range(len(tasks))]
        ends = [end_s(stream.slices(run)) for run in range(runs)]
        assert stream.ends_s == ends
        begins = [*[0.0] * depth, *sorted(ends)]
        ready = {}
        for run, task in at:
            before = [at[run, other].end_s for other in tasks[task].waits]
            before += [at[run - 1, a].end_s for a, b in between if run and b == task]
            ready[run, task] = max([begins[run], *before])
            piece = at[run, task]
            assert piece.start_s >= ready[run, task], f"seed {seed}: {piece} before it is ready"
            assert piece.end_s == piece.start_s + seconds[task]
        for one, piece in at.items():
            same = {k: p for k, p in at.items() if k != one and p.resource == piece.resource}
            for other in same.values():
                apart = other.end_s <= piece.start_s or other.start_s >= piece.end_s
                assert apart, f"seed {seed}: {piece} and {other}"
            begun = ready[one], *(p.end_s for p in same.values())
            assert piece.start_s in begun, f"seed {seed}: {piece} is late"
            for rival, other in same.items():
                lost = other.start_s > piece.start_s > ready[rival]
                assert not lost or one < rival, f"seed {seed}: {piece} before {other}"


def machine_of(rng, problem):
    """The problem's machine with shared silicon, shared and small memories, and hidden launches."""
    names = problem.machine.names
    memory = list(problem.machine.memory)
    resource = list(problem.machine.resource)
    if len(names) > 2 and rng.random() < 0.4:
        memory[2] = memory[1]
    if len(names) > 2 and rng.random() < 0.4:
        resource[2] = resource[rng.randrange(2)]
    far = sorted(set(memory[1:]))
    return replace(
        problem.machine,
        memory=tuple(memory),
        resource=tuple(resource),
        issue_s=tuple(rng.choice((None, 0.0, rng.uniform(1e-6, 2e-5))) for _ in names),
        budget={space: int(rng.uniform(0.05, 2) * 1e5) for space in far if rng.random() < 0.6},
        sram=tuple(rng.choice((0, 5_000)) for _ in names),
        streams=frozenset(space for space in far if rng.random() < 0.7),
    )


def any_problem(seed):
    """A random problem with effects, several values a node, weights, on a `machine_of`."""
    rng = random.Random(seed)
    kind = ("layered", "series-parallel")[seed % 2]
    plain = random_problem(kind, seed, rng.randint(2, 50))
    n = plain.n
    inputs = [list(read) for read in plain.inputs]
    nbytes = dict(plain.nbytes)
    for i in range(1, n):
        if rng.random() < 0.2:
            maker = rng.randrange(i)
            nbytes[n + 1 + maker] = rng.randint(1, 100_000)
            inputs[i].append((n + 1 + maker, maker))
        if rng.random() < 0.1:
            inputs[i].append((n, -1))
    inputs = [list(dict.fromkeys(read)) for read in inputs]
    after = [rng.sample(range(i), 1) if i and rng.random() < 0.1 else [] for i in range(n)]
    resident = [
        [Resident(rng.randint(0, 30_000), rng.randint(0, 500)) for _ in plain.devices]
        for _ in range(n)
    ]
    machine = machine_of(rng, plain)
    return Problem(machine, plain.seconds, inputs, after, plain.outputs, nbytes, resident)


def cut(rng, tasks):
    """The tasks, some of them cut in two, as a placement that is held may have them."""
    parts = []
    for device, members in tasks:
        at = rng.randrange(len(members)) if rng.random() < 0.5 else 0
        parts += [(device, part) for part in (members[:at], members[at:]) if part]
    return parts


def test_the_search_has_the_simulators_bits():
    """`makespan_s` is the simulator's answer, to the last bit, whatever the problem has."""
    seen = Counter()
    for seed in range(400):
        problem, rng = any_problem(seed), random.Random(seed)
        assigned = tuple(rng.choice(able) for able in problem.able)
        ways = list(rules(problem, assigned)) if seed % 4 == 0 else [asap(problem, assigned)]
        for tasks in [*ways, *(cut(rng, tasks) for tasks in ways)]:
            fast, slow = makespan_s(problem, assigned, tasks), simulated_s(problem, assigned, tasks)
            assert fast == slow, f"seed {seed}: {fast!r} and {slow!r}"
        timed = timed_tasks(problem, assigned, tasks)
        seen["streamed"] += bool(streamed_s(problem, assigned, tasks))
        seen["hidden"] += any(
            problem.machine.issue_s[device] is not None and follows(problem, assigned, device, mine)
            for device, mine in tasks
        )
        seen["copies"] += any(">" in task.resource for task in timed)
        seen["effects"] += any(problem.after)
        seen["shared silicon"] += problem.groups < problem.k
        seen["shared memory"] += problem.spaces < problem.k
    assert min(seen.values()) >= 40 and len(seen) == 6, seen


@pytest.mark.parametrize("device", [0, 1])
def test_copies_of_one_value_are_one(device):
    """A graph input that both nodes read is copied once, right at the start."""
    problem = random_problem("layered", 0, 2, 2)
    problem = Problem(
        problem.machine, [[1, 1], [1, 1]], [[(9, -1)], [(9, -1)]], [[], []], [(0, 0)], {0: 4, 9: 4}
    )
    timed = timed_tasks(problem, (device, device), [(device, [0]), (device, [1])])
    links = [task.resource for task in timed if ">" in task.resource]
    assert links == (["host>gpu", "gpu>host"] if device else [])
