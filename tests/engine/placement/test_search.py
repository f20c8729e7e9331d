"""The search against brute force, bounds, baselines and the plan's own timeline, on seeded cases.

The same against proven optima, on 300 cases, is in tests/engine/placement/test_proof.py.
"""

import functools
import itertools
import math
import random
import time
from dataclasses import replace

import pytest
from baselines import BASELINES
from placement_cases import KINDS, case, cases_of, random_problem, to_graph
from placing import place_plain
from sweep import sweep
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration
from trireme.cost.links import Link, Links
from trireme.cost.model import CostModel
from trireme.placement import anneal
from trireme.placement.bounds import critical_s, makespan_bound, to_end
from trireme.placement.makespan import makespan_s
from trireme.placement.messages import Messages, price_bound
from trireme.placement.objective import OBJECTIVES, Scorer
from trireme.placement.prices import time_prices
from trireme.placement.problem import CALLER, Machine, Problem
from trireme.placement.search import Search
from trireme.placement.stages import asap, fewest_launches, rules
from trireme.placement.starts import single_device
from trireme.placement.unused_device import least_uses
from trireme.placement.virtual_time import end_s, timeline
from trireme.plan.plan import make_plan
from trireme.support.errors import PlacementError

small = pytest.mark.parametrize("seed", sweep(range(24), (0, 1, 8)))
"""One of each kind always, the rest in a sweep."""
small_case = functools.cache(functools.partial(case, most=40))


@functools.cache
def searched(problem, objective):
    search = Search(problem, objective)
    return search, search.value, search.forest, search.load


def with_little_memory(problem):
    """Yield the problem with room for the largest value alone in each memory but the host's."""
    for space in problem.machine.spaces[1:]:
        machine = replace(problem.machine, budget={space: max(problem.nbytes.values())})
        yield Problem(
            machine, problem.seconds, problem.inputs, problem.after, problem.outputs, problem.nbytes
        )


@small
@pytest.mark.parametrize("objective", ["makespan", "serial", "throughput"])
def test_no_worse_than_any_baseline(seed, objective):
    name, problem = small_case(seed)
    search, value, _, _ = searched(problem, objective)
    for who, rule in BASELINES.items():
        for assigned in rule(problem):
            theirs = search.scorer.evaluate(assigned)[0]
            assert value <= theirs * (1 + 1e-9), f"{name}: {who} takes {theirs}, trireme {value}"


@pytest.mark.slow
@pytest.mark.parametrize("family", KINDS)
def test_no_worse_than_any_baseline_or_device_on_300(family):
    """The makespan of 300 cases; the same of serial prices is in test_proof.py."""
    for name, problem in cases_of(family, 300):
        search, value, _, _ = searched(problem, "makespan")
        theirs = {f"{who} {a}": a for who, rule in BASELINES.items() for a in rule(problem)}
        theirs |= {f"device {d}": single_device(problem, d) for d in problem.devices}
        for who, assigned in theirs.items():
            other = search.scorer.evaluate(assigned)[0]
            assert value <= other * (1 + 1e-9), f"{name}: {who} {other}, trireme {value}"


@small
def test_bounds_are_below_what_is_found(seed):
    name, problem = small_case(seed)
    for objective in ("makespan", "serial", "throughput"):
        search, value, forest, load = searched(problem, objective)
        if objective == "serial":
            least = forest.solve(search.scorer.prices)[0]
            bound, _ = price_bound(problem, search.scorer.prices, search.best, value, None)
            assert bound >= least
        else:
            bound = load.seconds
            if objective == "makespan":
                bound = makespan_bound(problem, value)[0]
        assert 0 < bound <= value * (1 + 1e-9)


@pytest.mark.parametrize("seed", sweep(range(12), always=range(0, 12, 3)))
def test_tiny_problems_are_solved(seed):
    """Every assignment, of up to a thousand, is tried; bounds hold for each."""
    kind = ("layered", "series-parallel")[seed % 2]
    sizes = (random_problem(kind, seed, n) for n in range(8, 1, -1))
    problem = next(p for p in sizes if math.prod(map(len, p.able)) <= 1000)
    for objective in ("makespan", "serial", "throughput"):
        search, value, forest, load = searched(problem, objective)
        scores = [search.scorer.evaluate(a)[0] for a in itertools.product(*problem.able)]
        assert value <= min(scores) * (1 + 1e-9), f"seed {seed}, {objective}"
        bound = forest.solve(search.scorer.prices)[0]
        if objective != "serial":
            bound = load.seconds
        if objective == "makespan":
            bound = max(bound, critical_s(problem), makespan_bound(problem, value)[0])
        assert bound <= min(scores) * (1 + 1e-9), f"seed {seed}, {objective}"


@pytest.mark.parametrize("seed", range(6))
def test_chains_are_proven_optimal(seed):
    """On a chain the critical path and the forest are exact, and the search reaches them."""
    problem = chain(seed, 30)
    _, value, _, _ = searched(problem, "makespan")
    assert value == pytest.approx(critical_s(problem), rel=1e-9)
    search, value, forest, _ = searched(problem, "serial")
    assert value == pytest.approx(forest.solve(search.scorer.prices)[0], rel=1e-9)


@pytest.mark.parametrize("seed", sweep(range(24), always=range(0, 24, 5)))
def test_message_passing_bounds_every_placement(seed):
    """Of all assignments in their best tasks none is cheaper, also with edges of order alone, on
    machines where devices share a memory, and where copies or launches are all that costs.
    """
    print("seed", seed)
    rng = random.Random(seed)
    kind = ("layered", "series-parallel")[seed % 2]
    sizes = (random_problem(kind, seed, n) for n in range(9, 1, -1))
    problem = next(p for p in sizes if math.prod(map(len, p.able)) <= 1000)
    after = [
        [j] if i and rng.random() < 0.3 else []
        for i in range(problem.n)
        for j in (rng.randrange(max(i, 1)),)
    ]
    memory = list(problem.machine.memory)
    memory[-1] = memory[rng.randrange(len(memory))]
    problem = Problem(
        replace(problem.machine, memory=tuple(memory)),
        problem.seconds,
        problem.inputs,
        after,
        problem.outputs,
        problem.nbytes,
    )
    prices = time_prices(problem)
    for dear in (
        prices,
        replace(prices, launch=[100 * price for price in prices.launch]),
        replace(prices, copy=[[(9 * a, 9 * b) for a, b in row] for row in prices.copy]),
    ):
        known = {
            assigned: min(
                dear.total(problem, assigned, tasks)
                for tasks in rules(problem, assigned, launch=dear.launch)
            )
            for assigned in itertools.product(*problem.able)
        }
        messages = Messages(problem, dear)
        best = min(known, key=known.get)
        messages.run(5)
        messages.run(10, best)
        least = known[best]
        assert 0.7 * least <= messages.bound <= least * (1 + 1e-9)
        assert min(known[assigned] for assigned in messages.met) <= 1.5 * least


def chain(seed, n, nbytes=0):
    problem = random_problem("series-parallel", seed, n)
    problem.inputs = [[(i - 1, i - 1)] if i else [(problem.n, CALLER)] for i in range(problem.n)]
    outputs = [(problem.n - 1, problem.n - 1)]
    sizes = {value: nbytes or size for value, size in problem.nbytes.items()}
    return type(problem)(
        problem.machine, problem.seconds, problem.inputs, problem.after, outputs, sizes
    )


@pytest.mark.parametrize("seed", range(10))
def test_copy_bound_chains_are_not_split(seed):
    """Nodes alternate between the devices they like; copies cost far more than that saves."""
    print("seed", seed)
    rng = random.Random(seed)
    problem = chain(seed, 24, nbytes=5_000_000)
    problem.able = [list(problem.devices)] * problem.n
    problem.seconds = [
        [rng.uniform(0.8, 1.2) * 30e-6 * (1 if (i + d) % 2 else 3) for d in problem.devices]
        for i in range(problem.n)
    ]
    search, value, _, _ = searched(problem, "makespan")
    assert len(set(search.best)) == 1
    apart = tuple(i % 2 for i in range(problem.n))
    assert search.scorer.evaluate(apart)[0] > value


@small
def test_tasks_run_in_order(seed):
    """Every rule gives each node one task, after all that it follows, on its device."""
    name, problem = small_case(seed)
    rng = random.Random(name)
    for _ in range(5):
        assigned = tuple(rng.choice(able) for able in problem.able)
        for tasks in rules(problem, assigned):
            at = {i: t for t, (_, members) in enumerate(tasks) for i in members}
            assert sorted(at) == list(range(problem.n))
            assert all(assigned[i] == tasks[t][0] for i, t in at.items())
            assert all(at[j] <= at[i] for i in at for j in problem.before[i])


@small
def test_runs_are_followed_no_further_than_needed(seed):
    """A run that takes longer than asked for is infinite; one that does not is what it is."""
    name, problem = small_case(seed)
    rng = random.Random(name)
    tails = to_end(problem)
    for _ in range(5):
        assigned = [rng.choice(able) for able in problem.able]
        for tasks in rules(problem, assigned):
            whole = makespan_s(problem, assigned, tasks)
            above, below = whole * (1 + 1e-9), whole * rng.uniform(0.3, 0.999)
            assert makespan_s(problem, assigned, tasks, above, tails) == whole
            assert makespan_s(problem, assigned, tasks, below, tails) > below


@small
def test_nothing_that_explain_lists_is_better(seed):
    """With any one node elsewhere, in the best tasks, the run is no shorter."""
    name, problem = small_case(seed)
    if problem.n <= 25:
        for objective in ("makespan", "serial", "throughput"):
            search, value, _, _ = searched(problem, objective)
            for i, able in enumerate(problem.able):
                for device in able:
                    moved = (*search.best[:i], device, *search.best[i + 1 :])
                    assert search.scorer.evaluate(moved)[0] >= value * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_fewest_launches(seed):
    """No order of the nodes, one at a time, has cheaper launches."""
    print("seed", seed)
    rng = random.Random(seed)
    problem = random_problem(("layered", "series-parallel")[seed % 2], seed, 11, devices=3)
    launch = [rng.choice((0.0, 1.0, 1.0, 5.0)) for _ in problem.devices]
    assigned = tuple(rng.choice(able) for able in problem.able)

    @functools.cache
    def least(done, last):
        ways = [
            least(done | {i}, d) + (launch[d] if d != last else 0.0)
            for i, d in enumerate(assigned)
            if i not in done and done.issuperset(problem.before[i])
        ]
        return min(ways, default=0.0)

    tasks = fewest_launches(problem, assigned, launch)
    assert sum(launch[d] for d, _ in tasks) == least(frozenset(), -1)


@small
def test_a_quick_search_looks_at_less_and_keeps_memory(seed):
    name, problem = small_case(seed)
    whole, value, _, _ = searched(problem, "makespan")
    quick = Search(problem, "makespan", quick=True)
    assert quick.scorer.visits <= whole.scorer.visits
    assert quick.scorer.evaluate(quick.best) == (quick.value, quick.tasks)
    starts = [one.value for one in quick.candidates if one.kind == "start"]
    assert value <= quick.value <= min(starts) * (1 + 1e-9), name
    assert not any(
        Search(limited, "makespan", quick=True).quick for limited in with_little_memory(problem)
    )


def test_walks_end_where_they_find_nothing(monkeypatch):
    """They take a few turns for each pair of nodes; none, where nothing can be better."""
    problem = random_problem("layered", 8, 14)
    search, value, _, _ = searched(problem, "makespan")
    steps = []
    step = anneal._Walk.step
    monkeypatch.setattr(
        anneal._Walk, "step", lambda walk, heat: steps.append(1) or step(walk, heat)
    )
    for least, most in ((0.0, 60), (value * 0.999, 3), (value, 0)):
        steps.clear()
        visits = 250 * problem.n**3
        best, assigned, tasks = anneal.anneal(search.scorer, search.tasks, visits, least)
        assert best == value == makespan_s(problem, assigned, tasks)
        assert len(steps) <= most * problem.n**2 and bool(steps) == bool(most)


def test_walks_go_on_where_they_find_something():
    """From everything on one device the first finds take long; the best comes long after them."""
    problem = random_problem("layered", 12, 12)
    scorer = Scorer(problem, "makespan")
    worst = max((single_device(problem, d) for d in problem.devices), key=scorer.estimate)
    _, tasks = scorer.evaluate(worst)
    best, _, _ = anneal.anneal(scorer, tasks, 250 * problem.n**3)
    assert best <= searched(problem, "makespan")[1] * 1.01


@small
def test_memory_is_kept(seed):
    """With too little memory for the best placement, another is found, or none is said to be."""
    name, problem = small_case(seed)
    for limited in with_little_memory(problem):
        scorer = Search(limited, "makespan").scorer
        best = min(scorer.seen, key=scorer.estimate)
        _, tasks = scorer.evaluate(best)
        if any(able != [1] for able in limited.able):
            assert scorer.excess(best, tasks) == 0.0 or scorer.estimate(best) > 1e3


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_plan_takes_what_was_predicted(objective):
    """The plan's timeline, without waits for shared bytes, ends when the search said it would."""
    for seed in (0, 3):
        graph, devices = to_graph(seed, 12)
        placement = place_plain(graph, CostModel(devices, Calibration()), objective)
        plan = make_plan(placement)
        made = {value: task.index for task in plan.tasks for value in task.outputs}
        tasks = tuple(
            replace(t, waits=tuple(sorted({made[v] for v in t.inputs if v in made})))
            for t in plan.tasks
        )
        slices = timeline(tasks, [t.estimate_s for t in tasks])
        end = end_s(slices)
        assert end == pytest.approx(placement.makespan_s, rel=1e-9), f"seed {seed}"
        if objective == "serial":
            total = sum(task.estimate_s for task in plan.tasks)
            assert total == pytest.approx(placement.score.value, rel=1e-9)


def test_a_smooth_throughput_is_little_above_the_greatest_load():
    for _, problem in map(small_case, range(4)):
        plain, smooth = (Scorer(problem, "throughput", smooth=on) for on in (False, True))
        for assigned in ([0] * problem.n, [i % problem.k for i in range(problem.n)]):
            tasks = asap(problem, assigned)
            load = plain.value(assigned, tasks)
            most = load * 32**0.125  # devices and links
            assert load * (1 - 1e-9) <= smooth.value(assigned, tasks) <= most


def test_energy_needs_powers():
    graph, devices = to_graph(0, 10)
    devices["gpu"].spec = replace(devices["gpu"].spec, power_w=None)
    with pytest.raises(PlacementError, match="power of gpu"):
        place_plain(graph, CostModel(devices, Calibration()), "energy")


def test_unknown_objectives_are_named():
    graph, devices = to_graph(0, 5)
    with pytest.raises(PlacementError, match="known: makespan, serial"):
        place_plain(graph, CostModel(devices, Calibration()), "beauty")


def test_an_arena_or_an_operand_that_does_not_fit_is_an_error():
    graph, _ = to_graph(0, 5)
    for nbytes, said in ((8000, "fits the devices' memory"), (64, "7,556 bytes, npu has 64")):
        npu = ToyDevice("npu", memory_bytes=nbytes)
        with pytest.raises(PlacementError, match=said):
            place_plain(graph, CostModel({"npu": npu}, Calibration()))


def test_the_cheapest_use_of_an_unused_device_counts_the_way_to_the_readers():
    """Of 16 nodes side by side, as dear on either device, all but the last make 1 MiB."""
    ways = {"one": Link(1e-6, 1e9), "two": Link(1e-6, 4e9)}
    machine = Machine(
        ("one", "two"),
        ("one", "two"),
        ("one", "two"),
        (1e-6, 1e-6),
        Links(ways, ways),
        {},
        (None, None),
        {},
    )
    inputs = [[(17, CALLER)]] * 16 + [[(i, i) for i in range(16)]]
    nbytes = dict.fromkeys(range(15), 1 << 20) | {15: 4, 16: 4, 17: 4}
    seconds = [[1e-6, 1e-6]] * 16 + [[1e-6, None]]
    problem = Problem(machine, seconds, inputs, [[]] * 17, [(16, 16)], nbytes)
    (use,) = least_uses(Scorer(problem, "makespan"), (0,) * 17, {})
    assert (use.device, use.node) == (1, 15)


@pytest.mark.timed
def test_a_thousand_nodes_take_two_seconds():
    for kind in ("series-parallel", "layered"):
        problem = random_problem(kind, 1, 1000, devices=3)
        start = time.process_time()
        searched(problem, "makespan")
        assert time.process_time() - start <= 2.0
