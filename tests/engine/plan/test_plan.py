"""Plans: random graphs under random placements give the interpreter's bits in any allowed order."""

import functools
import random
from dataclasses import replace

import numpy as np
import pytest
from placing import place_plain
from plan_verifier import check_plan
from sweep import sweep
from toy_device import ToyDevice
from toy_graphs import (
    F32,
    PINNED,
    SOME_FREE,
    any_order,
    devices,
    feeds_of,
    random_graph,
)

import trireme.ops  # noqa: F401
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.placement.options import PlacementOptions
from trireme.placement.virtual_time import end_s, timeline
from trireme.plan.plan import make_plan
from trireme.runtime.control.compile import compile_plan
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError, PlanError


@pytest.mark.parametrize("seed", sweep(range(60), always=range(0, 60, 5)))
def test_any_order_gives_the_interpreters_bits(seed):
    print("seed", seed)
    rng = random.Random(seed)
    graph = random_graph(rng, rng.randrange(1, 40), PINNED if seed % 2 else SOME_FREE)
    feeds = feeds_of(graph, seed)
    want = run_reference(graph, feeds)
    with Session(
        graph,
        devices=list(devices().values()),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        placement_options=PlacementOptions(objective="serial" if seed % 12 else "makespan"),
    ) as session:
        check_plan(session.plan)
        got = [session.run(feeds)]
        session.runs.mode = "serial"
        got.append(session.run(feeds))
        orders = [any_order(session.plan.tasks, rng) for _ in range(3)]
        got += [session.run_in_order(feeds, order) for order in orders]
        for outputs in got:
            for name, array in want.items():
                np.testing.assert_array_equal(outputs[name], array)


@functools.cache
def planned(seed, objective="serial"):
    graph = random_graph(random.Random(seed), 30, SOME_FREE)
    return make_plan(place_plain(graph, CostModel(devices()), objective))


def test_checker_finds_every_missing_wait_that_matters():
    """Take each wait away in turn: the checker objects unless other waits imply it."""
    objected = 0
    for seed in range(5):
        plan = planned(seed)
        for task in plan.tasks:
            for wait in task.waits:
                fewer = tuple(w for w in task.waits if w != wait)
                tasks = list(plan.tasks)
                tasks[task.index] = replace(task, waits=fewer)
                implied = implies(tasks, task.index, wait)
                broken = replace(plan, tasks=tuple(tasks))
                if implied:
                    check_plan(broken)
                else:
                    objected += 1
                    with pytest.raises(PlanError):
                        check_plan(broken)
    assert objected > 50


def implies(tasks, later, earlier):
    seen, stack = set(), list(tasks[later].waits)
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            stack += tasks[index].waits
    return earlier in seen


def test_checker_finds_an_overlap():
    plan = planned(3)
    value, slot = next(
        (v, s) for v, s in plan.slots.items() if s.offset and v not in plan.graph.inputs
    )
    moved = {**plan.slots, value: replace(slot, offset=0)}
    with pytest.raises(PlanError):
        check_plan(replace(plan, slots=moved))


def test_a_value_crosses_a_pair_once():
    b = GraphBuilder("fan")
    x = b.input("x", F32)
    top = b.add("tanh", x, pin="cpu")
    users = [b.add("relu", top, pin="npu") for _ in range(4)]
    plan = make_plan(place_plain(b.finish(*users), CostModel(devices())))
    to_npu = [t for t in plan.tasks if t.device == "host>npu"]
    assert len(to_npu) == 1
    assert len([t for t in plan.tasks if t.device == "npu"]) == 1


def test_no_device_names_every_refusal():
    b = GraphBuilder("g")
    graph = b.finish(b.add("tanh", b.input("x", F32), source="onnx:Tanh_1"))
    only_relu = {"cpu": ToyDevice("cpu", ops={"relu"}), "npu": ToyDevice("npu", ops={"add"})}
    with pytest.raises(PlacementError) as caught:
        place_plain(graph, CostModel(only_relu))
    text = str(caught.value)
    assert "onnx:Tanh_1" in text
    assert "op tanh has no cpu kernel" in text
    assert "op tanh has no npu kernel" in text


def test_a_pin_that_cannot_be_kept_is_an_error():
    b = GraphBuilder("g")
    graph = b.finish(b.add("tanh", b.input("x", F32), pin="npu"))
    with pytest.raises(PlacementError, match="pinned to npu"):
        place_plain(graph, CostModel({"cpu": ToyDevice("cpu")}))


@pytest.mark.parametrize(
    ("memory_bytes", "said"),
    [(64, r"float32\[3,8\] takes 96 bytes, npu has 64"), (100, "fits the devices. memory")],
)
def test_memory_too_small(memory_bytes, said):
    """For one value, or for the two that a node needs at once."""
    b = GraphBuilder("g")
    graph = b.finish(b.add("tanh", b.input("x", F32), pin="npu"))
    tiny = {"cpu": ToyDevice("cpu"), "npu": ToyDevice("npu", memory_bytes=memory_bytes)}
    with pytest.raises(PlacementError, match=said):
        make_plan(place_plain(graph, CostModel(tiny)))


def test_unknown_shape_is_a_sentence():
    b = GraphBuilder("g")
    graph = b.finish(b.add("tanh", b.input("x", TensorType(("N", 4), "float32"))))
    with pytest.raises(PlanError, match="not known before it runs"):
        place_plain(graph, CostModel({"cpu": ToyDevice("cpu")}))


@pytest.mark.parametrize("seed", sweep(range(20), always=[8]))
def test_never_worse_than_the_best_single_device(seed):
    print("seed", seed)
    graph = random_graph(random.Random(seed), 40)
    unpinned = replace(graph, nodes=tuple(replace(n, pin=None) for n in graph.nodes))
    placement = place_plain(unpinned, CostModel(devices()))
    singles = [one.value for one in placement.candidates if one.kind == "single"]
    assert len(singles) == 3
    assert placement.score.lower_bound <= placement.makespan_s <= min(singles) + 1e-12


@pytest.mark.parametrize("seed", sweep(range(20), always=[9]))
def test_the_plan_takes_what_the_placement_predicts(seed):
    """Waits for memory can only delay; without them plan and placement agree."""
    print("seed", seed)
    plan = planned(seed, "makespan")
    predicted = end_s(timeline(plan.tasks, [t.estimate_s for t in plan.tasks]))
    assert predicted >= plan.placement.makespan_s * (1 - 1e-9)
    assert predicted <= plan.placement.makespan_s * 1.5


def test_programs_are_shared_by_sessions():
    plan = planned(5)
    program = compile_plan(plan, devices())
    copies = [e for t, e in zip(plan.tasks, program.executables, strict=True) if t.is_copy]
    assert copies and all(e is None for e in copies)
