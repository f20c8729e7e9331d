"""Measured figures that are too few, impossible or scattered are not priced with, and say so."""

import time
from dataclasses import replace

import pytest
from placing import place_plain
from toy_device import ToyDevice

from trireme.calibration import calibrate as calibrating
from trireme.calibration.calibrate import calibrate
from trireme.calibration.transfer_probe import TransferFigures
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration, load_calibration
from trireme.cost.model import CostModel
from trireme.cost.quality import FAR_OFF, LIMITS, judge
from trireme.cost.work import generic_works, roofline_s, work_of
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.tools.calibrate import _lines


@pytest.mark.parametrize(
    "quantity, value, samples, error, verdict",
    [
        ("launch", 7.018e-3, 1, 0.0, "too few samples"),
        ("launch", 7.018e-3, 9, 0.1, "outside physical limits"),
        ("launch", 5e-5, 9, 0.7, "residual too large"),
        ("launch", 5e-5, 9, float("nan"), "residual too large"),
        ("launch", float("nan"), 9, 0.1, "outside physical limits"),
        ("launch", 5e-5, 3, 0.2, "used"),
        ("copy bandwidth", 1e12, 20, 0.1, "outside physical limits"),
        ("copy bandwidth", 2e10, 20, 0.1, "used"),
        ("copy latency", 2e-5, 2, 0.0, "too few samples"),
        ("overlap", 3.86, 1, 0.0, "outside physical limits"),
        ("kernels", 3e-6, 3, 0.1, "used"),
    ],
)
def test_the_verdict_on_a_figure(quantity, value, samples, error, verdict):
    found = judge(quantity, value, samples, error, of="it")
    assert (found.verdict, found.used) == (verdict, verdict == "used")
    assert (found.figure, found.samples) == (f"{quantity} it", samples)
    assert ("description's figure is kept" in str(found)) == (not found.used)


def test_a_launch_far_above_the_description_was_disturbed():
    assert judge("launch", 1e-6 * FAR_OFF, 9, 0.1, described=1e-6).used
    found = judge("launch", 1.01e-6 * FAR_OFF, 9, 0.1, described=1e-6)
    assert found.verdict == "outside physical limits"


def test_every_quantity_has_limits_that_can_be_met():
    for quantity, limits in LIMITS.items():
        assert judge(quantity, (limits.low + limits.high) / 2, limits.samples).used


OPS = {"reduce_mean", "relu", "add", "mul"}


def test_one_network_says_nothing_of_launches(monkeypatch, tmp_path):
    """A launch of 7 ms, seen on one network, leaves the description's figure, and is told."""
    monkeypatch.setattr(calibrating, "NETS", calibrating.NETS[:1])
    toy = ToyDevice("cpu", ops=OPS, delay_s=7e-3)
    found = calibrate([toy], limit_s=0.5)
    (device,) = found.devices.values()
    launch = next(one for one in device.judged if one.figure == "launch")
    assert launch.verdict == "too few samples" and launch.value > 1e-3
    assert device.launch_s is None and device.kernel_s == 0.0
    assert CostModel({"cpu": toy}, found).launch_s("cpu") == toy.spec.launch_s
    assert str(launch) in "\n".join(_lines(device)) and "launch as described" in _lines(device)[1]
    found.save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == found


@pytest.mark.parametrize(
    "latency_s, bandwidth, samples, used",
    [
        (2e-5, 1e10, 9, (2e-5, 1e10)),
        (2e-5, 1e12, 9, (2e-5, 1e9)),
        (2e-5, 1e10, 1, None),
        (1.0, 1e10, 9, None),
    ],
)
def test_a_copy_keeps_of_the_description_what_was_not_told(
    monkeypatch, latency_s, bandwidth, samples, used
):
    """The toy's description has a link of 1 us and 1 GB/s."""
    told = TransferFigures(latency_s, bandwidth, 0.0, 0.0, samples, 0.1)
    monkeypatch.setattr(calibrating.TransferCosts, "figures", property(lambda self: told))
    monkeypatch.setattr(calibrating, "NETS", calibrating.NETS[:4])
    gpu = ToyDevice("gpu", ops=OPS)
    for limit_s in (1.0, 4.0, 16.0, 64.0):  # a busy machine may have no time left for turns
        found = calibrate([gpu], limit_s=limit_s).of(gpu.spec)
        if found.judged and any(one.figure.startswith("copy") for one in found.judged):
            break
    assert found.copies == ({} if used is None else dict.fromkeys(("read", "write"), used))
    links = CostModel({"gpu": gpu}, Calibration.of_devices(found)).links
    expected = used or (1e-6, 1e9)
    assert links.seconds(10**6, "gpu", "host") == pytest.approx(expected[0] + 1e6 / expected[1])


def test_a_placement_says_how_much_of_its_time_was_measured():
    """One of two kernels has a curve: 30 us of 100 are measured, 70 read off the description."""
    b = GraphBuilder("two")
    x = b.input("x", TensorType((1000,), "float32"))
    graph = b.finish(b.add("add", b.add("relu", x), x))
    toy = ToyDevice("cpu", ops=OPS, bandwidth=5e7)
    first, second = generic_works(graph)
    rest_s = roofline_s(work_of(graph, graph.nodes[1]), toy.spec)
    first = replace(first, family="measured")
    toy.cost_features = lambda graph: [first, second]
    curve = Curve(rest_s * 3 / 7, {}, samples=9)
    known = DeviceCalibration("cpu", "toy cpu", 1e-6, curves={"measured": curve})
    placement = place_plain(graph, CostModel({"cpu": toy}, Calibration.of_devices(known)))
    assert placement.sources == pytest.approx({"roofline": 0.7, "calibration": 0.3})
    said = "30% of the predicted time is from measured kernels, 70% from the description"
    assert said in str(placement) and placement.to_json()["sources"] == placement.sources
    toy.spec = replace(toy.spec, clock="virtual")
    assert not place_plain(graph, CostModel({"cpu": toy}, Calibration())).sources


def test_preparing_ends_in_time_where_compiling_is_slow(caplog):
    """Every compilation takes 0.1 s: all of them would take far more than the limit."""

    class Slow(ToyDevice):
        def compile(self, graphs):
            time.sleep(0.1)
            return super().compile(graphs)

    cpu, gpu = (Slow(name, ops=OPS, resource_group="chip") for name in ("cpu", "gpu"))
    gpu.spec = replace(gpu.spec, description="slow gpu")
    start = time.perf_counter()
    calibrate([cpu, gpu], limit_s=2.0)
    assert time.perf_counter() - start < 20
    assert "there was time to compile" in caplog.text and "calibrate again" in caplog.text
