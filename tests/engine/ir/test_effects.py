"""State: reads and writes keep the order in which they were built, whatever runs in parallel."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from plan_verifier import check_plan
from sweep import sweep
from toy_device import ToyDevice
from toy_graphs import any_order

from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret, run_reference
from trireme.model_file import dumps, loads
from trireme.passes.pipeline import optimise
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError, PlacementError, PlanError, RunError

T = TensorType((3, 8), "float32")
ZERO = np.zeros((3, 8), np.float32)
COMBINATIONS = list(
    itertools.product(("serial", "parallel"), ("merged", "split"), ("sunk", "interactive"))
)


def example():
    """x = y; x = relu(z), made on one device; x - y on another: right only if order is kept."""
    b = GraphBuilder("example")
    y, z = b.input("y", T), b.input("z", T)
    initial = b.constant("x0", ZERO)
    b.add("assign", y, state="x")
    w = b.add("relu", z, pin="npu")
    b.add("assign", w, state="x")
    x = b.add("variable", initial, state="x")
    # z and w are outputs, so that nobody waits for their memory.
    return b.finish(b.add("sub", x, y, pin="cpu", names=["d"]), z, w)


def toys(**npu):
    return [ToyDevice("cpu", launch_s=1e-6), ToyDevice("npu", memory="host", **npu)]


def open_session(
    graph,
    mode="parallel",
    subgraphs="merged",
    execution="interactive",
    devices=None,
    objective="serial",
):
    return Session(
        graph,
        devices=devices or toys(),
        execution_options=ExecutionOptions(passes=(), subgraphs=subgraphs, execution=execution),
        calibration=Calibration(),
        mode=mode,
        placement_options=PlacementOptions(objective=objective),
    )


def test_the_fastest_placement_keeps_the_order_too():
    graph = random_program(3)
    with open_session(graph, devices=toys(), objective="makespan") as session:
        check_plan(session.plan)


def right_runs(session, times):
    rng = np.random.default_rng(7)
    feeds = [
        {name: rng.standard_normal((3, 8)).astype(np.float32) for name in "yz"} for _ in range(16)
    ]
    want = [(np.maximum(f["z"], 0) - f["y"]).tobytes() for f in feeds]
    return sum(session.run(feeds[k % 16])["d"].tobytes() == want[k % 16] for k in range(times))


def without_edges(graph):
    return replace(graph, nodes=tuple(replace(node, after=()) for node in graph.nodes))


def test_the_builder_orders_reads_and_writes():
    graph = example()
    assert [node.after for node in graph.nodes] == [(), (), (0,), (2,), ()]
    assert "after #2" in str(graph)


def test_reads_wait_for_writes_only_and_states_are_apart():
    b = GraphBuilder("g")
    v, c = b.input("v", T), b.constant("c", ZERO)
    b.add("assign", v, state="a")  # 0
    b.add("variable", c, state="a")  # 1
    b.add("variable", c, state="a")  # 2
    b.add("assign", v, state="b")  # 3
    b.add("assign", v, state="a")  # 4
    y = b.add("variable", c, state="b")  # 5
    assert [n.after for n in b.finish(y).nodes] == [(), (0,), (0,), (), (1, 2), (3,)]


@pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
def test_the_example_is_right_in_every_mode(combination):
    with open_session(example(), *combination) as session:
        check_plan(session.plan)
        assert right_runs(session, 50) == 50


def test_the_example_is_right_many_times_in_parallel():
    with open_session(example()) as session:
        assert right_runs(session, 2_000) == 2_000


@pytest.mark.slow
def test_the_example_is_right_a_hundred_thousand_times():
    with open_session(example()) as session:
        assert right_runs(session, 100_000) == 100_000


def test_a_mutant_without_the_edges_fails():
    """Nothing makes the read wait for the write of the slow branch: x is then y."""
    with open_session(without_edges(example()), devices=toys(delay_s=2e-3)) as session:
        assert right_runs(session, 20) < 20


def test_a_plan_that_breaks_an_effect_is_found():
    with open_session(example()) as session:
        tasks = [
            replace(task, waits=(), effects=()) if task.nodes[0].op == "variable" else task
            for task in session.plan.tasks
        ]
        with pytest.raises(PlanError, match="must run after the effect"):
            check_plan(replace(session.plan, tasks=tuple(tasks)))


def test_a_plan_of_a_graph_without_the_edges_is_found():
    """The checker finds the order of effects by itself: it does not believe `Node.after`."""
    with (
        open_session(without_edges(example())) as session,
        pytest.raises(PlanError, match="must run after the effect"),
    ):
        check_plan(session.plan)


@pytest.mark.parametrize("seed", sweep(range(25), always=range(1, 25, 3)))
def test_effects_are_checked_apart_from_shared_bytes(seed):
    """Drop effect waits one at a time, and leave the task waiting: as a planner would whose bytes
    happen to order the tasks. The checker objects unless data or other effects give the order.
    """
    print("seed", seed)
    objected = 0
    with open_session(random_program(seed)) as session:
        plan = session.plan
        check_plan(plan)
        for task in plan.tasks:
            for effect in task.effects:
                fewer = replace(task, effects=tuple(e for e in task.effects if e != effect))
                tasks = (*plan.tasks[: task.index], fewer, *plan.tasks[task.index + 1 :])
                assert effect in fewer.waits
                if ordered_without_bytes(plan, tasks, task.index, effect):
                    check_plan(replace(plan, tasks=tasks))
                    continue
                objected += 1
                with pytest.raises(PlanError, match="must run after the effect"):
                    check_plan(replace(plan, tasks=tasks))
        assert objected or not any(len(task.effects) for task in plan.tasks)
        unwaited = tuple(replace(task, waits=()) for task in plan.tasks)
        if any(task.effects for task in unwaited):
            with pytest.raises(PlanError):
                check_plan(replace(plan, tasks=unwaited))


def ordered_without_bytes(plan, tasks, later, earlier):
    """Whether a path of data and effects leads from one task to another."""
    made_in = {value: task.index for task in tasks for value in task.outputs}
    seen, stack = set(), [later]
    while stack:
        task = tasks[stack.pop()]
        for other in {*task.effects, *(made_in[v] for v in task.inputs if v in made_in)} - seen:
            seen.add(other)
            stack.append(other)
    return earlier in seen


def counter():
    b = GraphBuilder("counter")
    step = b.input("step", T)
    old = b.add("variable", b.constant("zero", ZERO), state="total")
    return b.finish(b.add("assign", b.add("add", old, step), state="total", names=["total"]))


def test_states_last_from_run_to_run_and_can_be_set():
    one = np.ones((3, 8), np.float32)
    with Session(counter(), calibration=Calibration()) as session:
        np.testing.assert_array_equal(session.states["total"], ZERO)
        for k in range(1, 4):
            np.testing.assert_array_equal(session.run({"step": one})["total"], k * one)
        np.testing.assert_array_equal(session.states["total"], 3 * one)
        session.states["total"] = 10 * one
        np.testing.assert_array_equal(session.run({"step": one})["total"], 11 * one)
        session.states.clear()
        np.testing.assert_array_equal(session.run({"step": one})["total"], one)
        with pytest.raises(RunError, match="no state 'totel'"):
            session.states["totel"] = one
        with pytest.raises(RunError, match="float32"):
            session.states["total"] = np.ones(3, np.float32)
    with Session(counter(), calibration=Calibration()) as other:
        np.testing.assert_array_equal(other.run({"step": one})["total"], one)


def test_a_given_host_device_keeps_the_states():
    with Session(
        counter(), devices=["cpu", open_device("host")], execution_options=AS_GIVEN
    ) as session:
        session.run({"step": ZERO + 2})
        assert session.states["total"][0, 0] == 2


def test_model_files_and_passes_keep_the_order():
    for graph in (example(), counter()):
        again = loads(dumps(graph))
        assert str(again) == str(graph)
        assert [n.after for n in again.nodes] == [n.after for n in graph.nodes]
        made = optimise(graph)
        kept = [n.op for n in made.nodes if n.op in ("assign", "variable")]
        assert kept == [n.op for n in graph.nodes if n.op in ("assign", "variable")]
    feeds = {"y": ZERO + 1, "z": ZERO + 5}
    np.testing.assert_array_equal(run_reference(optimise(example()), feeds)["d"], ZERO + 4)


def random_program(seed):
    """A random sequence of reads and writes of three states, on random devices."""
    rng = random.Random(seed)
    b = GraphBuilder("program")
    live = [b.input("x", T), b.input("y", T)]
    initial = b.constant("zero", ZERO)
    for _ in range(rng.randrange(5, 30)):
        kind, state = rng.randrange(4), rng.choice("abc")
        if kind == 0:
            b.add("assign", rng.choice(live), state=state)
        elif kind == 1:
            live.append(b.add("variable", initial, state=state))
        else:
            op, pin = rng.choice(["tanh", "relu", "neg"]), rng.choice(["cpu", "npu"])
            live.append(b.add(op, rng.choice(live), pin=pin))
    return b.finish(*dict.fromkeys([live[-1], rng.choice(live), rng.choice(live)]))


@pytest.mark.parametrize("seed", sweep(range(25), always=range(0, 25, 3)))
def test_random_programs_equal_the_interpreter_over_several_runs(seed):
    print("seed", seed)
    graph, rng = random_program(seed), np.random.default_rng(seed)
    feeds = [{n: rng.standard_normal((3, 8)).astype("float32") for n in "xy"} for _ in range(4)]
    states, want = {}, []
    for one in feeds:
        given = {v.id: one[v.name] for v in graph.input_values()}
        want.append(interpret(graph, given, states=states))
    toys = [ToyDevice("cpu"), ToyDevice("npu")]
    for combination in COMBINATIONS:
        with open_session(graph, *combination, devices=toys) as s:
            check_plan(s.plan)
            for turn, (one, right) in enumerate(zip(feeds, want, strict=True)):
                if turn == 2:
                    order = any_order(s.plan.tasks, random.Random(seed))
                    outputs = s.run_in_order(one, order)
                else:
                    outputs = s.run(one)
                for value in graph.outputs:
                    name = graph.values[value].name
                    assert outputs[name].tobytes() == right[value].tobytes(), combination


def test_one_state_has_one_type():
    b = GraphBuilder("g")
    b.add("assign", b.input("x", T), state="s")
    y = b.add("variable", b.constant("c", np.zeros(3, np.float32)), state="s")
    with pytest.raises(GraphError, match=r"state 's' is float32\[3\] here, float32\[3,8\] before"):
        b.finish(y)


def test_a_state_has_one_type_in_bodies_too():
    inner = GraphBuilder("body")
    body = inner.finish(inner.add("assign", inner.input("v", T), state="s"))
    b = GraphBuilder("g")
    condition, x = b.input("c", TensorType((), "bool")), b.input("x", T)
    b.add("variable", b.constant("c", np.zeros(3, np.float32)), state="s")
    y = b.add("if", condition, x, then_branch=body, else_branch=body)
    with pytest.raises(GraphError, match=r"'s' is float32\[3,8\] in its body 'body', float32\[3\]"):
        b.finish(y)


def test_the_host_takes_no_other_ops_unless_asked():
    b = GraphBuilder("g")
    b.add("assign", b.input("x", T), state="s")
    y = b.add("erf", b.values[0].id)
    with pytest.raises(PlacementError, match="the host keeps states, drives control flow"):
        open_session(b.finish(y), devices=[ToyDevice("cpu", ops={"relu"})])
