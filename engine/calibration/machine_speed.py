""".0 if nothing is known."""

from __future__ import annotations

import statistics

from trireme.backend.core_latency import UNKNOWN
from trireme.backend.device import BoundCall, Device
from trireme.calibration.net_builder import build
from trireme.calibration.nets import NETS
from trireme.calibration.samples import bind, timed, use_single_thread
from trireme.cost.calibration import DeviceCalibration
from trireme.cost.work import supported_part
from trireme.passes.pipeline import optimise

_TIMED = ("separable", "inverted", "inverted int8", "encoder", "inception", "small")
"""The networks that are timed: short ones, of several kinds."""


class MachineSpeed:
    """The machine's speed relative to calibration, from a few networks that are timed again.

    They interleave with the compared runs, so that both see the same machine. A network's reference
    is its calibrated time in the same state of the cores, else in an unknown state. Without either,
    the network runs on one thread, whose time does not depend on the cores.
    """

    def __init__(self, device: Device, measured: DeviceCalibration) -> None:
        self._nets = measured.nets
        self._rows: list[tuple[BoundCall, str, list[float]]] = []
        for net in NETS:
            if net.name in _TIMED and any(net.name in nets for nets in measured.nets.values()):
                graph = supported_part(optimise(build(net)), device)
                self._rows.append((bind(device, graph), net.name, []))

    def measure(self, apart: str = UNKNOWN) -> None:
        """Measure each network once more, in this state of the cores."""
        for call, name, ratios in self._rows:
            then = (self._nets.get(apart) or self._nets.get(UNKNOWN, {})).get(name)
            is_alone = then is None
            if then is None:
                alone = (nets.get(f"{name} alone") for nets in self._nets.values())
                then = next((seconds for seconds in alone if seconds), None)
            if then is not None:
                use_single_thread(call, is_alone)
                ratios.append(timed(call) / then)

    def forget(self) -> None:
        """Discard the last measurement, because the machine changed meanwhile."""
        for _, _, ratios in self._rows:
            del ratios[-1:]

    def since(self) -> float:
        """Return the measured seconds, relative to the calibration's: 1.1 is a tenth slower.

        1.0 if nothing is known. The measurements are cleared.
        """
        found = [statistics.median(ratios) for _, _, ratios in self._rows if ratios]
        for _, _, ratios in self._rows:
            ratios.clear()
        return statistics.median(found or [1.0])
