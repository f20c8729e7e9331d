"""The nets of a calibration: their kernels, whom they measure, and the speed of a machine now."""

from dataclasses import replace

import pytest
from toy_device import ToyDevice

from trireme.backend.core_latency import UNKNOWN
from trireme.backend.registry import open_device
from trireme.calibration.calibrate import calibrate
from trireme.calibration.machine_speed import MachineSpeed
from trireme.calibration.net_builder import Net, build
from trireme.calibration.nets import NETS
from trireme.calibration.samples import Measured
from trireme.cost.work import supported_part
from trireme.passes.pipeline import optimise


def test_calibrate_measures_real_devices_only(monkeypatch):
    """Launches take what a formula says, so that no load of this machine disturbs the fit."""

    def measure(net, watch):
        seconds = [1e-6 + 1e-9 * sum(work.terms.values()) for work in net.cost_features]
        net.samples.append((2e-6 + sum(seconds), seconds, UNKNOWN))

    monkeypatch.setattr(Measured, "measure", measure)
    real = ToyDevice("cpu", ops={"add", "relu", "mul"})
    simulated = ToyDevice("npu", ops={"add"})
    simulated.spec = replace(simulated.spec, clock="virtual")
    seen = []
    result = calibrate([real, simulated], lambda *told: seen.append(told))
    (found,) = result.devices.values()
    assert found.name == "cpu"
    curve = found.curves["elementwise/float32"]
    assert curve.error < 0.01 and curve.samples > 0
    assert seen[-1][1] == seen[-1][2]


@pytest.fixture(scope="module")
def cpu():
    device = open_device("cpu", threads=1)
    yield device
    device.close()


@pytest.mark.parametrize("net", NETS, ids=lambda net: net.name)
def test_nets_run_on_native_kernels(net, cpu):
    graph = optimise(build(net))
    assert supported_part(graph, cpu) is graph


def test_works_are_the_kernels_that_run():
    net = Net(
        "n",
        "float32",
        (1, 24, 24, 8),
        [("inverted", 8), ("map", "sigmoid"), ("again", "mul"), ("conv", 12)],
    )
    graph = build(net)
    device = open_device("cpu", threads=2)
    try:
        cost_features = device.cost_features(graph)
        (executable,) = device.compile([graph])
        assert [w.family for w in cost_features if len(w.nodes) > 1] == ["elementwise_f32"]
        assert {n for w in cost_features for n in w.nodes} == {node.id for node in graph.nodes}
        assert all(value >= 0 for work in cost_features for value in work.terms.values())
        assert set(executable.kernels) == {node.id for node in graph.nodes}
    finally:
        device.close()


def test_pace_is_of_now_to_then(cpu):
    then = calibrate([cpu], limit_s=1.0).of(cpu.spec)
    apart = max(then.nets, key=lambda apart: len(then.nets[apart]))
    nets = {apart: {name: 99 * seconds for name, seconds in then.nets[apart].items()}}
    speed = MachineSpeed(cpu, replace(then, nets=nets))
    speed.measure(apart)
    assert 1e-4 < speed.since() < 0.9
    assert speed.since() == 1.0  # nothing was measured since
    speed.measure(apart)
    speed.forget()
    assert speed.since() == 1.0
    then_alone = {f"{name} alone": 99 * seconds for name, seconds in then.nets[apart].items()}
    elsewhere = MachineSpeed(cpu, replace(then, nets={"far": then.nets[apart] | then_alone}))
    elsewhere.measure("near")
    assert elsewhere.since() < 0.9
    of_one_core = MachineSpeed(cpu, replace(then, nets={"": nets[apart]}))
    of_one_core.measure("near")  # as another device says
    assert of_one_core.since() < 0.9
    speed = MachineSpeed(cpu, replace(then, nets={}))
    speed.measure()
    assert speed.since() == 1.0
