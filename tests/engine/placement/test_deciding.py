"""Estimates that decide a placement: named where their error would change it, and timed."""

import json
import time

import numpy as np
import pytest
from commands import call
from placing import place_plain
from two_devices import US, chain_of_two

import trireme
from trireme.backend.registry import open_device
from trireme.calibration import deciding as timing
from trireme.calibration.deciding import measure_deciding
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.cost.work import node_signature
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.deciding import deciding
from trireme.support.errors import DeviceError


def test_what_decides_between_a_device_and_a_mixture_by_hand():
    """cpu alone takes 200 us; matmul there and tanh on the gpu 195: the mixture is found. It loses
    where tanh on the gpu takes 100 us (95 expected up to 118.75), or tanh on the cpu takes 95 (100
    expected down to 80). matmul is where it is in both, so its error changes nothing."""
    graph, costs = chain_of_two(95.0)
    placement = place_plain(graph, costs)
    found = {(one.op, one.device): one for one in deciding(placement, costs)}
    assert set(found) == {("tanh", "gpu"), ("tanh", "cpu")}
    gpu, cpu = found["tanh", "gpu"], found["tanh", "cpu"]
    assert gpu.flips_at_s == pytest.approx(100 * US, rel=1e-3)
    assert cpu.flips_at_s == pytest.approx(95 * US, rel=1e-3)
    assert (gpu.seconds, gpu.low_s, gpu.high_s) == pytest.approx((95 * US, 76 * US, 118.75 * US))
    assert gpu.rival == cpu.rival == "cpu alone" and gpu.nodes == (graph.nodes[1].id,)
    assert str(gpu).endswith("at 100 us or more, cpu alone is faster")
    assert str(cpu).endswith("at 95.0 us or less, cpu alone is faster")


def test_the_declined_mixture_is_a_rival():
    graph, costs = chain_of_two(95.0)
    kept = place_plain(graph, costs, multi_device="significant")
    assert kept.declined
    names = {one.rival for one in deciding(kept, costs)}
    assert names <= {"the declined mixture", "gpu alone"} and len(names) > 0
    assert "the declined mixture" in names


@pytest.mark.parametrize("gpu_us, clock", [(40.0, "wall"), (95.0, "virtual")])
def test_nothing_decides_where_no_error_could(gpu_us, clock):
    graph, costs = chain_of_two(gpu_us, clock=clock)
    assert not deciding(place_plain(graph, costs), costs)


def test_what_was_timed_prices_all_nodes_alike(monkeypatch):
    graph, costs = chain_of_two(95.0)
    placement = place_plain(graph, costs)
    found = deciding(placement, costs)
    monkeypatch.setattr(timing, "timed", lambda call: 300 * US)
    again = measure_deciding(graph, costs, found)
    tanh = graph.nodes[1]
    for device in ("cpu", "gpu"):
        own = again.node(graph, tanh, device)
        assert own.seconds == pytest.approx(300 * US - costs.launch_s(device))
        assert own.source == "calibration" and own.low_s < own.seconds < own.high_s
        assert again.node(graph, graph.nodes[0], device) == costs.node(
            graph, graph.nodes[0], device
        )
    assert len(again.timed) == 2
    assert node_signature(graph, tanh) != node_signature(graph, graph.nodes[0])


def test_a_node_that_cannot_be_timed_keeps_its_estimate(caplog):
    graph, costs = chain_of_two(95.0)
    found = deciding(place_plain(graph, costs), costs)
    for toy in costs.devices.values():
        toy.fail_compile = True
    again = measure_deciding(graph, costs, found)
    assert not again.timed and "could not be timed on" in caplog.text


@pytest.mark.usefixtures("no_calibration")
def test_the_command_names_what_decides_and_times_it(tmp_path, capsys):
    """Products on cpu and on opencl: neither was measured here, and either may be the faster."""
    try:
        open_device("opencl").close()
    except DeviceError as error:
        pytest.skip(str(error))
    b = GraphBuilder("rows")
    value = b.input("x", TensorType((512, 512), "float32"))
    for k in range(3):
        w = b.constant(f"w{k}", np.eye(512, dtype=np.float32))
        value = b.add("matmul", value, w)
    model = str(tmp_path / "rows.trm")
    trireme.save(b.finish(value), model)
    words = ["place", model, "--devices", "cpu,opencl", "--threads", "1"]
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    named = json.loads(out)["deciding"]
    assert named and {one["op"] for one in named} == {"fully_connected"}
    code, out, _ = call(capsys, *words)
    assert "what decides:" in out and "fully_connected on cpu (3 nodes)" in out
    start = time.perf_counter()
    code, out, _ = call(capsys, *words, "--measure-deciding")
    assert code == 0 and "timed: fully_connected on cpu takes" in out and "was predicted" in out
    assert "100% of the predicted time is from measured kernels" in out
    assert time.perf_counter() - start < 60
    code, _, err = call(capsys, "place", model, "--soc", "rk3588", "--measure-deciding")
    assert code == 2 and "--measure-deciding is for devices that run" in err


def test_timed_estimates_are_of_one_device():
    graph, costs = chain_of_two(95.0)
    tanh = graph.nodes[1]
    known = {("gpu", node_signature(graph, tanh)): costs.node(graph, tanh, "cpu")}
    again = CostModel(costs.devices, Calibration(), known)
    assert again.node(graph, tanh, "gpu") == costs.node(graph, tanh, "cpu")
    assert again.node(graph, tanh, "cpu").source == "roofline"
    assert np.isfinite(again.node(graph, tanh, "cpu").seconds)
