"""How fast the machine is now, beside when it was calibrated: a few networks again.

`calibrate --check` tells errors of predictions beside it.
"""

from __future__ import annotations

import statistics

from trireme.backend.core_latency import UNKNOWN
from trireme.backend.device import BoundCall, Device
from trireme.calibration.net_builder import build
from trireme.calibration.nets import NETS
from trireme.calibration.samples import bind, timed, use_single_thread
from trireme.cost.calibration import DeviceCalibration
from trireme.cost.model import supported_part
from trireme.passes.pipeline import optimise

_PACE = ("separable", "inverted", "inverted int8", "encoder", "inception", "small")
"""The networks that tell how fast the machine is: of several kinds, and short."""


class MachineSpeed:
    """How fast the machine is, beside when it was calibrated: a few of the networks again.

    They are visited in turns with what is to be compared, so that both see the same machine, and
    compared with what they took with the cores as far apart; where the device has but one, with
    what they took; where that was not seen, alone, which does not depend on it.
    """

    def __init__(self, device: Device, measured: DeviceCalibration) -> None:
        self._nets = measured.nets
        self._rows: list[tuple[BoundCall, str, list[float]]] = []
        for net in NETS:
            if net.name in _PACE and any(net.name in nets for nets in measured.nets.values()):
                graph = supported_part(optimise(build(net)), device)
                self._rows.append((bind(device, graph), net.name, []))

    def visit(self, apart: str = UNKNOWN) -> None:
        """Measure each network once more, with the cores so far apart."""
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
        """Take back the last visit: the machine was another one meanwhile."""
        for _, _, ratios in self._rows:
            del ratios[-1:]

    def since(self) -> float:
        """Return the seconds of the visits since the last time, of those of the calibration: 1.1
        is a tenth slower; 1.0 if nothing is known.
        """
        found = [statistics.median(ratios) for _, _, ratios in self._rows if ratios]
        for _, _, ratios in self._rows:
            ratios.clear()
        return statistics.median(found or [1.0])
