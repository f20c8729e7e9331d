"""Choose the runner of a session, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.backend.device import ANY_NUMBER, Device, no_progress
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ops.repeats import bodies_of
from trireme.placement.options import PlacementOptions
from trireme.runtime.loop.executors import Mode
from trireme.runtime.models.prepare import (
    HOW_TO_AVOID,
    Preparation,
    Prepared,
    with_reference_note,
)
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.contexts import MOST, ContextCount, checked_contexts
from trireme.runtime.program.options import ExecutionOptions, resolve_options
from trireme.runtime.session.program_runner import ProgramRunner
from trireme.runtime.session.runners import ReadyModel
from trireme.runtime.session.shape_session import ShapeOptions
from trireme.runtime.session.shared_programs import PROGRAMS, SharedProgram
from trireme.runtime.session.siblings import holding
from trireme.runtime.shapes.stage import is_open
from trireme.support.arguments import choice
from trireme.support.errors import RunError
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.runtime.models.arguments import SessionArguments
    from trireme.runtime.models.stored import Entry, StoredKey
    from trireme.runtime.session.open_program import OpenProgram
    from trireme.runtime.session.session_faults import SessionFaults
    from trireme.runtime.session.sized_runner import SizedRunner
    from trireme.runtime.session.stateful_program import StatefulProgram
    from trireme.runtime.shapes.resizable import ShapeRun


@dataclass(frozen=True)
class RunnerChoice:
    """The facts that choose a runner.

    key: of the stored program, None where none can be stored
    stores: whether a program of static shapes is stored
    open_session: opens sessions to measure, for regions, and without a device
    is_sibling: whether another session opens this one, and notes what there is to say
    """

    arguments: SessionArguments
    key: StoredKey | None
    stores: bool
    is_sibling: bool
    open_session: Callable[..., Any]
    faults: SessionFaults
    closing: ExitStack
    shared: SharedProgram

    def ready_model(self) -> ReadyModel:
        """Go from the model to its runner, and store the program where it can be.

        Errors: those of every step
        """
        asked, shared = self.arguments, self.shared
        mode = choice("mode", asked.mode, Mode)
        preparation = self._preparation(mode)
        prepared = shared.prepared or preparation.prepare(asked.model)
        shared.prepared = prepared
        options = ShapeOptions(preparation.execution_options, preparation.made.placement_options)
        runner: ProgramRunner | SizedRunner
        if options.execution_options.schedule == "dynamic":
            runner, count = self._dataflow(options, prepared, mode)
        elif is_open(prepared.graph) or asked.buckets:
            runner, count = self._any_shape(options, prepared, mode)
        else:
            runner, count = self._one_shape(options, preparation, prepared, mode)
        if not prepared.states.types and prepared.tied is None and self.key is not None:
            PROGRAMS.offer(self.key.key, shared)
        return ReadyModel(prepared, *options, runner, count)

    @property
    def _contexts(self) -> int | None:
        return checked_contexts(self.arguments.contexts)

    def _preparation(self, mode: Mode) -> Preparation:
        asked = self.arguments
        how = asked.execution_options or ExecutionOptions()
        options = asked.placement_options or PlacementOptions()
        made = resolve_options(asked.placement, asked.devices, asked.threads, asked.batch, options)
        return Preparation(
            made=made,
            shapes=asked.shapes,
            fallback=asked.fallback,
            calibration=asked.calibration,
            execution_options=how,
            hold=partial(holding, self.open_session, mode, how) if asked.measure else None,
            progress=asked.progress or no_progress,
            closing=self.shared.closing,
            rules=asked.states,
            dropped=self.shared.dropped,
            events=self.faults.log,
        )

    def _dataflow(
        self, options: ShapeOptions, prepared: Prepared, mode: Mode
    ) -> tuple[SizedRunner, ContextCount]:
        """Open a graph whose ops run as they are ready; raise RunError if it has buckets."""
        from trireme.runtime.session.sized_runner import SizedRunner, dataflow_program

        if self.arguments.buckets:
            raise RunError("buckets need a static schedule: a dynamic one has no plan")
        found = dataflow_program(prepared, options.execution_options, mode)
        self.closing.callback(found.close)
        runner = SizedRunner(found, prepared, self.faults, found.watch)
        reason = "its ops run as they are ready"
        return runner, context_count(self._contexts, prepared.graph, (), reason)

    def _any_shape(
        self, options: ShapeOptions, prepared: Prepared, mode: Mode
    ) -> tuple[SizedRunner, ContextCount]:
        """Open a graph with open shapes, or one whose shapes are padded to buckets."""
        from trireme.runtime.session.open_program import OpenProgram
        from trireme.runtime.session.sized_runner import SizedRunner, WatchableRegions, open_shapes

        shared, buckets = self.shared, self.arguments.buckets
        reason = why_one_open(prepared.graph, prepared.tied is not None)
        devices = prepared.devices.values()
        count = context_count(self._contexts, prepared.graph, devices, reason)
        how, asked = options.execution_options, replace(options.placement_options, pins={})
        asked = asked.without(shared.dropped)
        open_region = WatchableRegions(
            self.open_session,
            devices=list(devices),
            mode=mode,
            contexts=count.most,
            measure=self.arguments.measure,
            calibration=prepared.calibration,
            placement_options=replace(asked, quick=asked.quick or not buckets),
            execution_options=replace(
                how, passes=(), passes_off=(), signature=None, optional_inputs=()
            ),
        )
        found: OpenProgram | StatefulProgram | None = shared.open_program
        if found is None:
            found = open_shapes(options, prepared, mode, asked, buckets, open_region)
            shared.closing.callback(found.close)
            shared.watch_regions = open_region.watch
        if isinstance(found, OpenProgram):
            shared.open_program = found
            found = found.beside()
            self.closing.callback(found.ahead.close)
        runner = SizedRunner(found, prepared, self.faults, shared.watch_regions)
        if not buckets:
            runner.store_shapes = partial(self._store_open, prepared, how.mmap)
        return runner, count

    def _one_shape(
        self, options: ShapeOptions, preparation: Preparation, prepared: Prepared, mode: Mode
    ) -> tuple[ProgramRunner, ContextCount]:
        """Open a graph of static shapes, compiled here unless another session did."""
        shared, program = self.shared, self.shared.program
        is_first = program is None
        if program is None:
            program, context = preparation.compile(prepared)
            shared.program = program
            if not self.is_sibling:
                prepared = with_reference_note(prepared, [program.plan.placement], HOW_TO_AVOID)
        else:
            context = ExecutionContext(program, states=prepared.states)
        runner = ProgramRunner(program, context, mode, self.faults, self.closing, prepared.tied)
        if is_first and self.stores:
            self._store(prepared, options.execution_options.mmap, context)
        used = program.devices_used()
        return runner, context_count(self._contexts, prepared.graph, used, "")

    def _store(self, prepared: Prepared, is_mapped: bool, context: ExecutionContext) -> None:
        """Store a program of the model for later processes."""
        if self._is_storable(prepared):
            from trireme.runtime.models.stored import entry_of

            made = entry_of(context, prepared.files, prepared.notes, is_mapped)
            if made is not None:
                self._keep_entry(lambda: made, prepared)

    def _store_open(self, prepared: Prepared, is_mapped: bool, last: ShapeRun) -> None:
        """Store a program of open shapes, at those of a run, for later processes."""
        if self._is_storable(prepared):
            from trireme.runtime.session.sized_runner import open_entry

            made = partial(open_entry, last, prepared.graph, prepared.files, prepared.notes)
            self._keep_entry(partial(made, is_mapped), prepared)

    def _is_storable(self, prepared: Prepared) -> bool:
        """Whether later processes may run this program."""
        is_plain = prepared.tied is None and not prepared.states.types and not self.shared.dropped
        return self.key is not None and is_plain

    def _keep_entry(self, make: Callable[[], Entry | None], prepared: Prepared) -> None:
        assert self.key is not None
        self.closing.callback(self.key.keep(make, prepared.files).wait)


def context_count(
    asked: int | None, graph: Graph, devices: Iterable[Device], reason: str
) -> ContextCount:
    """Return how many calls run at once.

    asked: None for as many as the devices work on, each on a thread of its own
    devices: those that tasks are on
    reason: why there is one, which the caller knows; else empty
    Errors: RunError, if more than one is asked for and cannot be
    """
    used = list(devices)
    reason = reason or _reason(graph, used)
    if reason:
        if asked is not None and asked > 1:
            raise RunError(f"{asked} contexts cannot be: {reason}", fix="leave out contexts=")
        return ContextCount(1, reason)
    busy = min((one.busy_calls for one in used), default=MOST)
    if asked is not None:
        return ContextCount(asked, "asked for", busy)
    if any(get_op(node.op).calls_python for node in _all_nodes(graph)):
        return ContextCount(1, "a Python operator may not be made for two calls at once")
    least = min(used, key=lambda one: one.calls_at_once, default=None)
    if least is None or least.calls_at_once == ANY_NUMBER:
        return ContextCount(1, "no device has threads")
    return ContextCount(
        min(least.calls_at_once, MOST), f"so many keep {least.spec.name} busy", busy
    )


def why_one_open(graph: Graph, has_ties: bool) -> str:
    """Return why calls of open shapes take turns; empty where they need not."""
    if has_ties:
        return "the session holds states, which one run after another changes"
    if any(get_op(node.op).has_body for node in graph.nodes):
        return "control flow of open shapes works on memory of its own"
    return ""


def _reason(graph: Graph, devices: Iterable[Device]) -> str:
    for device in devices:
        if not device.calls_at_once:
            return f"{device.spec.name} works on one call at a time"
    if any(get_op(node.op).effect for node in _all_nodes(graph)):
        return "the model has states, which one run after another changes"
    return ""


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of all bodies in it."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node).values():
            yield from _all_nodes(body)
