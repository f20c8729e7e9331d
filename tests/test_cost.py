"""Costs: fits recover curves, files keep them, and a changed machine is not priced by another's."""

import json

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.builder import GraphBuilder
from trireme.calibrate import calibrate
from trireme.calibration import Calibration, Curve, DeviceCalibration, fit, load_calibration
from trireme.cost import CostModel
from trireme.errors import ModelFileError
from trireme.graph import TensorType
from trireme.place import place


def test_fit_recovers_a_curve():
    print("seed 0")
    rng = np.random.default_rng(0)
    truth = Curve(3e-6, 1e-11, 2e-10, 0, 0.0)
    flops = rng.integers(0, 10**9, 30).tolist()
    nbytes = rng.integers(1000, 10**7, 30).tolist()
    noise = 1 + 0.02 * rng.standard_normal(30)
    seconds = [truth.seconds(f, b) * n for f, b, n in zip(flops, nbytes, noise, strict=True)]
    found = fit(flops, nbytes, seconds)
    assert found.s_per_flop == pytest.approx(truth.s_per_flop, rel=0.05)
    assert found.error < 0.03
    assert min(found.fixed_s, found.s_per_flop, found.s_per_byte) >= 0


def test_fit_never_goes_negative():
    found = fit([1, 2, 3], [100, 50, 10], [1e-6, 2e-6, 3e-6])
    assert min(found.fixed_s, found.s_per_flop, found.s_per_byte) >= 0


def sample():
    curve = Curve(1e-6, 1e-11, 1e-10, 5, 0.1)
    return Calibration(
        {"cpu": DeviceCalibration("toy cpu", 2e-6, {"elementwise/float32": curve}, {})}
    )


def test_save_and_load(tmp_path):
    path = tmp_path / "deep" / "c.json"
    sample().save(path)
    assert load_calibration(path) == sample()
    assert load_calibration(tmp_path / "absent.json") == Calibration()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version=99),
        lambda d: d["devices"]["cpu"].update(launch_s="soon"),
        lambda d: d["devices"]["cpu"]["curves"]["elementwise/float32"].update(fixed_s=-1.0),
        lambda d: d["devices"]["cpu"]["curves"]["elementwise/float32"].update(colour="red"),
        lambda d: d.update(devices=[]),
    ],
)
def test_damaged_files_are_named(tmp_path, change):
    path = tmp_path / "c.json"
    sample().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match=r"c\.json"):
        load_calibration(path)


def test_another_machine_is_not_priced():
    b = GraphBuilder("g")
    graph = b.finish(b.add("relu", b.input("x", TensorType((100,), "float32"))))
    device = ToyDevice("cpu")
    measured = CostModel({"cpu": device}, sample()).node(graph, graph.nodes[0], "cpu")
    assert measured.source == "calibration"
    changed = sample().devices["cpu"]
    other = Calibration({"cpu": DeviceCalibration("other cpu", 1.0, changed.curves, {})})
    assert CostModel({"cpu": device}, other).node(graph, graph.nodes[0], "cpu").source == "roofline"
    assert CostModel({"cpu": device}, other).launch_s("cpu") == device.spec.launch_s


def test_calibrate_measures_real_devices_only():
    toy = ToyDevice("cpu", ops={"add", "relu", "mul"})
    seen = []
    result = calibrate({"cpu": toy}, lambda name, done, total: seen.append((name, done, total)))
    assert "elementwise/float32" in result.devices["cpu"].curves
    assert seen[-1][1] == seen[-1][2]


def test_the_worked_example_of_the_docs():
    """docs/placement.md: npu only takes 58 us; with 100 us of latency cpu only wins."""
    b = GraphBuilder("pair")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("tanh", b.add("relu", x)))

    def placed(latency_s):
        cpu, npu = ToyDevice("cpu", launch_s=0.0), ToyDevice("npu", launch_s=20e-6)
        cpu.estimate_s = lambda graph, node: 100e-6
        npu.estimate_s = lambda graph, node: 10e-6
        object.__setattr__(npu.spec, "link_latency_s", latency_s)
        return place(graph, CostModel({"cpu": cpu, "npu": npu}))

    near = placed(5e-6)
    assert near.makespan_s == pytest.approx(58e-6)
    assert near.score.lower_bound == pytest.approx(58e-6)
    assert near.candidates["cpu only"] == pytest.approx(200e-6)
    far = placed(100e-6)
    assert far.makespan_s == pytest.approx(200e-6)
    assert "248.0 us, 48.0 us more" in far.unused["npu"]
