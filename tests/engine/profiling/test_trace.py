"""Traces that Perfetto shows whole: legal events, nested rows, arrows with ends, live bytes."""

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from forced import open_all
from trace_rules import check_trace, slices_by_row

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType, node_names
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.plan.plan import make_plan
from trireme.profiling.prediction import predict
from trireme.profiling.trace import chrome_trace
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.tools.demo import spread

F32 = TensorType((32, 64), "float32")


def branches(pins=("cpu", "npu")):
    """Two branches of three nodes over two devices, joined."""
    b = GraphBuilder("branches")
    x, w = b.input("x", F32), b.constant("w", np.full((64, 64), 1e-2, np.float32))
    ends = []
    for k, pin in enumerate(pins):
        value = x
        for op in ("relu", "tanh"):
            value = b.add(op, value, pin=pin, names=[f"{op}{k}"])
        ends.append(b.add("matmul", value, w, pin=pin, names=[f"matmul{k}"]))
    return b.finish(b.add("add", *ends, pin=pins[0], names=["sum"]))


def digits():
    """The demo's model, spread over three devices by pins, and a feed."""
    graph = optimise(convert((files("trireme.tools") / "demo" / "digits.onnx").read_bytes()))
    (value,) = graph.input_values()
    return spread(graph), {"image": np.ones(value.type.dims, np.float32)}


@pytest.fixture(scope="module")
def devices():
    opened, absent = open_all(("npu", "opencl", "cpu"))
    if absent:
        pytest.skip(str(absent))
    yield list(opened.values())
    for device in opened.values():
        device.close()


@pytest.mark.parametrize("execution", ["sunk", "interactive"])
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_both_clocks_are_legal_and_every_event_is_a_node(devices, mode, execution):
    graph, feeds = digits()
    options = ExecutionOptions(passes=(), execution=execution)
    with Session(
        graph, devices=devices, execution_options=options, calibration=Calibration(), mode=mode
    ) as session:
        profile = session.profile(feeds, runs=2)
        plan = session.plan
    events = check_trace(chrome_trace(profile))
    names = set(node_names(graph).values())
    for clock in (2, 3):
        nodes = [e for e in events if e["pid"] == clock and e.get("cat") == "node"]
        assert {name for e in nodes for name in e["name"].split(" + ")} == names
        assert all(e["args"]["op"] and e["args"]["shapes"] for e in nodes)
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    assert "worker MainThread" in threads
    held = [e for e in events if e.get("cat") == "worker"]
    assert sorted(e["args"]["task"] for e in held) == list(range(len(plan.tasks)))
    kernels = [e for e in events if e["pid"] == 1 and e.get("cat") == "node"]
    assert kernels and all(e["args"]["kernel"] for e in kernels)
    assert_arenas(events, plan)


def assert_arenas(events, plan):
    """The bytes that live never exceed the arena, reach the largest value, and end at 0."""
    for clock in {e["pid"] for e in events}:
        counters = {}
        for event in (e for e in events if e["ph"] == "C" and e["pid"] == clock):
            memory = event["name"].removeprefix("arena ")
            counters.setdefault(memory, []).append(event["args"]["live bytes"])
        for memory, live in counters.items():
            largest = max(s.nbytes for s in plan.slots.values() if s.memory == memory)
            assert largest <= max(live) <= plan.arenas[memory].nbytes
            assert live[-1] == 0


def test_a_described_machine_has_a_predicted_timeline():
    costs = CostModel(dict(load_soc("rk3588").devices()), Calibration())
    graph = branches(("cpu", "gpu"))
    plan = make_plan(place(graph, costs, PLAIN))
    prediction = predict(plan)
    assert prediction.predicted_s == pytest.approx(plan.placement.makespan_s)
    low, high = prediction.interval_s
    assert low < prediction.predicted_s < high
    events = check_trace(chrome_trace(prediction))
    assert {e["pid"] for e in events} == {1}
    nodes = [e for e in events if e.get("cat") == "node"]
    assert {e["name"] for e in nodes} == set(node_names(graph).values())
    assert not any("kernel" in e["args"] or "measured_us" in e["args"] for e in nodes)
    assert_arenas(events, plan)
    assert prediction.to_json()["slices"] and "prediction for 'branches'" in str(prediction)


def test_tasks_of_a_device_that_overlap_have_a_row_each():
    costs = CostModel(dict(load_soc("rk3588").devices()), Calibration())
    plan = make_plan(place(branches(("cpu", "gpu")), costs, PLAIN), execution="interactive")
    prediction = predict(plan)
    slices = list(prediction.slices)
    first, second = [row.task for row in prediction.tasks if row.device == "cpu"][:2]
    middle = (slices[first].start_s + slices[first].end_s) / 2
    slices[second] = replace(slices[second], start_s=middle)
    trace = chrome_trace(replace(prediction, slices=tuple(slices)))
    rows = slices_by_row(check_trace(trace))
    assert len(rows) == len({row.device for row in prediction.tasks}) + 1


def test_an_arrow_ends_inside_a_reader_that_overlaps_its_maker():
    """Spans are measured on two threads, so a reader may seem to end before its maker does."""
    costs = CostModel(dict(load_soc("rk3588").devices()), Calibration())
    prediction = predict(make_plan(place(branches(("cpu", "gpu")), costs, PLAIN)))
    slices = list(prediction.slices)
    reader = next(row for row in prediction.tasks if row.nbytes and row.makers)
    (maker,) = reader.makers
    end = slices[maker].end_s
    slices[reader.task] = replace(slices[reader.task], start_s=end / 4, end_s=end / 2)
    check_trace(chrome_trace(replace(prediction, slices=tuple(slices))))
