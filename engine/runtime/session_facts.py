"""What a session is made of: its graph, its program, where nodes run; nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trireme.support.arguments import checked
from trireme.support.errors import RunError
from trireme.support.showing import Shown

if TYPE_CHECKING:
    from trireme.backend.core_latency import Cores
    from trireme.backend.device import Device
    from trireme.cost.calibration import Calibration
    from trireme.ir.effects import States
    from trireme.ir.graph import Graph, Value
    from trireme.placement.options import PlacementOptions
    from trireme.placement.placement import Placement
    from trireme.plan.plan import Plan
    from trireme.runtime.executors import Executors
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.program import Program


class SessionFacts(Shown):
    """The facts of a session.

    graph: what it computes; states: its variables by name
    unmeasured: the devices that are priced by their description, and why
    dropped: devices that gave an error before any run, with the error
    """

    graph: Graph
    states: States
    unmeasured: list[str]
    placement_options: PlacementOptions
    execution_options: ExecutionOptions
    _calibration: Calibration
    dropped: dict[str, str]
    _program: Program
    _runs: Executors

    def __str__(self) -> str:
        shapes = ", ".join(f"{value.name} {value.type}" for value in self.inputs)
        return f"{self.graph.name!r} on {', '.join(self.devices)}: {shapes}"

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype."""
        from trireme.ir.bind_shapes import with_known_sizes

        return with_known_sizes(self.graph)

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order."""
        return list(self.graph.output_values())

    @property
    def program(self) -> Program:
        """The program that runs; with open shapes that of the last run.

        Errors: RunError, with open shapes before a run, and if no program ran
        """
        return self._latest._program

    @property
    def plan(self) -> Plan:
        """The plan that runs; with open shapes as `program`."""
        return self.program.plan

    @property
    def runs(self) -> Executors:
        """What runs the plan's tasks; with open shapes as `program`."""
        return self._latest._runs

    @checked(RunError)
    def kernels(self, form: str = "ir") -> dict[str, str]:
        """Return the generated code as readable text, by file name.

        form: "ir" (what was generated) or "asm" (machine code); for devices that generate any
        Errors: RunError, for another form
        """
        return self.program.listings(form)

    @property
    def placement(self) -> Placement:
        """Where every node runs and why; printable, to_json()."""
        return self.plan.placement

    @property
    def cores(self) -> tuple[Cores, ...]:
        """How far apart the cores of devices are now, beside what estimates are priced by."""
        return self._calibration.cores_of(self.devices.values())

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return self._program.devices

    @property
    def _latest(self) -> SessionFacts:
        """The session of the program that ran last."""
        return self
