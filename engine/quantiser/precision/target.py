"""The machine that precision is placed for: its devices, open or described, and their costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE, described_machine, open_devices
from trireme.cost.calibration import Calibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement

_OPTIONS = PlacementOptions(sharding="off")
"""No node is shared by devices: a shard is tried for what a mixture of precisions settles on."""
_QUICK = PlacementOptions(sharding="off", quick=True)


@dataclass(frozen=True)
class PrecisionTarget:
    """A machine by name, and what nodes cost there."""

    name: str
    costs: CostModel

    def place(self, graph: Graph, quick: bool = False) -> Placement:
        """Return where a session on this machine would run a graph, as it would optimise it.

        quick: whether the search stops after one local search
        """
        return place(optimise(graph), self.costs, _QUICK if quick else _OPTIONS)


@contextmanager
def opened_target(
    devices: Sequence[str | Device] | None, soc: str | None, threads: int | None
) -> Iterator[PrecisionTarget]:
    """Yield a described machine, or devices of this one, which are closed afterwards.

    devices: of the described machine, those with these names
    Errors: DeviceError, ModelFileError or RunError, if there are no such devices
    """
    if soc is not None:
        machine = described_machine(soc, [_name(one) for one in devices or ()])
        yield PrecisionTarget(PurePath(soc).stem, CostModel(machine, Calibration()))
        return
    wanted = tuple(devices or (DEFAULT_DEVICE,))
    opened, _ = open_devices(wanted, {}, threads)
    try:
        yield PrecisionTarget(", ".join(opened), CostModel(opened, load_calibration()))
    finally:
        _close(opened, wanted)


def _name(device: str | Device) -> str:
    return device if isinstance(device, str) else device.spec.name


def _close(opened: Mapping[str, Device], wanted: Sequence[str | Device]) -> None:
    for one in wanted:
        if isinstance(one, str):
            opened[one].close()
