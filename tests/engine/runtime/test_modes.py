"""Every way to run one placement gives the same bits; runs can be watched, and compared by node."""

import itertools
import random

import numpy as np
import pytest
from plan_verifier import check_plan
from sweep import sweep
from toy_device import ToyDevice
from toy_graphs import PINNED, SOME_FREE, any_order, devices, feeds_of, random_graph

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.compare import compare_nodes, gap
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

MODES = ("serial", "parallel")
SUBGRAPHS = ("merged", "split")
EXECUTIONS = ("sunk", "interactive")
COMBINATIONS = list(itertools.product(MODES, SUBGRAPHS, EXECUTIONS))


def open_session(
    graph, mode="parallel", subgraphs="merged", execution="sunk", toys=None, objective="serial"
):
    return Session(
        graph,
        devices=toys or list(devices().values()),
        execution_options=ExecutionOptions(passes=(), subgraphs=subgraphs, execution=execution),
        calibration=Calibration(),
        mode=mode,
        placement_options=PlacementOptions(objective=objective),
    )


@pytest.mark.parametrize("seed", sweep(range(20), always=[0, 1, 4, 7, 10, 13]))
def test_every_combination_gives_the_interpreters_bits(seed):
    print("seed", seed)
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randrange(1, 40), PINNED if seed % 2 else SOME_FREE)
    feeds = feeds_of(graph, seed)
    want = run_reference(graph, feeds)
    for combination in COMBINATIONS:
        with open_session(graph, *combination) as session:
            check_plan(session.plan)
            order = any_order(session.plan.tasks, rng)
            for outputs in (session.run(feeds), session.run_in_order(feeds, order)):
                for name, array in want.items():
                    assert outputs[name].tobytes() == array.tobytes(), (name, combination)


@pytest.mark.parametrize("seed", sweep(range(8), always=[0, 3, 5, 6]))
def test_split_runs_one_subgraph_after_another(seed):
    """No task starts before every task of the subgraph before it is over, in any order allowed."""
    graph = random_graph(random.Random(seed), 30)
    for execution in EXECUTIONS:
        with open_session(graph, subgraphs="split", execution=execution) as session:
            tasks = session.plan.tasks
            before = []
            for task in tasks:
                mine = {i for w in task.waits for i in (w, *before[w])}
                before.append(mine)
                earlier = {t.index for t in tasks if t.subgraph < task.subgraph}
                assert earlier <= mine
            regions = {t.subgraph for t in tasks if not t.is_copy}
            assert {t.subgraph for t in tasks} == regions
            for region in regions:
                assert len({t.device for t in tasks if t.subgraph == region and not t.is_copy}) == 1


def test_the_fastest_placement_gives_the_same_bits_too():
    """Searched for, all its tasks ordered: not by serial prices alone."""
    graph = random_graph(random.Random(4), 25, SOME_FREE)
    feeds = feeds_of(graph, 4)
    want = run_reference(graph, feeds)
    with open_session(graph, objective="makespan") as session:
        check_plan(session.plan)
        for name, array in session.run(feeds).items():
            assert array.tobytes() == want[name].tobytes()


def test_interactive_makes_a_task_of_every_node():
    graph = random_graph(random.Random(3), 30)
    with open_session(graph, execution="interactive") as session:
        assert all(len(task.nodes) == 1 for task in session.plan.tasks)
        assert len(session.plan.tasks) == len(session.plan.graph.nodes)


@pytest.mark.parametrize("subgraphs", SUBGRAPHS)
def test_a_watched_run_shows_every_value(subgraphs):
    graph = random_graph(random.Random(5), 20)
    feeds = feeds_of(graph, 5)
    seen = {}
    with open_session(graph, "serial", subgraphs, "interactive") as session:
        outputs = session.run_nodes(feeds, lambda step: seen.update(step.values))
        lines = []
        session.run_nodes(feeds, lambda step: lines.append(str(step)))
        placed = session.plan.graph
    want = run_reference(graph, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(outputs[name], array)
    read = {v for node in placed.nodes for v in node.used} | set(placed.outputs)
    made = {v for node in placed.nodes for v in node.outputs}
    assert set(seen) == read & made
    assert any("float32[3,8]" in line and "min" in line for line in lines)


@pytest.mark.parametrize(
    "options", [{"mode": "fast"}, {"subgraphs": "both"}, {"execution": "eager"}]
)
def test_unknown_modes_are_refused(options):
    with pytest.raises(RunError, match=next(iter(options))):
        open_session(random_graph(random.Random(0), 3), **options)


def three_nodes():
    b = GraphBuilder("three")
    x = b.input("x", TensorType((3, 8), "float32"))
    one = b.add("tanh", x, source="t:one", pin="npu", names=["one"])
    two = b.add("relu", one, source="t:two", pin="cpu", names=["two"])
    return b.finish(b.add("neg", two, source="t:three", pin="npu", names=["three"]))


class Wrong(ToyDevice):
    """A device on which relu is off by a little."""

    def compile(self, graphs):
        made = super().compile(graphs)
        for executable in made:
            executable.bind = lambda args, scratch, e=executable: _WrongCall(
                type(e).bind(e, args, scratch), args, e.graph
            )
        return made


class _WrongCall:
    def __init__(self, call, args, graph):
        self.call, self.args, self.graph = call, args, graph

    def launch(self, profile=False):
        event = self.call.launch(profile)
        if any(node.op == "relu" for node in self.graph.nodes):
            last = self.args[-1]
            view = last.handle[last.offset : last.offset + last.nbytes].view(np.float32)
            view[0] += 0.5
        return event


X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def test_the_first_divergence_is_found_by_node():
    with open_session(
        three_nodes(), execution="interactive", toys=[Wrong("cpu"), ToyDevice("npu")]
    ) as session:
        rows = compare_nodes(session, {"x": X})
    apart = [row for row in rows if not row.agrees]
    assert [row.node.source for row in apart] == ["t:two"]
    assert apart[0].device == "cpu" and apart[0].local.largest > 0.1
    last = rows[-1]
    assert last.agrees and last.local.largest == 0 and last.total.largest > 0.1
    assert "APART relu" in str(apart[0])


def test_sunk_regions_are_compared_where_values_leave_them():
    with open_session(three_nodes(), toys=[Wrong("cpu"), ToyDevice("npu")]) as session:
        rows = compare_nodes(session, {"x": X})
    first = next(row for row in rows if not row.agrees)
    assert first.node.source == "t:two"


@pytest.mark.parametrize(
    "ours, theirs, largest, differing",
    [
        ([1.0, np.nan], [1.0, np.nan], 0.0, 0.0),
        ([1.0, np.nan], [1.0, 2.0], np.inf, 0.5),
        ([1.0, np.inf], [1.0, np.inf], 0.0, 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1, 0.5),
        ([], [], 0.0, 0.0),
        ([1.0], [1.0, 1.0], np.inf, 1.0),
    ],
)
def test_gaps(ours, theirs, largest, differing):
    found = gap(np.array(ours), np.array(theirs))
    assert found.largest == pytest.approx(largest) and found.differing == pytest.approx(differing)


def test_gaps_of_integers_are_units():
    found = gap(np.array([1, 2], np.int8), np.array([1, 5], np.int8))
    assert (found.kind, found.largest, found.differing) == ("units", 3.0, 0.5)
