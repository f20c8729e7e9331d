"""The search against proven optima: a few cases always, all 300 with -m slow (about ten minutes).

The bar: at most 1 % from optimal on 95 % of the cases of each family, at most 5 % on all. A case
counts by what was proven of it; what the proof leaves open is printed.
"""

import itertools
import math
import random
from dataclasses import dataclass, replace

import pytest
from baselines import BASELINES
from path_model import relax, relax_makespan
from placement_cases import KINDS, cases, cases_of, random_problem, to_graph
from placing import place_plain
from stage_model import SerialModel, launches_beyond
from sweep import sweep

from trireme.cost.calibration import Calibration
from trireme.cost.links import Links
from trireme.cost.model import CostModel
from trireme.placement.bounds import makespan_bound
from trireme.placement.makespan import makespan_s
from trireme.placement.messages import price_bound
from trireme.placement.objective import Scorer
from trireme.placement.prices import time_prices
from trireme.placement.problem import CALLER, Machine, Problem
from trireme.placement.proof import ROUNDING, solver
from trireme.placement.prove import prove, prove_assignment
from trireme.placement.search import Search
from trireme.support.errors import PlacementError

try:
    solver()
except PlacementError as error:
    pytest.skip(str(error), allow_module_level=True)


@dataclass(frozen=True)
class Gap:
    """How far the search is above the best that the proof found, and above what it proved."""

    name: str
    found: float
    proven: float

    @property
    def open(self):
        """Whether what was found is not proven to be the best."""
        return self.proven - self.found > 10 * ROUNDING


def gap_serial(name, problem, limit_s=10.0):
    search = Search(problem, "serial")
    value = search.value
    for who, rule in BASELINES.items():
        theirs = min(search.scorer.evaluate(assigned)[0] for assigned in rule(problem))
        assert value <= theirs * (1 + 1e-9), f"{name}: {who} takes {theirs}, trireme {value}"
    paths = relax(problem, search.scorer.prices, value, limit_s)
    bound, _ = price_bound(problem, search.scorer.prices, search.best, value, search.messages)
    best = value
    if paths is not None:
        bound = max(bound, paths.bound)
        best = min(best, search.scorer.evaluate(paths.assigned)[0])
    return Gap(name, value / best - 1, value / min(bound, best) - 1)


def gap_makespan(name, problem, limit_s):
    search = Search(problem, "makespan")
    value = search.value
    bound, _ = makespan_bound(problem, value)
    if value <= bound * (1 + 1e-6):
        return Gap(name, 0.0, 0.0)
    proof = prove_assignment(search.scorer, search.best, search.tasks, limit_s)
    return Gap(name, value / proof.value - 1, value / max(bound, proof.bound) - 1)


def check(family, gaps):
    """Print a row of the summary and what is open; hold the bar."""
    near = [gap for gap in gaps if gap.proven <= 0.01]
    within = [gap for gap in gaps if gap.proven <= 0.05]
    worst = max(gaps, key=lambda gap: gap.proven)
    print(f"{'family':16s} cases  <= 1 %  <= 5 %  worst")
    print(f"{family:16s} {len(gaps):5d} {len(near):7d} {len(within):7d}  {worst.proven:.2%}")
    for gap in gaps:
        if gap.proven > 0.01 or gap.open:
            print(f"  {gap.name}: {gap.found:.3%} above what was found, {gap.proven:.3%} proven")
    assert len(near) >= 0.95 * len(gaps)
    assert len(within) == len(gaps)


def check_closed(family, gaps):
    """Hold the bar over those gaps that the solver could close, and list the others."""
    for gap in gaps:
        if gap.open:
            print(
                f"open: {gap.name}: {gap.found:.3%} above what was found, {gap.proven:.1%} proven"
            )
    check(family, [gap for gap in gaps if not gap.open])
    assert all(gap.found <= 0.05 for gap in gaps)


def test_serial_optima_of_small_cases():
    check("small", [gap_serial(name, problem) for name, problem in cases(12, most=45)])


@pytest.mark.slow
@pytest.mark.parametrize("family", KINDS)
def test_serial_optima(family):
    """300 cases of at most 200 nodes and 2 to 4 devices, a third of each family; seeds by name."""
    check(family, [gap_serial(name, problem) for name, problem in cases_of(family, 300)])


@pytest.mark.parametrize("seed", range(4))
def test_the_model_of_stages_has_every_placement(seed):
    """From the worst of all assignments of a tiny problem it finds the best, and proves it."""
    print("seed", seed)
    kind = ("layered", "series-parallel")[seed % 2]
    sizes = (random_problem(kind, seed, n) for n in range(7, 1, -1))
    problem = next(p for p in sizes if math.prod(map(len, p.able)) <= 64)
    scorer = Search(problem, "serial").scorer
    rows = {assigned: scorer.evaluate(assigned) for assigned in itertools.product(*problem.able)}
    worst = max(rows, key=lambda assigned: rows[assigned][0])
    least, most = min(rows.values())[0], rows[worst][0]
    proof = SerialModel(problem, scorer.prices, worst, rows[worst][1], 0.0).solve(10.0, 1)
    assert least < most and proof.status == "optimal"
    assert proof.bound <= least * (1 + 1e-9)
    assert proof.value == pytest.approx(least, rel=ROUNDING)
    total = scorer.prices.total(problem, proof.assigned, proof.tasks)
    assert total == pytest.approx(proof.value)


@pytest.mark.parametrize("seed", sweep(range(12), always=[0, 9]))
def test_paths_bound_every_placement(seed):
    """Of every assignment of a tiny problem, none has a lower price; nor has the proof's."""
    print("seed", seed)
    kind = ("layered", "series-parallel")[seed % 2]
    sizes = (random_problem(kind, seed, n) for n in range(9, 1, -1))
    problem = next(p for p in sizes if math.prod(map(len, p.able)) <= 1000)
    search = Search(problem, "serial")
    prices, evaluate = search.scorer.prices, search.scorer.evaluate
    least = min(evaluate(assigned)[0] for assigned in itertools.product(*problem.able))
    assert relax(problem, prices, least, 10.0).bound <= least
    fastest = Search(problem, "makespan").scorer.evaluate
    end = min(fastest(assigned)[0] for assigned in itertools.product(*problem.able))
    assert relax_makespan(problem, end, 10.0).bound <= end
    whole = from_start_of(problem, "makespan", 3.0)
    assert whole.bound <= min(end, whole.value) * (1 + 1e-9)
    proof = from_start_of(problem, "serial", 10.0)
    assert proof.status == "optimal"
    assert proof.value == pytest.approx(least, rel=ROUNDING)


@pytest.mark.parametrize("seed", sweep(range(1, 10), always=[5]))
def test_the_model_of_tasks_has_every_placement(seed):
    """Of all rows of tasks of a tiny problem the fastest is what is proven; on a third of the
    machines devices hide launches behind their own tasks, on another third two share a memory.
    """
    print("seed", seed)
    kind = ("layered", "series-parallel")[seed % 2]
    problem = random_problem(kind, seed, 5 if seed < 7 else 4, devices=2 + (seed > 5))
    if seed % 3 == 0:
        hidden = (0.0,) * problem.k
        problem.machine = replace(problem.machine, issue_s=hidden)
    if seed % 3 == 1:
        problem = with_shared_memory(problem)
    least = min(makespan_s(problem, *row) for row in rows_of_tasks(problem))
    proof = from_start_of(problem, "makespan", 20.0)
    assert proof.bound <= least * (1 + 1e-9)
    assert proof.value == pytest.approx(least, rel=ROUNDING)
    assert proof.status == "optimal"


def with_shared_memory(problem):
    """The problem with its last device in the memory of the first."""
    memory = (*problem.machine.memory[:-1], problem.machine.memory[0])
    machine = replace(problem.machine, memory=memory)
    return Problem(
        machine, problem.seconds, problem.inputs, problem.after, problem.outputs, problem.nbytes
    )


@pytest.mark.parametrize(("seed", "n"), [(40, 12), (58, 14)])
def test_copies_of_one_task_take_turns_in_node_order(seed, n):
    """Taking them in any order would leave these open, by 0.8 and 1.8 %."""
    problem = random_problem("layered", seed, n)
    assert from_start_of(problem, "makespan", 30.0).status == "optimal"


def test_a_proof_cut_short_is_the_same_again(monkeypatch):
    """Its limit counts the solver's steps; that of the time is far off, however busy it is here."""
    monkeypatch.setattr("trireme.placement.proof.PATIENCE", 1000)
    problem = random_problem("layered", 10, 14)
    one, two = (from_start_of(problem, "makespan", 0.5) for _ in range(2))
    assert one.status == "feasible"
    assert (one.value, one.bound, one.tasks) == (two.value, two.bound, two.tasks)


def rows_of_tasks(problem, done=(), row=()):
    """Yield (assigned, tasks) of every placement and every order of its tasks."""
    left = [i for i in range(problem.n) if i not in done]
    if not left:
        device = {i: d for d, members in row for i in members}
        yield [device[i] for i in range(problem.n)], list(row)
    for size in range(1, len(left) + 1):
        for members in itertools.combinations(left, size):
            ready = {*done, *members}
            if all(ready.issuperset(problem.before[i]) for i in members):
                for d in problem.devices:
                    if all(d in problem.able[i] for i in members):
                        yield from rows_of_tasks(problem, ready, (*row, (d, list(members))))


def from_start_of(problem, objective, limit_s):
    """The proof from everything on the first device that can."""
    start = tuple(able[0] for able in problem.able)
    return prove_assignment(Scorer(problem, objective), start, None, limit_s)


def test_makespan_optima_of_small_cases():
    found = []
    for seed in range(8):
        problem = random_problem(("layered", "series-parallel")[seed % 2], seed, 4 + seed % 4)
        found.append(gap_makespan(f"seed {seed}", problem, 5.0))
    check_closed("makespan", found)


def test_a_task_is_cut_where_another_waits_for_a_copy():
    """Two of six nodes run while a copy is on its way: no rule makes that task, shifting does."""
    problem = random_problem("layered", 32, 6)
    gap = gap_makespan("layered 32", problem, 10.0)
    assert gap.found <= ROUNDING


def test_a_placement_is_left_for_quite_another():
    """With nearly all nodes elsewhere a run is 16 % shorter: no cool walk gets there."""
    gap = gap_makespan("layered 50", random_problem("layered", 50, 13), 20.0)
    assert gap.found <= 0.02


def test_chains_are_cut_where_that_balances():
    """Three chains of two equal nodes on two equal devices: one of them is best cut in two."""
    machine = Machine(
        ("cpu", "npu"), ("host", "host"), ("cpu", "npu"), (0.0, 0.0), Links(), {}, (None, None), {}
    )
    inputs = [[(i - 1, i - 1)] if i % 2 else [(6, CALLER)] for i in range(6)]
    outputs = [(i, i) for i in (1, 3, 5)]
    problem = Problem(
        machine, [[1e-5, 1e-5]] * 6, inputs, [[]] * 6, outputs, dict.fromkeys(range(7), 4)
    )
    proof = prove_assignment(Scorer(problem, "makespan"), (0, 0, 0, 0, 1, 1), None, 10.0)
    assert proof.value == pytest.approx(3e-5)
    assert proof.bound == pytest.approx(3e-5, rel=ROUNDING)


def test_the_bound_of_a_chain_that_can_only_be_in_one_place_is_what_it_takes():
    """Its input and output are copied; the megabyte between its two nodes stays where it is."""
    problem = random_problem("chain", 0, 1, 2)
    machine = replace(problem.machine, launch_s=(0.0, 5e-5))
    inputs, nbytes = [[(9, CALLER)], [(0, 0)]], {9: 4000, 0: 10**6, 1: 4000}
    problem = Problem(machine, [[None, 2e-6], [None, 3e-6]], inputs, [[], []], [(1, 1)], nbytes)
    end = makespan_s(problem, (1, 1), [(1, [0, 1])])
    assert relax_makespan(problem, end, 10.0).bound == pytest.approx(end, rel=ROUNDING)


@pytest.mark.slow
def test_makespan_optima():
    found = []
    for seed in range(40):
        kind = ("layered", "series-parallel")[seed % 2]
        problem = random_problem(kind, seed, random.Random(seed).randint(5, 14))
        found.append(gap_makespan(f"{kind} seed {seed}", problem, 20.0))
    check_closed("makespan", found)


def test_a_better_placement_is_found_from_a_bad_one():
    """From everything on the cpu the solver reaches what the search reaches, or better."""
    problem = random_problem("series-parallel", 3, 12)
    prices = time_prices(problem)
    search = Search(problem, "serial")
    best = search.scorer.evaluate(search.best)[0]
    proof = from_start_of(problem, "serial", 20.0)
    assert proof.value <= best * (1 + 1e-4) and proof.bound <= proof.value
    assert proof.value == pytest.approx(prices.total(problem, proof.assigned, proof.tasks))


@pytest.mark.parametrize("objective", ["makespan", "serial", "energy"])
def test_proven_placements_say_so(objective):
    graph, devices = to_graph(2, 6)
    costs = CostModel(devices, Calibration())
    placement = place_plain(graph, costs, objective)
    better = prove(placement, costs, 2.0)
    assert better.score.value <= placement.score.value * (1 + 1e-9)
    assert better.score.lower_bound >= placement.score.lower_bound
    proven = "the exact solver" if objective == "makespan" else placement.score.bound_from
    assert better.proof.startswith("proof: ") and better.score.bound_from == proven


def test_throughput_has_no_proof():
    graph, devices = to_graph(2, 4)
    costs = CostModel(devices, Calibration())
    with pytest.raises(PlacementError, match="no model of throughput"):
        prove(place_plain(graph, costs, "throughput"), costs)


def test_launches_beyond_some_stages():
    """Two devices take turns; of three, the second and then the first are four stages."""
    assert launches_beyond([1.0, 10.0], 1) == 10.0
    assert launches_beyond([1.0, 10.0], 2) == 11.0
    assert launches_beyond([1.0, 10.0, 100.0], 3) == 11.0
