"""Turns of devices on silicon that they share: how crossings are measured, kept and priced."""

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.backend.core_latency import USUAL, CoreLatency
from trireme.calibration.calibrate import calibrate
from trireme.calibration.transfer_probe import fit_transfers, measure_overlap
from trireme.cost.calibration import Calibration, DeviceCalibration, Sharing
from trireme.cost.model import CostModel


def test_turns_and_copies_of_devices_on_the_same_silicon():
    ops = {"reduce_mean", "relu"}  # numpy is slow at others
    cpu, gpu = (ToyDevice(name, resource_group="chip", ops=ops) for name in ("cpu", "gpu"))
    for limit_s in (2.0, 8.0, 32.0):  # a busy machine may have no time left for turns
        known = calibrate([cpu, gpu], limit_s=limit_s)
        found = known.of(cpu.spec)
        if found.sharing:
            break
    assert set(found.sharing) == {"gpu"} and not found.copies
    turns = found.sharing["gpu"]
    assert np.isfinite(turns.latency_s) and turns.bandwidth > 0 and turns.overlap > 0
    found = known.of(gpu.spec)
    assert set(found.copies) == {"read", "write"} and not found.sharing
    apart = ToyDevice("cpu", resource_group="another", ops=ops)
    assert not calibrate([apart, gpu], limit_s=2.0).of(apart.spec).sharing


class Counted:
    """A call, and its own event, that count how often they were launched and waited for."""

    def __init__(self):
        self.launches = self.waits = 0

    def launch(self):
        self.launches += 1
        return self

    def wait(self):
        self.waits += 1


def test_both_of_two_networks_at_once_are_waited_for():
    one, other = Counted(), Counted()
    assert measure_overlap(one, other) > 0
    assert one.launches == one.waits > 2 and other.launches == other.waits > 2


def test_what_turns_cost_stays_where_it_is_not_measured_again():
    alone = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 3e-6))
    turns = {"gpu": Sharing(1e-5, 1e9, 100.0, 0.1, 1.1)}
    before = Calibration.of_devices(DeviceCalibration("cpu", "toy cpu", 2e-6, sharing=turns))
    both = before.with_(alone).of(ToyDevice("cpu").spec)
    assert both.launch_s == 3e-6 and both.sharing == turns


CORES = (None, CoreLatency(5e-8, 1e-10), CoreLatency(2.5e-7, 3e-10))


@pytest.mark.parametrize(
    "latency_s, s_per_byte, flags, handed",
    [(2e-5, 1e-9, 0.0, 0.0), (0.0, 5e-10, 200.0, 1.0), (1e-5, 0.0, 100.0, 0.5)],
)
def test_crossings_of_runs_of_any_length(latency_s, s_per_byte, flags, handed):
    """What depends on the cores is told from what does not where both states were seen."""
    rows = [
        (
            c,
            nbytes,
            c * (latency_s + flags * cores.flag_s) + nbytes * (s_per_byte + handed * cores.byte_s),
            whole_s,
            cores,
        )
        for c, nbytes, whole_s in ((2, 9e3, 1e-4), (4, 8e4, 5e-4), (2, 9e5, 7e-3), (6, 1e5, 1e-3))
        for cores in CORES[1:]
    ]
    found = fit_transfers(rows).sharing(1.0)
    for cores in CORES[1:]:
        latency, bandwidth = found.link(cores)
        assert latency == pytest.approx(latency_s + flags * cores.flag_s, rel=0.15, abs=2e-6)
        expected = max(s_per_byte + handed * cores.byte_s, 1e-12)
        assert 1 / bandwidth == pytest.approx(expected, rel=0.15, abs=4e-11)
    assert found.link(None)[0] == found.link(USUAL)[0]


def test_a_byte_passes_between_cores_twice_at_the_most():
    """Visits of which the far ones were disturbed: what is left over is not put on the cores."""
    rows = [
        (c, n, c * 5e-5 + n * (14 * cores.byte_s), 1e-3, cores)
        for c, n in ((2, 9e3), (4, 8e4), (2, 9e5), (6, 1e5))
        for cores in CORES[1:]
    ]
    found = fit_transfers(rows)
    assert found.flags <= 300 and found.handed <= 2 and found.bandwidth < 1e11


def test_a_disturbed_run_does_not_bend_the_crossings():
    near = CORES[1]
    rows = [
        (c, n, c * 3e-5 + n * 1e-9, 1e-3, near)
        for c, n in ((2, 9e3), (4, 8e4), (2, 9e5), (6, 1e5), (3, 3e4), (4, 4e3), (2, 7e3))
    ]
    rows += rows
    disturbed = [(4, 4e3, -1e-3, 1e-3, near)]
    prices = [
        [latency + n / bandwidth for n in (1e3, 1e5)]
        for found in (fit_transfers(rows), fit_transfers(rows + disturbed))
        for latency, bandwidth in (found.sharing(1.0).link(near),)
    ]
    assert prices[1] == pytest.approx(prices[0], rel=0.2)


def test_crossings_of_cores_that_nobody_can_tell_apart():
    rows = [(c, n, c * 2e-5 + n * 1e-9, 1e-3, None) for c, n in ((2, 9e3), (4, 8e4), (6, 9e5))]
    found = fit_transfers(rows)
    assert (found.flags, found.handed, found.samples) == (0.0, 0.0, 3)
    assert found.latency_s == pytest.approx(2e-5, rel=0.2)
    assert found.bandwidth == pytest.approx(1e9, rel=0.2)


def test_a_turn_is_paid_with_the_copy():
    cpu, gpu = (ToyDevice(name, resource_group="chip") for name in ("cpu", "gpu"))
    lines = {"read": (1e-5, 1e9), "write": (2e-5, 1e9)}

    def costs(latency_s, *devices):
        sharing = {} if latency_s is None else {"gpu": Sharing(latency_s, 5e8, 0.0, 0.0, 1.0)}
        known = Calibration.of_devices(
            DeviceCalibration("gpu", "toy gpu", 5e-5, copies=lines),
            DeviceCalibration("cpu", "toy cpu", 1e-6, sharing=sharing),
        )
        return CostModel({device.spec.name: device for device in devices}, known)

    assert costs(None, cpu, gpu).links.seconds(1000, "gpu", "host") == pytest.approx(1.1e-5)
    assert costs(3e-5, cpu, gpu).links.seconds(1000, "gpu", "host") == pytest.approx(3.2e-5)
    assert costs(3e-5, cpu, gpu).links.seconds(1000, "host", "gpu") == pytest.approx(3.2e-5)
    assert costs(3e-5, gpu).links.seconds(1000, "host", "gpu") == pytest.approx(2.1e-5)
