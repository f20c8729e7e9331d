"""From a model to what runs it: the program, its stored form, and the plans without a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from trireme.runtime.contexts import checked_contexts
from trireme.runtime.open_session import OpenSession
from trireme.runtime.shared_programs import PROGRAMS, SharedProgram
from trireme.runtime.sibling_sessions import holding
from trireme.support.arguments import check_arguments, choice
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.backend.device import Device
    from trireme.runtime.context import ExecutionContext
    from trireme.runtime.dynamic.resizable import ShapeRun
    from trireme.runtime.executors import Mode
    from trireme.runtime.prepare import Preparation, Prepared
    from trireme.runtime.session_arguments import SessionArguments
    from trireme.runtime.states.program import StatefulProgram
    from trireme.runtime.stored import Entry, StoredKey


class PreparedSession(OpenSession):
    """A session that makes its program of a model."""

    _asked: SessionArguments
    _key: StoredKey | None
    _devices: Mapping[str, Device]
    _tells_references = True
    """Whether it warns of nodes on the numpy reference that take much of its time."""

    @property
    def _kind(self) -> type[PreparedSession]:
        """What opens further sessions: for measuring, regions, and plans without a device."""
        raise NotImplementedError

    def _prepare_model(self, asked: SessionArguments) -> None:
        """Go from the model to its program, and store that where it can be."""
        from trireme.runtime.dynamic.stage import is_open
        from trireme.runtime.executors import Mode

        check_arguments(self._kind.__init__, vars(asked), RunError)
        mode = choice("mode", asked.mode, Mode)
        preparation, shared = self._preparation(asked, mode)
        prepared = shared.prepared or preparation.prepare(asked.model)
        shared.prepared = prepared
        self.graph, self.states = prepared.graph, prepared.states
        self.unmeasured, self._calibration = prepared.unmeasured, prepared.calibration
        self._tied = prepared.tied
        contexts = checked_contexts(asked.contexts)
        if self.execution_options.schedule == "dynamic":
            self._open_dataflow(prepared, mode, contexts)
        elif is_open(self.graph) or asked.buckets:
            self._open_any_shape(shared, prepared, mode, contexts)
        else:
            self._open_one_shape(shared, preparation, prepared, mode, contexts)
        if not self.states.types and self._tied is None and self._key is not None:
            PROGRAMS.offer(self._key.key, shared)
        if asked.fallback:
            self._fail_over(prepared)

    def _preparation(
        self, asked: SessionArguments, mode: Mode
    ) -> tuple[Preparation, SharedProgram]:
        """Return what prepares the model, and what sessions of the same arguments share."""
        from trireme.backend.device import no_progress
        from trireme.placement.options import PlacementOptions
        from trireme.runtime.options import ExecutionOptions
        from trireme.runtime.prepare import Preparation
        from trireme.runtime.resolved_options import resolve_options

        how = asked.execution_options or ExecutionOptions()
        options = asked.placement_options or PlacementOptions()
        made = resolve_options(asked.placement, asked.devices, asked.threads, asked.batch, options)
        self.execution_options, self.placement_options = how, made.placement_options
        shared = self._take_shared()
        preparation = Preparation(
            made=made,
            shapes=asked.shapes,
            fallback=asked.fallback,
            calibration=asked.calibration,
            execution_options=how,
            hold=partial(holding, self._kind, mode, how) if asked.measure else None,
            progress=asked.progress or no_progress,
            closing=shared.closing,
            rules=asked.states,
            dropped=self.dropped,
            events=self._events,
        )
        return preparation, shared

    def _open_dataflow(self, prepared: Prepared, mode: Mode, contexts: int | None) -> None:
        """Open a graph whose ops run as they are ready; raise RunError if it has buckets."""
        from trireme.runtime.context_count import context_count

        if self._asked.buckets:
            raise RunError("buckets need a static schedule: a dynamic one has no plan")
        self._schedule(prepared, mode)
        self._widen(context_count(contexts, self.graph, (), "its ops run as they are ready"))

    def _open_any_shape(
        self, shared: SharedProgram, prepared: Prepared, mode: Mode, contexts: int | None
    ) -> None:
        """Open a graph with open shapes, or one whose shapes are padded to buckets."""
        from trireme.runtime.context_count import context_count, why_one_open

        reason = why_one_open(self.graph, self._tied is not None)
        self._widen(context_count(contexts, self.graph, prepared.devices.values(), reason))
        self._serve(shared, prepared, mode)
        if not self._asked.buckets:
            is_mapped = self.execution_options.mmap
            self._shapes_to_store = partial(self._store_open, prepared, is_mapped)

    def _open_one_shape(
        self,
        shared: SharedProgram,
        preparation: Preparation,
        prepared: Prepared,
        mode: Mode,
        contexts: int | None,
    ) -> None:
        """Open a graph of static shapes, compiled here unless another session did."""
        from trireme.runtime.context import ExecutionContext
        from trireme.runtime.context_count import context_count
        from trireme.runtime.prepare import HOW_TO_AVOID, with_reference_note

        is_first = shared.program is None
        if shared.program is None:
            shared.program, context = preparation.compile(prepared)
            if self._tells_references:
                placement = shared.program.plan.placement
                prepared = with_reference_note(prepared, [placement], HOW_TO_AVOID)
        else:
            context = ExecutionContext(shared.program, states=prepared.states)
        self._keep(shared.program, context, mode)
        self._widen(context_count(contexts, self.graph, self._program.devices_used(), ""))
        if is_first:
            self._store(prepared, self.execution_options.mmap, self._context)

    def _fail_over(self, prepared: Prepared) -> None:
        """Have runs that a device fails go on without it."""
        from trireme.runtime.failover.opening import open_failover

        mine = ref(self)

        def choose_again() -> None:
            session = mine()
            if session is not None:
                session._choose_direct()

        how = self.execution_options, self.placement_options
        asked, events = self._asked, self._events
        self._failover = open_failover(
            self._kind, asked, prepared, self.devices, how, events, choose_again
        )
        if self._failover is not None:
            self.watch_tasks()
            self._choose_direct()

    def prepare_fallbacks(self) -> None:
        """Make the plans that run without each device now, not at its first fault.

        They take the memory and the time of a session each. Without `fallback=True`, or with one
        device, there are none.
        """
        if self._failover is not None:
            self._failover.prepare()

    def _take_shared(self) -> SharedProgram:
        """Return what sessions of the same arguments share, which may be empty."""
        shared = PROGRAMS.take(None if self._key is None else self._key.key, self._asked.model)
        self._closing.callback(PROGRAMS.drop, shared)
        self.dropped = shared.dropped
        return shared

    def _store(self, prepared: Prepared, is_mapped: bool, context: ExecutionContext) -> None:
        """Store a program of the model for later processes."""
        if self._is_storable:
            from trireme.runtime.stored import entry_of

            made = entry_of(context, prepared.files, prepared.notes, is_mapped)
            if made is not None:
                self._keep_entry(lambda: made, prepared)

    def _store_open(self, prepared: Prepared, is_mapped: bool, last: ShapeRun) -> None:
        """Store a program of open shapes, at those of a run, for later processes."""
        if self._is_storable:
            from trireme.runtime.dynamic.stored_sizing import open_entry

            made = partial(open_entry, last, prepared.graph, prepared.files, prepared.notes)
            self._keep_entry(partial(made, is_mapped), prepared)

    @property
    def _is_storable(self) -> bool:
        """Whether later processes may run this program."""
        is_plain = self._tied is None and not self.states.types and not self.dropped
        return self._key is not None and self._stored is None and is_plain

    def _keep_entry(self, make: Callable[[], Entry | None], prepared: Prepared) -> None:
        assert self._key is not None
        self._closing.callback(self._key.keep(make, prepared.files).wait)

    def _serve(self, shared: SharedProgram, prepared: Prepared, mode: Mode) -> None:
        """Have runs find the program for their shapes."""
        from trireme.runtime.dynamic.program import OpenProgram
        from trireme.runtime.open_programs import WatchableRegions, open_shapes, step_of
        from trireme.runtime.shape_session import ShapeOptions

        how, asked = self.execution_options, replace(self.placement_options, pins={})
        asked = asked.without(self.dropped)
        open_region = WatchableRegions(
            self._kind,
            devices=list(prepared.devices.values()),
            mode=mode,
            contexts=self.contexts,
            measure=self._asked.measure,
            calibration=prepared.calibration,
            placement_options=replace(asked, quick=asked.quick or not self._asked.buckets),
            execution_options=replace(
                how, passes=(), passes_off=(), signature=None, optional_inputs=()
            ),
        )
        found: OpenProgram | StatefulProgram | None = shared.open_program
        if found is None:
            options = ShapeOptions(how, self.placement_options)
            found = open_shapes(options, prepared, mode, asked, self._asked.buckets, open_region)
            shared.closing.callback(found.close)
            shared.watch_regions = open_region.watch
        self._watch_regions = shared.watch_regions
        if isinstance(found, OpenProgram):
            shared.open_program = found
            found = found.beside()
            self._closing.callback(found.ahead.close)
        self._open, self._devices = found, prepared.devices
        self._step = step_of(self._open)

    def _schedule(self, prepared: Prepared, mode: Mode) -> None:
        """Have runs go through the dataflow form of the graph."""
        from trireme.runtime.open_programs import dataflow_program

        found = dataflow_program(prepared, self.execution_options, mode)
        self._open, self._watch_regions = found, found.watch
        self._devices = prepared.devices
        self._closing.callback(self._open.close)
