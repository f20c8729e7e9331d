"""Instances of the cpu device at work: threads and cores of their own, queues, splits, errors."""

import itertools
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from random_graphs import random_feeds, random_graph
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device, options_of
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration
from trireme.cost.model import CostModel
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.native import RING, has_futex
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.placement.virtual_time import timeline
from trireme.plan.plan import make_plan
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, RunError

pytestmark = pytest.mark.skipif(
    not has_futex() or len(all_cores()) < 2, reason="instances need Linux and two cores"
)
NAMES = ["cpu#1", "cpu#2"]
SIDE = 512


@pytest.fixture
def pair():
    """Two instances of one thread each."""
    opened = {
        name: open_device(name, **options_of(name, NAMES, {"cpu": {"spins": 500}}, 1))
        for name in NAMES
    }
    yield opened
    for device in opened.values():
        device.close()


def graph_of(ops, side=SIDE):
    builder = GraphBuilder("g")
    y = builder.input("x", TensorType((side, side), "float32"))
    for op in ops:
        more = [builder.constant("w", np.full((side, side), 1 / side, np.float32))]
        y = builder.add(op, y, *(more if op == "matmul" else []))
    return builder.finish(y)


def bound(device, ops, source=None, side=SIDE):
    """A call on a device, its input and its output; the input is another's output if given."""
    (executable,) = device.compile([graph_of(ops, side)])
    x, y = (source or device.alloc(4 * side * side)), device.alloc(4 * side * side)
    scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
    return executable.bind([x, y], scratch), x, y


def floats(buffer):
    return buffer.handle.view(np.float32)


def test_every_thread_keeps_to_the_cores_of_its_instance(pair):
    half, others = len(all_cores()) // 2, set(threading.enumerate())
    wide = open_device("cpu#2", instances=2, threads=half)
    opened = [*pair.values(), wide]
    try:
        for device in opened:
            bound(device, ["matmul"])[0].launch().wait()
        kept = {}
        for thread in threading.enumerate():
            is_worker = thread.name == "trireme-cpu-1" and thread not in others
            if is_worker or thread.name in ("trireme-cpu#1", "trireme-cpu#2"):
                cores = frozenset(os.sched_getaffinity(thread.native_id))
                kept.setdefault(thread.name, set()).add(cores)
        assert kept["trireme-cpu#1"] == {pair["cpu#1"].spec.cores}
        assert kept["trireme-cpu#2"] == {pair["cpu#2"].spec.cores}
        assert kept.get("trireme-cpu-1", {wide.spec.cores}) == {wide.spec.cores}
        assert not pair["cpu#1"].spec.cores & pair["cpu#2"].spec.cores
        assert os.sched_getaffinity(0) == set(all_cores()), "the caller's threads stay free"
    finally:
        wide.close()


def test_instances_are_one_kind_in_groups_of_their_own(pair):
    first, second = (device.spec for device in pair.values())
    assert (first.name, first.kind, first.memory) == ("cpu#1", "cpu", "host")
    assert first.resource_group != second.resource_group
    measured = DeviceCalibration("cpu", first.description, 1e-6)
    calibration = Calibration.of_devices(measured)
    assert calibration.of(first) is calibration.of(second) is measured
    costs = CostModel(pair, calibration)
    assert costs.launch_s("cpu#1") == pytest.approx(1e-6 + first.handover_s)
    assert first.handover_s > 0


@pytest.mark.parametrize("reads", ["relu", "det"])
def test_a_call_waits_for_calls_of_other_instances(pair, reads):
    """Launched at once, the second reads what the first makes; det runs in Python."""
    one, two = pair.values()
    ops = ["matmul"] * 6
    slow, x, y = bound(one, ops)
    quick, _, z = bound(two, ["relu"], source=y)
    floats(x)[:] = np.arange(SIDE * SIDE) % 7
    for round in range(20):
        floats(y)[:] = floats(z)[:] = -1
        floats(x)[0] = round
        event = slow.launch(profile=reads == "det")
        last = quick.launch(after=[event])
        last.wait()
        np.testing.assert_array_equal(floats(z), floats(y))
        assert floats(z).min() > 0
        event.wait()


def test_launches_return_before_the_work_is_done(pair):
    call, _, _ = bound(pair["cpu#1"], ["matmul"] * 8)
    call.launch().wait()

    def early():
        start = time.perf_counter()
        event = call.launch()
        launched = time.perf_counter() - start
        event.wait()
        return launched < 0.5 * (time.perf_counter() - start)

    assert any(early() for _ in range(20))  # on a busy machine one of them may come back late


def test_more_launches_than_the_queue_holds(pair):
    one, two = pair.values()
    call, x, y = bound(one, ["relu"], side=16)
    back, _, z = bound(two, ["neg"], source=y, side=16)
    floats(x)[:] = np.arange(256)
    events = []
    for _ in range(3 * RING):
        events.append(call.launch(after=events[-1:]))
        events.append(back.launch(after=events[-1:]))
    for event in events:
        event.wait()
    np.testing.assert_array_equal(floats(z), -floats(x))


def test_an_idle_instance_costs_no_cpu(pair):
    call, _, _ = bound(pair["cpu#1"], ["relu"])
    call.launch().wait()
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # one that spins takes a whole core


def test_what_python_runs_raises_where_it_is_waited_for(pair):
    builder = GraphBuilder("det")
    x = builder.input("x", TensorType((4, 4), "float32"))
    graph = builder.finish(builder.add("det", x))
    (executable,) = pair["cpu#1"].compile([graph])
    buffers = [pair["cpu#1"].alloc(64), pair["cpu#1"].alloc(4)]
    floats(buffers[0])[:] = np.eye(4).reshape(-1)
    call = executable.bind(buffers, None)
    call.launch().wait()
    assert floats(buffers[1])[0] == 1
    spans = call.launch(profile=True)
    spans.wait()
    assert [span.nodes for span in spans.spans()] == [(graph.nodes[0].id,)]
    call._bound.run = lambda: (_ for _ in ()).throw(RunError("it went wrong"))
    event, after = call.launch(), call.launch()
    for one in (event, after):
        with pytest.raises(RunError, match="it went wrong"):
            one.wait()
    pair["cpu#1"].close()
    with pytest.raises(DeviceError, match="cpu#1: the device is closed"):
        call.launch()


def test_a_profile_of_native_calls_waits_natively(pair):
    """No Python between two tasks of a profile: neither server has a job for it."""
    one, x, y = bound(pair["cpu#1"], ["matmul"] * 3)
    two, _, _ = bound(pair["cpu#2"], ["matmul"] * 2)
    for call in (one, two):  # the pools are up, the servers have their threads
        call.launch().wait()
    jobs = [call._server._state.jobs for call in (one, two)]
    floats(x)[:] = 0
    first = one.launch(profile=True)
    second = two.launch(profile=True, after=[first])
    assert not any(jobs)
    second.wait()
    first.wait()
    assert not floats(y).any()
    for event, steps in ((first, 3), (second, 2)):
        spans = event.spans()
        assert len(spans) == steps
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(spans))
    assert first.spans()[-1].end_s <= second.spans()[0].start_s


def test_an_interrupt_comes_out_when_the_call_is_over(pair):
    call, x, y = bound(pair["cpu#1"], ["matmul"] * 30)
    floats(x)[:] = 1
    call.launch().wait()
    floats(y)[:] = 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        event = call.launch()
        with pytest.raises(KeyboardInterrupt):
            event.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_allclose(floats(y), 1, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs(pair):
    call, x, y = bound(pair["cpu#1"], ["relu"])
    floats(x)[:] = 3
    call.launch().wait()
    floats(y)[:] = 0
    child = os.fork()
    if child == 0:
        ok = False
        try:
            call.launch().wait()
            ok = bool(np.array_equal(floats(y), floats(x)))
        finally:
            os._exit(0 if ok else 1)
    deadline = time.monotonic() + 20
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not done[0]:
        os.kill(child, signal.SIGKILL)
    assert done == (child, 0), "the forked child hangs or fails"
    call.launch().wait()


def test_compiling_more_while_calls_run(pair):
    """What threads have to themselves moves only when nothing runs."""
    device = pair["cpu#1"]
    call, x, y = bound(device, ["matmul"] * 4)
    floats(x)[:] = 1
    events = [call.launch() for _ in range(20)]
    other, a, b = bound(device, ["softmax", "matmul"], side=700)
    floats(a)[:] = 1
    other.launch().wait()
    for event in events:
        event.wait()
    np.testing.assert_allclose(floats(y), 1, rtol=1e-4)
    np.testing.assert_allclose(floats(b), 1 / 700, rtol=1e-4)


@pytest.mark.parametrize("mode", ["parallel", "serial", "auto"])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("seeds", sweep(["24", "0135"], always=["24"]))
def test_random_graphs_have_the_bits_of_one_device(mode, quantised, seeds):
    done = 0
    for seed in map(int, seeds):
        graph = random_graph(seed, 14, quantised=quantised)
        feeds = random_feeds(graph, seed)
        rng = np.random.default_rng(seed)
        nodes = tuple(replace(node, pin=str(rng.choice(NAMES))) for node in graph.nodes)
        pinned = replace(graph, nodes=nodes)
        with Session(graph, threads=1, execution_options=AS_GIVEN) as one:
            want = one.run(feeds)
        with Session(
            pinned,
            devices=NAMES,
            threads=1,
            execution_options=AS_GIVEN,
            mode=mode,
            placement_options=PlacementOptions(objective="serial"),
        ) as session:
            for _ in range(20 if mode == "auto" else 3):
                got = session.run(feeds)
                for name in want:
                    np.testing.assert_array_equal(got[name], want[name], err_msg=f"seed {seed}")
            done += len({task.device for task in session.plan.tasks}) == 2
    assert done


def conv_graph():
    builder = GraphBuilder("conv")
    rng = np.random.default_rng(3)
    y = builder.input("x", TensorType((1, 64, 64, 32), "float32"))
    for k in range(4):
        w = rng.standard_normal((32, 3, 3, 32)).astype(np.float32) / 17
        y = builder.add(
            "conv",
            y,
            builder.constant(f"w{k}", w),
            strides=(1, 1),
            dilations=(1, 1),
            groups=1,
            pads=(1, 1, 1, 1),
            layout="NHWC",
            names=[f"y{k}"],
        )
    return builder.finish(y)


def test_the_predicted_run_overlaps_and_auto_splits_where_it_was_measured():
    """A placement on instances splits by itself, predicted near twice as fast."""
    graph = conv_graph()
    with Session(graph, threads=1, execution_options=AS_GIVEN, calibration=Calibration()) as one:
        cost_features = one.devices["cpu"].cost_features(one.graph)
        curves = {work.family: Curve(0.0, {"model_s": 1.0}) for work in cost_features}
        curves |= {name: Curve(1e-6, {}) for name in ("slice", "concat")}
        measured = DeviceCalibration("cpu", one.devices["cpu"].spec.description, 2e-6, 0.0, curves)
    calibration = Calibration.of_devices(measured)
    with (
        Session(
            graph, devices=NAMES, threads=1, execution_options=AS_GIVEN, calibration=calibration
        ) as two,
        Session(graph, threads=1, execution_options=AS_GIVEN, calibration=calibration) as one,
    ):
        feeds = {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 32), np.float32)}
        assert two.placement.shards, two.placement.no_shard
        assert two.placement.makespan_s < 0.65 * one.placement.makespan_s
        np.testing.assert_allclose(
            *(next(iter(s.run(feeds).values())) for s in (one, two)), rtol=1e-4, atol=1e-4
        )
        plan = make_plan(two.placement)
        slices = timeline(plan.tasks, [task.estimate_s for task in plan.tasks])
        assert {"cpu#1", "cpu#2"} <= {piece.resource for piece in slices}


def test_an_input_of_both_parts_is_read_where_it_is():
    """The caller's array, whatever it is made of, and another one in the next run."""
    graph = conv_graph()
    split = ["y0..y3=cpu#1,cpu#2:rows"]
    with (
        Session(graph, threads=1) as one,
        Session(
            graph, devices=NAMES, threads=1, placement_options=PlacementOptions(sharding=split)
        ) as two,
    ):
        assert all(port.rebind is not None for port in two.ready.latest().binding._inputs)
        place = two.ready.latest().binding._inputs[0].view
        for seed in range(4):
            x = np.random.default_rng(seed).standard_normal((1, 64, 64, 32), np.float32)
            form = {0: x, 1: np.repeat(x, 2, 1)[:, ::2], 2: np.asfortranarray(x)}.get(
                seed, x.copy()
            )
            place[...] = np.nan
            (got,), (want,) = two.run({"x": form}).values(), one.run({"x": x}).values()
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            assert np.isnan(place).all() == (seed in (0, 3))


def test_two_simulated_npus_run_side_by_side():
    with Session(
        conv_graph(),
        devices=["npu#1", "npu#2", "cpu"],
        placement_options=PlacementOptions(sharding=["y1=npu#1,npu#2:rows"]),
        execution_options=ExecutionOptions(device_options={"npu": {"float32": "float16"}}),
    ) as session:
        assert {"npu#1", "npu#2"} <= {task.device for task in session.plan.tasks}
        assert {spec.kind for spec in session.placement.specs.values()} == {"npu", "cpu"}
        feeds = {"x": np.random.default_rng(0).standard_normal((1, 64, 64, 32), np.float32)}
        split = session.run(feeds)
    with Session(conv_graph(), threads=1) as one:
        for name, want in one.run(feeds).items():
            np.testing.assert_allclose(split[name], want, atol=0.05)


def test_a_plan_of_instances_alone_is_launched_at_once_and_its_first_error_comes_out():
    builder = GraphBuilder("dets")
    x = builder.input("x", TensorType((4, 4), "float32"))
    made = [builder.add("det", x, pin=name, names=[f"y{name[-1]}"]) for name in NAMES]
    graph = builder.finish(*made)
    feeds = {"x": np.eye(4, dtype=np.float32)}
    options = {
        "devices": NAMES,
        "threads": 1,
        "execution_options": AS_GIVEN,
        "mode": "parallel",
        "placement_options": PlacementOptions(sharding="off"),
    }
    with Session(graph, **options) as session:
        assert [float(y) for y in session.run(feeds).values()] == [1, 1]
        assert session.runs.runner.one_driver_queue and session.runs.runner.dispatches == 0
        first = session.plan.tasks[0].device
        for task, call in zip(session.plan.tasks, session.ready.latest().calls, strict=True):
            error = RunError(f"{task.device} went wrong")
            call._bound.run = lambda error=error: (_ for _ in ()).throw(error)
        for _ in range(5):
            with pytest.raises(RunError, match=f"{first} went wrong"):
                session.run(feeds)
