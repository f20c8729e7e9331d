"""What passing data between cores costs: measured, said in words, and in estimates."""

import threading
from contextlib import closing

import numpy as np
import pytest

from trireme.backend.core_latency import (
    MOVING,
    UNKNOWN,
    USUAL,
    CoreLatency,
    Cores,
    Watch,
    median_of,
    priced,
)
from trireme.backend.device import DeviceSpec, KernelCost
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration, load_calibration
from trireme.devices.cpu.device import CpuDevice
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError
from trireme.tools.cli import main

NEAR, FAR = CoreLatency(56e-9, 0.1e-9, 0.98), CoreLatency(245e-9, 0.5e-9, 0.96)
SHARED = CoreLatency(28e-9, 0.03e-9, 0.5)


def test_how_far_apart():
    assert [one.apart for one in (SHARED, NEAR, FAR)] == ["shared", "near", "far"]
    assert str(FAR) == ("the cores have no cache in common (a flag takes 245 ns, a byte 0.50 ns)")
    assert median_of([NEAR, FAR, NEAR]) == NEAR


def test_a_change_is_said_with_what_helps():
    assert not Cores("cpu", NEAR, CoreLatency(60e-9, 0.12e-9)).have_moved
    assert not Cores("cpu", None, FAR).have_moved
    assert "as it is priced" in str(Cores("cpu", NEAR, NEAR))
    assert "cannot be told" in str(Cores("cpu", NEAR, None))
    moved = Cores("cpu", NEAR, FAR)
    assert moved.have_moved
    assert str(moved).startswith("cpu: the cores have no cache in common")
    assert "56.0 ns" in str(moved)
    assert str(moved).endswith("trireme calibrate --cores --devices cpu")


def test_terms_in_seconds_of_the_cores():
    terms = {"bytes": 4.0, "handed_bytes": 1000.0, "joins": 2.0}
    assert priced(terms, None) == priced(terms, USUAL)
    found = priced(terms, FAR)
    assert found == pytest.approx({"bytes": 4.0, "handed_bytes": 5e-7, "joins": 4.9e-7})
    assert sum(found.values()) > sum(priced(terms, NEAR).values())


def test_a_watch_tells_when_cores_move():
    seen = iter([NEAR, NEAR, NEAR, FAR, FAR, FAR, None, None])
    watch = Watch(lambda: next(seen))
    watch.begin()
    said = [watch.end() for _ in range(7)]
    assert said == ["near", "near", MOVING, "far", "far", MOVING, UNKNOWN]
    assert list(watch.known) == ["near", "far"] and watch.known["far"] == FAR


def test_a_calibration_prices_for_the_cores_of_now(tmp_path):
    """A kernel that hands bytes over takes longer far apart; files keep both, and which counts."""
    curve = Curve(1e-6, {"bytes": 1e-10, "handed_bytes": 0.2})
    one = DeviceCalibration(
        "cpu",
        "toy",
        0.0,
        0.0,
        {"copy": curve},
        nets={"near": {"small": 1e-5}},
        cores={"near": NEAR},
        apart="near",
    )
    kernel = KernelCost((0,), "copy", {"bytes": 1e4, "handed_bytes": 1e4})
    assert one.seconds(kernel) == pytest.approx(2e-6 + 0.2e-6)
    spec = DeviceSpec("cpu", "toy", {}, 1e9, 0.0)
    known = Calibration.of_devices(one)
    now = known.at(spec, FAR)
    assert now.of(spec).seconds(kernel) == pytest.approx(2e-6 + 1e-6)
    assert known.of(spec).apart == "near"  # nothing was changed in place
    now.save(tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json").of(spec)
    assert again == now.of(spec) and set(again.cores) == {"near", "far"} and again.apart == "far"
    assert known.at(spec, SHARED) == known.at(spec, None) == known


@pytest.mark.parametrize("threads", [2, 3])
def test_cores_are_measured(threads):
    """Other work may take a core meanwhile: then nothing is said."""
    device = open_device("cpu", threads=threads)
    try:
        found = [device.core_latency() for _ in range(5)]
    finally:
        device.close()
    for one in found:
        assert one is None or (one.flag_s > 0 and one.byte_s > 0 and 0 < one.alone <= 1)


def test_several_threads_may_ask():
    device = open_device("cpu", threads=2)
    wrong = []

    def ask():
        try:
            device.core_latency()
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.close()
    assert not wrong
    with pytest.raises(DeviceError, match="closed"):
        device.core_latency()


def test_one_thread_hands_nothing_over():
    for options in ({"threads": 1}, {"name": "cpu#1"}):
        device = open_device(options.pop("name", "cpu"), **options)
        assert device.core_latency() is None
        device.close()


@pytest.mark.parametrize("isa", ["avx2", "generic"])
def test_every_instruction_set(isa):
    device = open_device("cpu", threads=2, isa=isa)
    one = device.core_latency()
    device.close()
    assert one is None or one.flag_s > 0


@pytest.fixture
def far(monkeypatch, tmp_path):
    """A calibration file of near cores, on a machine whose cores are now far apart."""
    monkeypatch.setattr(
        CpuDevice, "core_latency", lambda device: FAR if device.threads > 1 else None
    )
    path = tmp_path / "c.json"
    monkeypatch.setenv("TRIREME_CALIBRATION", str(path))
    curves = {"elementwise_f32": Curve(1e-6, {"handed_bytes": 0.2})}
    with closing(open_device("cpu", threads=2)) as device:
        Calibration.of_devices(
            DeviceCalibration(
                "cpu", device.spec.description, 0.0, 0.0, curves, cores={"near": NEAR}, apart="near"
            ),
        ).save(path)
    return path


def small():
    b = GraphBuilder("small")
    return b.finish(b.add("relu", b.input("x", TensorType((64, 64), "float32"))))


def test_a_session_and_its_profile_say_that_cores_moved(far):
    with Session(small(), threads=2, calibration=far) as session:
        (cores,) = session.cores
        before = session.placement.makespan_s
        profile = session.profile({"x": np.zeros((64, 64), np.float32)}, runs=2, warmup=0)
    assert cores.have_moved and profile.cores == (cores,)
    assert profile.predicted_s == before  # said, and nothing rescaled
    assert str(cores) in str(profile) and profile.to_json()["cores"][0]["have_moved"]
    assert profile.prediction_errors[0].remedy == str(cores)
    with Session(small(), threads=1, calibration=far) as session:
        assert session.cores == ()


def test_the_file_is_priced_for_now_when_asked_to(far, capsys):
    given = ["calibrate", "--cores", "--devices", "cpu", "--threads", "2"]
    with Session(small(), threads=2, calibration=far) as session:
        before = session.placement.makespan_s
    assert main(given) == 0
    assert "the cores have no cache in common" in capsys.readouterr().out
    with Session(small(), threads=2, calibration=far) as session:
        assert session.placement.makespan_s > before
        assert not session.cores[0].have_moved
    assert main([*given[:-1], "1"]) == 1
    assert "--threads 2" in capsys.readouterr().out
