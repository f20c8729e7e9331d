"""Arena, scratch, weights and code are one budget of each memory, in the search and in the plan."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from npu import Int8Builder
from placement_cases import random_problem
from placing import place_plain
from toy_device import ToyDevice

from trireme import CompileError, DeviceError, PlacementError, PlanError, Session
from trireme.backend.device import Resident
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described.soc import load_soc
from trireme.devices.npu.spec import load_spec
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.placement.bounds import makespan_bound
from trireme.placement.budget import memory_uses, scratch_bytes, streamed_s
from trireme.placement.deciding import _Duel, _groups
from trireme.placement.explain import explain
from trireme.placement.messages import price_bound
from trireme.placement.objective import Scorer
from trireme.placement.options import PlacementOptions
from trireme.placement.problem import Problem
from trireme.placement.search import Search
from trireme.placement.stages import rules
from trireme.placement.uncertainty import priced, rivals
from trireme.placement.virtual_time import end_s, timeline
from trireme.plan.plan import make_plan
from trireme.runtime.program.options import AS_GIVEN
from trireme.support.units import bytes_text


def limited(seed, streams):
    """A tiny random problem whose devices' memories cannot hold everything."""
    rng = random.Random(seed)
    kind = ("layered", "series-parallel")[seed % 2]
    sizes = (random_problem(kind, seed, n) for n in range(7, 1, -1))
    problem = next(p for p in sizes if math.prod(map(len, p.able)) <= 100)
    resident = [[drawn(rng) for _ in problem.devices] for _ in range(problem.n)]
    whole = sum(problem.nbytes.values()) + sum(max(r.weights for r in row) for row in resident)
    spaces = problem.machine.spaces[1:]
    machine = replace(
        problem.machine,
        budget={space: int(whole * rng.uniform(0.05, 0.6)) for space in spaces},
        sram=tuple(rng.choice((0, 5_000)) for _ in problem.devices),
        streams=frozenset(spaces if streams else ()),
    )
    return Problem(
        machine,
        problem.seconds,
        problem.inputs,
        problem.after,
        problem.outputs,
        problem.nbytes,
        resident,
    )


def drawn(rng):
    """What a node keeps; one of two constants is often read by other nodes too."""
    own, shared = int(rng.expovariate(1 / 40e3)), rng.choice(((), ((0, 9_000),), ((1, 20_000),)))
    return Resident(own + sum(nbytes for _, nbytes in shared), rng.randrange(500), shared)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_search_finds_the_best_that_fits_and_bounds_hold(seed, streams):
    """Every assignment is tried in the tasks of every rule; what does not fit does not count."""
    print("seed", seed)
    problem = limited(seed, streams)
    for objective in ("makespan", "serial", "throughput"):
        search = Search(problem, objective)
        load = search.load
        scorer = Scorer(problem, objective)
        fitting = [
            scorer.value(assigned, tasks)
            for assigned in itertools.product(*problem.able)
            for tasks in rules(problem, assigned)
            if not scorer.overfull(assigned, tasks) and not scorer.excess(assigned, tasks)
        ]
        if not fitting:
            assert search.value > 1
            continue
        best = min(fitting)
        value = scorer.value(search.best, search.tasks)
        assert not scorer.overfull(search.best, search.tasks)
        assert value <= best * (1 + 1e-9), f"{objective}: {value} found, {best} is possible"
        if objective == "serial":
            bound = price_bound(problem, scorer.prices, search.best, value, None)[0]
        else:
            bound = load.seconds
        if objective == "makespan":
            bound = max(bound, makespan_bound(problem, value)[0])
        assert bound <= min(best, value) * (1 + 1e-9), objective


@pytest.mark.parametrize("seed", range(8))
def test_what_is_streamed_is_what_finds_no_room(seed):
    problem = limited(seed, streams=True)
    for assigned in itertools.islice(itertools.product(*problem.able), 0, None, 7):
        for tasks in rules(problem, assigned):
            uses, fetched = (
                memory_uses(problem, assigned, tasks),
                streamed_s(problem, assigned, tasks),
            )
            assert math.isclose(
                sum(fetched.values()), sum(use.streamed_s for use in uses), abs_tol=1e-15
            )
            for use in uses[1:]:
                room = use.limit - use.arena - use.scratch - use.code
                assert use.streamed == max(use.weights - max(room, 0), 0)
                assert (use.excess > 0) == (room < 0)
            scorer = Scorer(problem, "serial")
            bare = Scorer(replaced(problem, streams=frozenset()), "serial")
            more = scorer.value(assigned, tasks) - bare.value(assigned, tasks)
            assert math.isclose(more, sum(fetched.values()), rel_tol=1e-9, abs_tol=1e-12)


def replaced(problem, **changes):
    return Problem(
        replace(problem.machine, **changes),
        problem.seconds,
        problem.inputs,
        problem.after,
        problem.outputs,
        problem.nbytes,
        problem.resident,
    )


def dense(layers=4, width=64, batch=1):
    """Fully connected layers of width x width float32 weights."""
    b = GraphBuilder("dense")
    x = b.input("x", TensorType((batch, width), "float32"))
    for i in range(layers):
        w = b.constant(f"w{i}", np.full((width, width), 1e-2, np.float32))
        x = b.add("matmul", x, w, source=f"t:{i}")
    return b.finish(x)


LAYER = 64 * 64 * 4


def toys(limit, **options):
    npu = ToyDevice("npu", flops=1e12, memory_bytes=limit)
    npu.spec = replace(npu.spec, **options)
    return {"npu": npu, "cpu": ToyDevice("cpu", flops=1e7, bandwidth=1e7)}


def placed(graph, devices):
    return place_plain(graph, CostModel(devices, Calibration()))


def test_weights_count_against_a_devices_memory():
    devices = toys(2 * LAYER + 4096)
    placement = placed(dense(), devices)
    assert len(placement.nodes_on("npu")) == 2
    (use,) = (use for use in placement.memory if use.memory == "npu")
    assert use.weights == 2 * LAYER and use.needed <= use.limit
    assert f"memory of {use.rounded()}" in str(explain(placement))
    assert placement.to_json()["memory"][1]["weights"] == 2 * LAYER


def tied(layers=3, width=64):
    """Layers that read one weight, as tied embeddings do."""
    b = GraphBuilder("tied")
    x = b.input("x", TensorType((1, width), "float32"))
    w = b.constant("w", np.full((width, width), 1e-2, np.float32))
    for i in range(layers):
        x = b.add("matmul", x, w, source=f"t:{i}")
    return b.finish(x)


def test_a_constant_that_a_task_reads_twice_counts_once():
    """The limit holds the weight once; the cpu would take a thousand times as long."""
    devices = toys(LAYER + 4096)
    with Session(tied(), devices=list(devices.values())) as session:
        placement, program = session.placement, session.program
        assert len(placement.nodes_on("npu")) == 3
        (use,) = (use for use in placement.memory if use.memory == "npu")
        assert use.weights == LAYER == session.plan.memory["npu"].weights
        assert use.weights == sum(made.constant_bytes for made in program.executables if made)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_what_an_npu_stores_is_what_is_counted(dtype):
    """Layers of one weight and one scale are packed once, as is a constant that two nodes add."""
    quant = Quant((0.05,), (0,)) if dtype == "int8" else None
    b = GraphBuilder("shared")
    x = b.input("x", TensorType((64, 64), dtype, quant))
    w, other = (b.constant(n, np.ones((64, 64), dtype), quant) for n in ("w", "other"))
    for i in range(4):
        x = b.add_node("fully_connected", [x, w if i < 3 else other], {}, quants=[quant])[0]
        x = b.add_node("add", [x, w], {}, quants=[quant])[0]
    graph = b.finish(x)
    npu = open_device("npu")
    placement = placed(graph, {"npu": npu})
    (executable,) = npu.compile([graph])
    (use,) = (use for use in placement.memory if use.memory == "npu")
    layer = 64 * 64 * (1 if quant else 2)
    assert use.weights == executable.constant_bytes
    assert 3 * layer <= use.weights <= 3.5 * layer
    npu.close()


def test_what_does_not_fit_names_the_three_largest_values():
    devices = {"npu": toys(2 * LAYER)["npu"]}
    with pytest.raises(PlacementError) as caught:
        placed(dense(), devices)
    text = str(caught.value)
    assert f"of {2 * LAYER} bytes" in text and f"weights {4 * LAYER}" in text
    for name in ("w0", "w1", "w2"):
        assert f"weights '{name}' float32[64,64], {LAYER} bytes" in text
    assert "w3" not in text


def test_streamed_weights_have_the_links_price():
    """Placed alike, the run takes longer by what the missing weights need on the link."""
    whole = {"npu": toys(1 << 20, link_bandwidth=1e8)["npu"]}
    part = {"npu": toys(2 * LAYER + 4096, link_bandwidth=1e8, streams_weights=True)["npu"]}
    large, small = placed(dense(), whole), placed(dense(), part)
    (use,) = (use for use in small.memory if use.memory == "npu")
    assert 2 * LAYER - 4096 <= use.streamed <= 2 * LAYER
    assert use.streamed_s == pytest.approx(use.streamed / 1e8)
    assert small.makespan_s == pytest.approx(large.makespan_s + use.streamed_s)
    assert f"{bytes_text(use.streamed)} of weights streamed a run" in str(explain(small))
    assert sum(small.streamed_s.values()) == pytest.approx(use.streamed_s)
    plan = make_plan(small)
    slices = timeline(plan.tasks, [task.estimate_s for task in plan.tasks])
    assert end_s(slices) == pytest.approx(small.makespan_s)


def test_streaming_is_weighed_against_another_device():
    """A slow link makes it better to leave layers to the cpu than to stream them."""
    fast, slow = (
        placed(dense(), toys(2 * LAYER + 4096, link_bandwidth=rate, streams_weights=True))
        for rate in (1e12, 1e6)
    )
    assert len(fast.nodes_on("npu")) == 4 and len(slow.nodes_on("npu")) < 4


def test_scratch_is_what_lives_inside_a_task_beyond_the_chip():
    """A chain of values of one size: two live at once inside a task."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((1000,), "float32"))
    for _ in range(5):
        x = b.add("relu", x)
    graph = b.finish(x)
    for sram, wanted in ((0, 8000), (3000, 5000), (9000, 0)):
        npu = toys(1 << 20, sram_bytes=sram)["npu"]
        placement = placed(graph, {"npu": npu})
        use = placement.memory[1]
        assert (use.scratch, use.arena) == (wanted, 8064)
        assert make_plan(placement).memory["npu"].scratch == max(8064 - sram, 0)
    problem = limited(2, streams=False)
    tasks = next(rules(problem, tuple(able[0] for able in problem.able)))
    assert all(nbytes >= 0 for nbytes in scratch_bytes(problem, [t[0] for t in tasks], tasks))


def test_a_plan_that_needs_more_than_the_placement_is_refused():
    """Node by node everything between the nodes is in the arena: more than the sunk task needs."""
    b = GraphBuilder("wide")
    x = b.input("x", TensorType((1000,), "float32"))
    ways = [b.add("relu", x) for _ in range(6)]
    for way in ways[1:]:
        ways[0] = b.add("add", ways[0], way)
    npu = toys(16_500, sram_bytes=1 << 20)["npu"]
    placement = placed(b.finish(ways[0]), {"npu": npu})
    assert make_plan(placement).memory["npu"].excess == 0
    with pytest.raises(PlanError, match="bytes are needed of npu, its memory has 16500"):
        make_plan(placement, execution="interactive")


def test_scratch_that_a_device_turns_out_to_need_is_found_before_anything_runs():
    device = toys(64 << 10)["npu"]
    device.scratch_bytes = 60 << 10
    with pytest.raises(PlanError, match=r"scratch 61440") as caught:
        Session(dense(1), devices=[device], execution_options=AS_GIVEN, calibration=Calibration())
    assert caught.value.device == "npu" and "weights 'w0'" in str(caught.value)


def test_a_device_that_no_task_is_on_needs_no_scratch():
    devices = toys(64 << 10)
    devices["npu"].scratch_bytes = 100
    pins = {node.id: "npu" for node in dense(1).nodes}
    given = dict(
        devices=list(devices.values()), execution_options=AS_GIVEN, calibration=Calibration()
    )
    with Session(dense(1), placement_options=PlacementOptions(pins=pins), **given) as session:
        assert session.program.scratch_bytes() == {"cpu": 0, "npu": 100}


def test_two_buffers_of_one_piece():
    """A memory that gives no such large piece is as good as one that is too small."""
    device = toys(1 << 20, buffer_bytes=100)["npu"]
    with pytest.raises(PlanError, match="in one piece are needed of npu, which gives 100"):
        Session(dense(1), devices=[device], execution_options=AS_GIVEN, calibration=Calibration())


@pytest.mark.parametrize("step", ["resident", "alloc", "compile", "bind"])
@pytest.mark.parametrize("error", [DeviceError, CompileError, OSError])
def test_fallback_covers_every_error_before_the_run(step, error):
    def devices():
        npu = ToyDevice("npu", flops=1e12)
        npu.fails[step] = error("it is on fire")
        return [npu, ToyDevice("cpu", flops=1e6)]

    given = {"execution_options": AS_GIVEN, "calibration": Calibration()}
    with pytest.raises((DeviceError, CompileError), match="it is on fire") as caught:
        Session(dense(1), devices=devices(), **given)
    assert caught.value.device == "npu"
    with Session(dense(1), devices=devices(), fallback=True, **given) as session:
        assert list(session.devices) == ["cpu"] and "it is on fire" in session.dropped["npu"]
        session.run({"x": np.ones((1, 64), np.float32)})
    with pytest.raises((DeviceError, CompileError), match="it is on fire"):
        Session(dense(1), devices=devices()[:1], fallback=True, **given)


def test_fallback_covers_memory_that_code_turns_out_to_need():
    npu = toys(64 << 10)["npu"]
    npu.scratch_bytes = 60 << 10
    with Session(
        dense(1),
        devices=[npu, ToyDevice("cpu", flops=1e6)],
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        fallback=True,
    ) as session:
        assert "scratch 61440" in session.dropped["npu"]


def test_a_simulated_npu_keeps_to_its_memory():
    """A megabyte of weights on 256 KiB of DRAM; what fits is as the compiled program says."""
    b = Int8Builder(np.random.default_rng(3))
    x = b.op("fully_connected", b.feed(1, 256), b.weights(256, 256), b.bias(256))
    graph = b.finish(b.op("fully_connected", x, b.weights(4096, 256), b.bias(4096)))
    machine = load_spec("mobile")
    machine = replace(machine, dram=replace(machine.dram, bytes=256 << 10))
    with pytest.raises(PlacementError, match="npu: [0-9]+ of 262144 bytes"):
        Session(
            graph,
            devices=[open_device("npu", spec=machine)],
            execution_options=AS_GIVEN,
            calibration=Calibration(),
        )
    with Session(
        graph,
        devices=[open_device("npu", spec=machine), "cpu"],
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        placement_options=PlacementOptions(pins={"#0": "npu"}),
    ) as session:
        predicted, real = session.placement.memory[1], session.program.memory_uses()["npu"]
        assert len(session.placement.nodes_on("npu")) == 1
        assert 65_536 <= real.weights <= predicted.weights + 64 and real.code <= predicted.code
        assert real.needed <= real.limit


def test_an_edge_tpu_streams_what_its_memory_does_not_hold():
    """20 MB of weights on Coral's 8 MB: placed there at the link's price, and said so."""
    b = Int8Builder(np.random.default_rng(3))
    x = b.feed(1, 2048)
    for _ in range(5):
        x = b.op("fully_connected", x, b.weights(2048, 2048), b.bias(2048))
    devices = load_soc("coral_dev_board").devices()
    placement = placed(b.finish(x), {"tpu": devices["tpu"]})
    (use,) = (use for use in placement.memory if use.memory == "tpu")
    beyond = use.weights + use.arena + use.scratch - 8_000_000
    assert use.weights > 20e6 and beyond <= use.streamed <= beyond + 0.05 * use.arena + 1
    assert use.streamed_s == pytest.approx(use.streamed / 400e6, rel=1e-6)
    assert placement.makespan_s > use.streamed_s > 0.03


def test_what_decides_counts_streamed_weights():
    devices = toys(2 * LAYER + 4096, link_bandwidth=1e6, streams_weights=True)
    placement = placed(dense(), devices)
    pricing = priced(placement, CostModel(devices, Calibration()))
    scorer = Scorer(pricing.problem, "makespan")
    assigned, tasks = pricing.assignment_of(placement)
    compared = 0
    for _, rival in rivals(pricing, scorer, (assigned, tasks)):
        for group in _groups(pricing, (assigned, tasks), rival):
            lead = _Duel(pricing, scorer, (assigned, tasks), rival, group).lead(1.0)
            compared += bool(streamed_s(pricing.problem, *rival))
            assert lead == scorer.value(*rival) - scorer.value(assigned, tasks)
    assert compared
