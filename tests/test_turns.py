"""Turns of devices on silicon that they share: how crossings are measured, kept and priced."""

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.builder import GraphBuilder
from trireme.calibrating.calibrate import calibrate
from trireme.calibrating.calibration import Calibration, Curve, DeviceCalibration, Sharing
from trireme.calibrating.turns import crossing_of, typical
from trireme.cost import CostModel
from trireme.device import WAKES, KernelWork
from trireme.graph import TensorType


def test_turns_and_copies_of_devices_on_the_same_silicon():
    ops = {"reduce_mean", "relu"}  # numpy is slow at others
    cpu, gpu = (ToyDevice(name, resource_group="chip", ops=ops) for name in ("cpu", "gpu"))
    known = calibrate([cpu, gpu], limit_s=4.0)
    found = known.of(cpu.spec)
    assert set(found.sharing) == {"gpu"} and not found.copies
    turns = found.sharing["gpu"]
    assert np.isfinite(turns.latency_s) and turns.bandwidth > 0 and turns.overlap > 0
    found = known.of(gpu.spec)
    assert set(found.copies) == {"read", "write"} and not found.sharing
    apart = ToyDevice("cpu", resource_group="another", ops=ops)
    assert not calibrate([apart, gpu], limit_s=2.0).of(apart.spec).sharing


def test_what_turns_cost_stays_where_it_is_not_measured_again():
    alone = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 3e-6))
    turns = {"gpu": Sharing(1e-5, 1e9, 1e-6, 1.1)}
    before = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 2e-6, sharing=turns))
    both = before.with_(alone).of(ToyDevice("cpu").spec)
    assert both.launch_s == 3e-6 and both.sharing == turns


@pytest.mark.parametrize(
    "latency_s, s_per_byte, awake_s", [(2e-5, 1e-9, 0.0), (0.0, 5e-10, 4e-6), (1e-5, 0.0, 0.0)]
)
def test_crossings_of_runs_of_any_length(latency_s, s_per_byte, awake_s):
    rows = [
        (c, nbytes, wakes, c * latency_s + nbytes * s_per_byte - wakes * awake_s, whole_s)
        for c, nbytes, wakes, whole_s in (
            (2, 9e3, 4, 1e-4), (4, 8e4, 3, 5e-4), (2, 9e5, 25, 7e-3), (6, 1e5, 20, 1e-3)
        )
    ]  # fmt: skip
    found = crossing_of(rows)
    assert found[0] == pytest.approx(latency_s, rel=0.1, abs=1e-6)
    assert 1 / found[1] == pytest.approx(max(s_per_byte, 1e-12), rel=0.1, abs=3e-11)
    assert found[2] == pytest.approx(awake_s, rel=0.1, abs=4e-7)


def test_the_faster_of_two_states_is_typical_if_seen_often():
    near, far = [1.0, 1.04, 1.02], [1.6, 1.5, 1.7, 1.6, 1.55]
    assert typical([*far, *near]) == 1.02
    assert typical([*far, *far, 1.0]) == 1.55
    assert typical([2.0]) == 2.0


def test_a_turn_is_paid_with_the_copy():
    cpu, gpu = (ToyDevice(name, resource_group="chip") for name in ("cpu", "gpu"))
    lines = {"read": (1e-5, 1e9), "write": (2e-5, 1e9)}

    def costs(latency_s, *devices):
        sharing = {} if latency_s is None else {"gpu": Sharing(latency_s, 5e8, 4e-6, 1.0)}
        known = Calibration.of_devices(
            DeviceCalibration("gpu", "toy gpu", 5e-5, copies=lines),
            DeviceCalibration("cpu", "toy cpu", 1e-6, sharing=sharing),
        )
        return CostModel({device.spec.name: device for device in devices}, known)

    assert costs(None, cpu, gpu).links.seconds(1000, "gpu", "host") == pytest.approx(1.1e-5)
    assert costs(3e-5, cpu, gpu).links.seconds(1000, "gpu", "host") == pytest.approx(3.2e-5)
    assert costs(3e-5, cpu, gpu).links.seconds(1000, "host", "gpu") == pytest.approx(3.2e-5)
    assert costs(3e-5, gpu).links.seconds(1000, "host", "gpu") == pytest.approx(2.1e-5)


class Waking(ToyDevice):
    """Its kernels wake a core each, but for the first."""

    def works(self, graph):
        return [
            KernelWork((node.id,), "f", {WAKES: float(k > 0)}) for k, node in enumerate(graph.nodes)
        ]


def test_kernels_that_wake_a_core_take_less_beside_busy_ones():
    cpu, gpu = ToyDevice("cpu", resource_group="chip"), Waking("gpu", resource_group="chip")
    known = Calibration.of_devices(
        DeviceCalibration("gpu", "toy gpu", 5e-5, curves={"f": Curve(6e-6, {WAKES: 4e-6})}),
        DeviceCalibration("cpu", "toy cpu", 1e-6, sharing={"gpu": Sharing(0.0, 1e9, 3e-6, 1.0)}),
    )
    b = GraphBuilder("two")
    x = b.input("x", TensorType((8,), "float32"))
    graph = b.finish(b.add("relu", b.add("relu", x)))
    for devices, expected in (([gpu], [6e-6, 10e-6]), ([cpu, gpu], [6e-6, 7e-6])):
        costs = CostModel({device.spec.name: device for device in devices}, known)
        found = [costs.node(graph, node, "gpu").seconds for node in graph.nodes]
        assert found == pytest.approx(expected)
