"""Costs: kernels are shared out among nodes, and a machine is not priced by another's curves."""

import pytest
from placing import place_plain
from priced_toys import relu, toy_calibration
from toy_device import ToyDevice

from trireme.backend.core_latency import USUAL
from trireme.backend.device import KernelCost
from trireme.cost.calibration import (
    Calibration,
    Curve,
    DeviceCalibration,
)
from trireme.cost.estimate import SPREAD, Estimate, interval
from trireme.cost.model import CostModel
from trireme.cost.work import generic_works, supported_part
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def test_another_machine_is_not_priced():
    graph, device = relu(), ToyDevice("cpu")
    measured = CostModel({"cpu": device}, toy_calibration()).node(graph, graph.nodes[0], "cpu")
    assert measured.source == "calibration"
    assert measured.seconds == pytest.approx(1e-7 + 1e-6 + 100e-11 + 800e-10)
    assert measured.low_s == pytest.approx(0.9 * measured.seconds)
    assert measured.high_s == pytest.approx(1.2 * measured.seconds)
    other = Calibration.of_devices(DeviceCalibration("cpu", "other cpu", 1.0))
    costs = CostModel({"cpu": device}, other)
    assert costs.node(graph, graph.nodes[0], "cpu").source == "roofline"
    assert costs.launch_s("cpu") == device.spec.launch_s


def test_a_kernel_is_shared_out_among_its_nodes():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    device = ToyDevice("cpu")
    ids = tuple(node.id for node in graph.nodes)
    device.cost_features = lambda graph: [KernelCost(ids, "chain", {"bytes": 4e3}, 1e-3)]
    curve = Curve(0.0, {"bytes": 1e-9}, 0.5, 2.0)
    costs = CostModel(
        {"cpu": device},
        Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 0.0, 0.0, {"chain": curve})),
    )
    parts = [costs.node(graph, node, "cpu") for node in graph.nodes]
    assert sum(part.seconds for part in parts) == pytest.approx(4e-6)
    assert all(part.seconds > 0 and part.source == "calibration" for part in parts)
    unknown = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 0.0))
    costs = CostModel({"cpu": device}, unknown)
    parts = [costs.node(graph, node, "cpu") for node in graph.nodes]
    assert sum(part.seconds for part in parts) == pytest.approx(1e-3)
    assert parts[0].source == "roofline"


def test_a_region_is_priced_as_its_faster_way():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))
    device = ToyDevice("cpu")

    def cost_features(graph):
        alone = [KernelCost((n.id,), "map alone", {"bytes": 4e3}) for n in graph.nodes]
        return [
            KernelCost(one.nodes, "map", {"bytes": 2e3, "joins": 1.0}, alone=one) for one in alone
        ]

    device.cost_features = cost_features

    def seconds(join_s, **more):
        curves = {"map": Curve(0.0, {"bytes": 1e-9, "joins": join_s / USUAL.flag_s}), **more}
        known = DeviceCalibration("cpu", "toy cpu", 0.0, 0.0, curves)
        costs = CostModel({"cpu": device}, Calibration.of_devices(known))
        return sum(costs.node(graph, node, "cpu").seconds for node in graph.nodes)

    alone = {"map alone": Curve(0.0, {"bytes": 1e-9})}
    assert seconds(1e-6, **alone) == pytest.approx(6e-6)
    assert seconds(5e-6, **alone) == pytest.approx(8e-6)
    assert seconds(5e-6) == pytest.approx(14e-6)  # what was not measured is not the faster way


def test_what_others_run_is_left_out():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((10,), "float32"))
    y = b.add("tanh", b.add("relu", x))
    graph = b.finish(b.add("add", b.add("relu", y), x))
    part = supported_part(graph, ToyDevice("cpu", ops={"relu", "add"}))
    assert [node.op for node in part.nodes] == ["relu", "relu", "add"]
    assert set(part.inputs) == {x, y} and len(part.outputs) == 2
    assert supported_part(graph, ToyDevice("cpu")) is graph
    assert [work.nodes for work in generic_works(part)] == [(n.id,) for n in part.nodes]


def test_intervals_even_out_over_nodes():
    one = Estimate(1e-3, "calibration")
    low, high = interval([one] * 16)
    each = SPREAD["calibration"]
    assert 16e-3 * each[0] < low < 16e-3 < high < 16e-3 * each[1]
    assert interval([one], 1e-3) == pytest.approx((1e-3 + one.low_s, 1e-3 + one.high_s))


def test_the_worked_example_of_the_docs():
    """docs/explanation/placement.md: npu only takes 58 us; with 100 us of latency cpu only wins."""
    b = GraphBuilder("pair")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))

    def placed(latency_s):
        cpu, npu = ToyDevice("cpu", launch_s=0.0), ToyDevice("npu", launch_s=20e-6)
        cpu.estimate_s = lambda graph, node: 100e-6
        npu.estimate_s = lambda graph, node: 10e-6
        object.__setattr__(npu.spec, "link_latency_s", latency_s)
        return place_plain(graph, CostModel({"cpu": cpu, "npu": npu}))

    near = placed(5e-6)
    assert near.makespan_s == pytest.approx(58e-6)
    assert near.score.lower_bound == pytest.approx(58e-6)
    assert {one.name: one.value for one in near.candidates}["cpu only"] == pytest.approx(200e-6)
    far = placed(100e-6)
    assert far.makespan_s == pytest.approx(200e-6)
    assert far.unused["npu"] == "the best run found with it takes 48.0 us more"
