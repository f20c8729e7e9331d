"""Turn a model into a program in memory: read, open devices, pin, place, plan, compile, bind.

A Session asks once, when it opens. The opener of a session that holds a placement comes in as
`hold`, so that this module knows no session.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial

from trireme.backend.device import HOST, Device, Progress
from trireme.backend.registry import add_host, open_devices
from trireme.cost.calibration import Calibration, load_calibration
from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import Shapes, with_known_sizes
from trireme.ir.effects import States, initial_states, state_types
from trireme.ir.graph import Graph, Value
from trireme.ir.selectors import pinned, pins_called, unpinned
from trireme.model_file.cache import Model, optimised
from trireme.model_file.notes import log_note
from trireme.passes.carried_states import carried_states
from trireme.placement.options import PlacementOptions
from trireme.placement.place import place
from trireme.placement.placement import Placement
from trireme.placement.reference_share import reference_nodes, reference_note
from trireme.placement.shards.batch import batched
from trireme.plan.plan import make_plan
from trireme.runtime.control.compile import compile_plan
from trireme.runtime.loop.execute import close_unless_lost
from trireme.runtime.models.autotune import Opened, autotune, check_free
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.options import ExecutionOptions, ResolvedOptions
from trireme.runtime.program.program import Program
from trireme.runtime.shapes.stage import is_open
from trireme.runtime.states.held import TiedStates
from trireme.runtime.states.rules import StateRules, as_variables, ties_of
from trireme.support.errors import CompileError, DeviceError, PlanError, TriremeError
from trireme.support.fault_events import EventLog, event_of
from trireme.support.mapped import OpenFile
from trireme.support.records import dataclass

Hold = Callable[[Sequence[Device], Calibration, Placement], Opened]
"""Opens a session that holds a placement."""


@dataclass(frozen=True)
class Prepared:
    """A graph on open devices, before any placement.

    graph: optimised, with its pins
    tied: what is fed and given out where outputs are inputs of the next run; else None
    calibration: what estimates are priced by
    unmeasured: the devices that are priced by their description, and why
    files: those that the model was read from; notes: sentences for the user of the model
    """

    graph: Graph
    devices: Mapping[str, Device]
    states: States
    tied: TiedStates | None
    calibration: Calibration
    unmeasured: list[str]
    files: Sequence[OpenFile]
    notes: Sequence[str]

    @property
    def inputs(self) -> list[Value]:
        """The inputs that callers feed."""
        return with_known_sizes(self.graph) if self.tied is None else self.tied.inputs

    @property
    def outputs(self) -> list[Value]:
        """The outputs that callers get."""
        return list(self.graph.output_values()) if self.tied is None else self.tied.outputs


HOW_TO_AVOID = "give them a form or a device that has a kernel: trireme supported-ops lists both"


def with_reference_note(prepared: Prepared, placements: Iterable[Placement], fix: str) -> Prepared:
    """Warn where nodes on the numpy reference take much of the predicted time.

    placements: what runs the model, in turn; fix: how a user may avoid the reference
    Returns it with the note, which a stored program gives again
    """
    note = reference_note(prepared.graph.name, reference_nodes(placements), fix)
    if not note:
        return prepared
    log_note(note)
    return replace(prepared, notes=[*prepared.notes, note])


@dataclass(frozen=True)
class Preparation:
    """The arguments of a session, and the steps to its program, in order.

    hold: where placements are to be measured, opens each of them; else None
    closing: closes the devices that are opened here
    rules: which outputs are inputs of the next run
    dropped: where `fallback` allows it, devices that gave an error before any run, with the error
    events: gets an event for each of them
    """

    made: ResolvedOptions
    shapes: Shapes | None
    fallback: bool
    calibration: Calibration | str | os.PathLike[str] | None
    execution_options: ExecutionOptions
    hold: Hold | None
    progress: Progress
    closing: ExitStack
    rules: StateRules | None
    dropped: dict[str, str] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)

    def prepare(self, model: Model) -> Prepared:
        """Return the model's graph on open devices.

        Errors: those of every step
        """
        self.progress("reading the model", 0, 0)
        files: list[OpenFile] = []
        notes: list[str] = []
        graph = carried_states(self._read(model, files, notes))
        ties = ties_of(graph, self.rules)
        with_ties, are_variables = graph, not is_open(graph)
        if ties and are_variables:
            graph = as_variables(graph, ties)
        self.progress("opening devices", 0, 0)
        states = States(state_types(graph), graph.symbols, initial_states(graph))
        devices = self._open(states)
        asked = self.made.placement_options
        pins = {node: where for node, where in asked.pins.items() if where not in self.dropped}
        graph = unpinned(pinned(graph, pins_called(graph, pins, devices)), self.dropped)
        states = add_host(devices, graph, states, keeps_states=is_open(graph))
        tied = TiedStates(with_ties, ties, states, are_variables) if ties else None
        calibration = load_calibration(self.calibration)
        unmeasured = calibration.unmeasured(one.spec for one in devices.values())
        return Prepared(graph, devices, states, tied, calibration, unmeasured, files, notes)

    def compile(self, prepared: Prepared) -> tuple[Program, ExecutionContext]:
        """Return a program of the graph, whose shapes are all known, and its memory.

        Errors: those of every step
        """
        asked = replace(self.made.placement_options, pins={})  # the graph has them
        return self._on_some(prepared, asked)

    def _read(self, model: Model, files: list[OpenFile], notes: list[str]) -> Graph:
        """Return the optimised graph of the model, with the batch that was asked for.

        files, notes: get the model's
        """

        def on_note(note: str) -> None:
            log_note(note)
            notes.append(note)

        how = self.execution_options
        graph = optimised(
            model,
            shapes=self.shapes,
            passes=how.passes,
            disable=how.passes_off,
            folder=how.model_cache,
            mmap=how.mmap,
            signature=how.signature,
            python_ops=how.python_ops,
            optional_inputs=how.optional_inputs,
            on_open=files.append,
            on_note=on_note,
        )
        return graph if self.made.batch is None else batched(graph, self.made.batch)

    def _open(self, states: States) -> dict[str, Device]:
        """Return the devices; those that are opened here are closed with the session."""
        wanted, options = self.made.devices, self.execution_options.device_options or {}
        given = {**options, HOST: {"states": states, **options.get(HOST, {})}}
        opened, absent = open_devices(wanted, given, self.made.threads, self.fallback)
        for name in wanted:
            if isinstance(name, str) and name in opened:
                self.closing.callback(close_unless_lost, opened[name])
        for name, error in absent.items():
            self._drop(name, error)
        return opened

    def _on_some(
        self, prepared: Prepared, asked: PlacementOptions
    ) -> tuple[Program, ExecutionContext]:
        """Return a program and its memory; devices may be dropped until one can be made."""
        devices = prepared.devices
        while True:
            try:
                return self._on(devices, prepared, asked.without(self.dropped))
            except (CompileError, DeviceError, PlanError) as error:
                if not self.fallback or error.device not in devices or len(devices) == 1:
                    raise
                self._drop(error.device, error)
                devices = {name: d for name, d in devices.items() if name != error.device}
                prepared = replace(prepared, graph=unpinned(prepared.graph, {error.device}))

    def _on(
        self, devices: Mapping[str, Device], prepared: Prepared, asked: PlacementOptions
    ) -> tuple[Program, ExecutionContext]:
        """Place, plan and compile, and bind all that was compiled to memory."""
        graph, calibration = prepared.graph, prepared.calibration
        self.progress("placing nodes", 0, 0)
        costs = CostModel(devices, calibration)
        if self.hold is not None:
            check_free(asked)
        placement = place(graph, costs, asked)
        if self.hold is not None:
            open_one = partial(self.hold, list(devices.values()), calibration)
            placement = autotune(placement, graph, costs, open_one, self.progress)
        how = self.execution_options
        plan = make_plan(placement, how.subgraphs, how.execution)
        program = compile_plan(plan, devices, self.progress, how.timeout_s)
        return program, ExecutionContext(program, states=prepared.states)

    def _drop(self, name: str, error: TriremeError) -> None:
        self.dropped[name] = str(error)
        self.events.add(event_of(error.of_device(name), "left out"))
