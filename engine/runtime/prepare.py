"""Make a program of a graph on open devices: place, plan, compile, and bind to memory.

A Session asks once, when it opens. `autotune` comes in as what opens a session that holds a
placement, so that this module knows no session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trireme.backend.device import Device, Executable, Progress
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.graph import Graph
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.plan.plan import make_plan
from trireme.runtime.autotune import Opened, check_free, tried
from trireme.runtime.context import ExecutionContext
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.program import Program, compile_tasks, make_program
from trireme.support.errors import CompileError, DeviceError, PlanError


@dataclass(frozen=True)
class Preparation:
    """All that a program is made of but its devices.

    holding: given devices, what opens a session that holds a placement, where placements are to be
        measured; else None
    """

    graph: Graph
    calibration: Calibration
    options: PlacementOptions
    execution_options: ExecutionOptions
    holding: Callable[[Mapping[str, Device]], Callable[[Placement], Opened]] | None
    progress: Progress

    def on_some(
        self, devices: Mapping[str, Device], drop: Callable[[str, Exception], None] | None
    ) -> tuple[Program, ExecutionContext]:
        """Return a program and its memory, made without the devices that give an error before it.

        drop: told of each device that is left out, and why; None where none may be
        Errors: PlacementError, PlanError, CompileError, DeviceError
        """
        while True:
            try:
                return self.on(devices)
            except (CompileError, DeviceError, PlanError) as error:
                if drop is None or error.device not in devices or len(devices) == 1:
                    raise
                drop(error.device, error)
                devices = {name: d for name, d in devices.items() if name != error.device}

    def on(self, devices: Mapping[str, Device]) -> tuple[Program, ExecutionContext]:
        """Place, plan and compile, and bind all that was compiled to memory."""
        self.progress("placing nodes", 0, 0)
        costs = CostModel(devices, self.calibration)
        if self.holding is not None:
            check_free(self.options)
        placement = place(self.graph, costs, self.options)
        if self.holding is not None:
            placement = tried(placement, self.graph, costs, self.holding(devices), self.progress)
        how = self.execution_options
        plan = make_plan(placement, how.subgraphs, how.execution)
        executables: dict[int, Executable] = {}
        for name, device in devices.items():
            executables.update(compile_tasks(plan, name, device, self.progress))
        program = make_program(plan, devices, executables)
        return program, ExecutionContext(program)
