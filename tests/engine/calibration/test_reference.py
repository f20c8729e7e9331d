"""Ops without a native kernel are priced by what their numpy reference was measured to take."""

import time

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.calibration.reference import measure_reference
from trireme.cost.calibration import (
    REFERENCE,
    Calibration,
    Curve,
    DeviceCalibration,
    load_calibration,
    reference_description,
)
from trireme.cost.model import CostModel
from trireme.cost.quality import judge
from trireme.cost.work import reference_classes, work_of
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType


@pytest.fixture(scope="module")
def measured():
    return measure_reference(time.perf_counter() + 2.0)


def one_node(op, *shape, quant=None, **attrs):
    b = GraphBuilder("one")
    x = b.input("x", TensorType(shape, "int8" if quant else "float32", quant))
    more = [b.constant("axis", np.int64(1))] if op == "cum_sum" else []
    graph = b.finish(b.add(op, x, *more, quants=[quant], **attrs))
    return graph, graph.nodes[0]


def priced(graph, node, known):
    toy = ToyDevice("cpu")
    toy.kernel_note = lambda graph, node: "numpy reference"
    return CostModel({"cpu": toy}, Calibration.of_devices(*known)).node(graph, node, "cpu")


def test_classes_are_of_the_op_then_of_its_family():
    assert reference_classes(*one_node("cum_sum", 4, 8)) == ("op cum_sum", "family reduce")
    quant = Quant((0.1,), (0,))
    names = reference_classes(*one_node("relu", 4, 8, quant=quant))
    assert names == ("op relu quantised", "family elementwise quantised")
    names = reference_classes(*one_node("transpose", 4, 8, quant=quant, perm=(1, 0)))
    assert names[0] == "op transpose"


def test_an_op_is_priced_by_its_own_curve_else_by_its_familys():
    graph, node = one_node("cum_sum", 4, 8)
    curves = {
        "op cum_sum": Curve(1e-5, {"bytes": 1e-9}, 0.5, 2.0, 9, 0.1),
        "family reduce": Curve(7e-5, {}, samples=9),
    }
    known = DeviceCalibration(REFERENCE, reference_description(), None, curves=curves)
    found = priced(graph, node, [known])
    seconds = 1e-5 + 1e-9 * work_of(graph, node).nbytes
    assert found.source == "calibration"
    assert (found.seconds, found.low_s, found.high_s) == (seconds, seconds / 2, seconds * 2)
    del curves["op cum_sum"]
    assert priced(graph, node, [known]).seconds == 7e-5
    del curves["family reduce"]
    assert priced(graph, node, [known]).source == "reference"
    older = DeviceCalibration(REFERENCE, "numpy 1.0", None, curves={"op cum_sum": Curve(1.0, {})})
    assert priced(graph, node, [older]).source == "reference"


def test_measured_curves_grow_and_are_kept(measured, tmp_path):
    """Two seconds are enough for the families that most ops belong to, on a busy machine too."""
    assert {"family elementwise", "family move"} <= set(measured.curves)
    for name, curve in measured.curves.items():
        assert curve.fixed_s > 0 and curve.low <= 1 <= curve.high, name
        assert curve.seconds({"bytes": 1e9, "flops": 1e9}) > curve.seconds({}), name
    known = Calibration.of_devices(measured)
    known.save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json").reference == measured


def test_measuring_again_merges():
    """What was not measured this time, or not well enough, stays as it was."""
    curve, better = Curve(1e-6, {}, samples=9), Curve(2e-6, {}, samples=9)
    before = DeviceCalibration(
        "cpu",
        "toy cpu",
        1e-6,
        curves={"a": curve, "b": curve},
        copies={"read": (1e-5, 1e9)},
        nets={"": {"one": 1.0, "two": 2.0}},
        issue_s=1e-6,
        judged=(judge("launch", 1e-6, 9), judge("kernels", 1e-6, 9, of="a")),
    )
    after = DeviceCalibration(
        "cpu",
        "toy cpu",
        None,
        curves={"b": better, "c": better},
        nets={"": {"two": 3.0}},
        judged=(judge("launch", 7e-3, 1), judge("kernels", 2e-6, 9, of="b")),
    )
    (found,) = Calibration.of_devices(before).with_(Calibration.of_devices(after)).devices.values()
    assert found.curves == {"a": curve, "b": better, "c": better}
    assert (found.launch_s, found.issue_s) == (1e-6, 1e-6)
    assert found.copies == before.copies and found.nets == {"": {"one": 1.0, "two": 3.0}}
    verdicts = {one.figure: one.verdict for one in found.judged}
    assert verdicts == dict.fromkeys(("launch", "kernels a", "kernels b"), "used")
    newer = before.merged(DeviceCalibration("cpu", "toy cpu", 5e-6))
    assert newer.launch_s == 5e-6
