"""Runs of a model whose shapes are open, or whose schedule is dynamic, and what ran.

Each run finds the program for its shapes. With fixed shapes all is as in a ProgramSession.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.program_session import ProgramSession
from trireme.runtime.shape_session import priced
from trireme.support.arguments import checked, later_names
from trireme.support.errors import RunError

if TYPE_CHECKING:
    from threading import RLock

    from trireme.placement.placement import Placement
    from trireme.profiling.staged import StagedProfile
    from trireme.runtime.background_prepare import BackgroundPreparation
    from trireme.runtime.dataflow.executor import PrimitiveSpan
    from trireme.runtime.dataflow.program import DataflowProgram
    from trireme.runtime.dynamic.ahead import PreparedShapes
    from trireme.runtime.dynamic.program import OpenProgram
    from trireme.runtime.dynamic.reports import StageReport
    from trireme.runtime.dynamic.resizable import ShapeRun
    from trireme.runtime.requests.bound_run import MovingIO
    from trireme.runtime.states.held import TiedStates
    from trireme.runtime.states.program import StatefulProgram, Step
    from trireme.runtime.stored_program import StoredProgram
    from trireme.runtime.streams.open_stream import OpenStream
    from trireme.runtime.streams.stream import Stream
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "PreparedShapes": "trireme.runtime.dynamic.ahead",
        "Placement": "trireme.placement.placement",
        "StagedProfile": "trireme.profiling.staged",
        "OpenStream": "trireme.runtime.streams.open_stream",
        "Stream": "trireme.runtime.streams.stream",
    },
)


class OpenSession(ProgramSession):
    """A session whose shapes may be open."""

    _open: OpenProgram | DataflowProgram | StatefulProgram | None
    _tied: TiedStates | None
    _step: Step | None
    _stored: StoredProgram | None
    _preparing: RLock
    _behind: BackgroundPreparation | None
    _shapes_to_store: Callable[[ShapeRun], None] | None
    _watch_regions: Callable[[], None] | None = None
    _regions_are_watched = False

    def _prepare_stored(self, is_kept: bool = True) -> None:
        """Go from the model to its program, which then runs instead of the stored one.

        is_kept: whether the stored one stays for later processes, or that of the next run is stored
        """
        raise NotImplementedError

    def _prepare_behind(self) -> None:
        """Begin to prepare the model behind the runs of the stored program, if none did."""
        raise NotImplementedError

    def watch_tasks(self) -> None:
        """See SessionFaults. Of a model of open shapes the sessions of its regions are watched."""
        if self._watch_regions is None:
            super().watch_tasks()
        else:
            self._watch_regions()
            self._regions_are_watched = True

    @property
    def has_open_shapes(self) -> bool:
        """Whether runs may have different shapes, or a shape depends on values."""
        from trireme.runtime.dynamic.program import OpenProgram

        return isinstance(self._open, OpenProgram)

    @property
    def stages(self) -> tuple[StageReport, ...]:
        """With open shapes, the stages of the last run: what ran where, and what the host ran.

        One stage where all shapes follow from the inputs' shapes; none with fixed shapes.
        """
        return () if self._open is None else tuple(self._open.stages)

    def region_placements(self) -> tuple[Placement, ...]:
        """Return, with open shapes, the placement of each region of the last run, in order.

        Estimates are those of the run's sizes. Nodes that the host runs (`stages` has them) have no
        placement. With fixed shapes the only one is `placement`.
        """
        from trireme.runtime.dynamic.program import OpenProgram

        if self._open is None:
            return (self.placement,)
        return tuple(self._open.placements()) if isinstance(self._open, OpenProgram) else ()

    @checked(RunError)
    def profile_stages(
        self, feeds: Mapping[str, Any], runs: int = 20, warmup: int = 2
    ) -> StagedProfile:
        """Return what the stages of `runs` runs took, after `warmup` runs that are not counted.

        It is for models of open shapes that no one program runs (`stages` has several, or steps of
        the host): each region stands beside its prediction, and steps of the host are measured.
        Errors: as `run`; RunError, if shapes are fixed or the schedule is dynamic
        """
        from trireme.profiling.staged import profile_of_stages
        from trireme.runtime.dynamic.program import OpenProgram

        served = self._open
        if not isinstance(served, OpenProgram):
            raise RunError("the session has no stages", fix="use profile instead")
        if runs < 1 or warmup < 0:
            raise RunError(f"a profile needs at least one run, not {runs} after {warmup}")
        given = self._with_states(feeds)
        with self._alone():
            for _ in range(warmup):
                served.watched(given)
            seen = [served.watched(given) for _ in range(runs)]
            last = seen[-1]
            predicted = [
                None if one is None else priced(one).placement.makespan_s for one in last.regions
            ]
            times = [one.times for one in seen]
            walls = [one.wall_s for one in seen]
            made = profile_of_stages(self.graph.name, walls, last, predicted, times)
            return replace(made, events=self.events)

    @checked(RunError)
    def prepare(
        self, shapes: Sequence[Mapping[str, Sequence[int]]], wait: bool = False
    ) -> tuple[PreparedShapes, ...]:
        """Have the programs for shapes made in the background, while runs go on.

        It pays where a program is compiled for each set of shapes (`stages` says so), or for each
        bucket: the first run then finds it. The bits are the same. A run that needs a program
        under way waits for it. `prepared` says what became of them; `close` waits for the one under
        way.

        shapes: of all inputs by name, for each program; wait: return when all are made
        Errors: RunError, if an input is missing or unknown, shapes do not fit or there are more
        than `most_shapes`; or if the session has one program
        """
        from trireme.runtime.dynamic.program import OpenProgram

        served = self._open
        if not isinstance(served, OpenProgram):
            raise RunError("nothing is to be prepared: one program serves the session")
        with self._alone():
            served.prepare(shapes)
        if wait:
            served.ahead.wait()
        return self.prepared

    @property
    def prepared(self) -> tuple[PreparedShapes, ...]:
        """What became of the shapes that were to be prepared."""
        from trireme.runtime.dynamic.program import OpenProgram

        return tuple(self._open.ahead.reports) if isinstance(self._open, OpenProgram) else ()

    @checked(RunError)
    def at(self, feeds: Mapping[str, Any]) -> ProgramSession:
        """Return the session that serves the shapes of these feeds: this one where they are fixed.

        With open shapes it is the one that `run` uses for them, opened when there is none. It has a
        placement, a plan and a profile of its own, and closes when other shapes take its place.
        Errors: as `run`; RunError, if shapes depend on values, so that no one program runs them all
        """
        return self._served(feeds)[0]

    def _served(
        self, feeds: Mapping[str, Any]
    ) -> tuple[
        ProgramSession, Mapping[str, Any], Callable[[Mapping[str, Array]], dict[str, Array]]
    ]:
        if self._open is None:
            return super()._served(feeds)
        with self._alone():
            served = self._open.whole(self._with_states(feeds))

        def finished(results: Mapping[str, Array]) -> dict[str, Array]:
            return self._after(served.cut(results))

        return priced(served.region), served.feeds, finished

    def _moving(self, feeds: Mapping[str, Array]) -> MovingIO:
        """Return what runs of feeds read and write where it is."""
        from trireme.runtime.io_binding import IN_PLACE_BYTES
        from trireme.runtime.requests.bound_run import MovingIO

        if self._open is None:
            return MovingIO(self.moves, IN_PLACE_BYTES)
        from trireme.runtime.dynamic.moving import moving_in

        found = None
        if self._tied is None:
            with self._alone():
                found = moving_in(self._open, feeds)
        return found or MovingIO([False] * len([*self.inputs, *self.outputs]), 0)

    def _in_place(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> Callable[[], bool] | None:
        """See TakesRequests."""
        if self._open is not None or self._failover is not None:
            return None
        from trireme.runtime.bound_context import run_on_arrays

        with self._alone():
            run = run_on_arrays(self._context, inputs, outputs)
        return None if run is None else partial(self._run_on_arrays, self._context, run)

    def _with_states(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a program for the shapes of the feeds is fed: states beside the feeds."""
        return feeds if self._tied is None else self._tied.feeds(feeds)

    def _after(self, results: dict[str, Array]) -> dict[str, Array]:
        """Keep those results of such a program that are states, and return the others."""
        if self._tied is None:
            return results
        with self._contexts.alone():
            return self._tied.keep(results)

    @checked(RunError)
    def stream(
        self, feeds: Iterable[Mapping[str, Any]], depth: int | None = None
    ) -> Stream | OpenStream:
        """Return an iterator over the outputs of many runs, as of one shape.

        With open shapes each item may have shapes of its own. Then one run is in flight; overlap on
        several devices needs one shape: `session.at(feeds).stream(...)`.
        Errors: as there; RunError, if shapes are open and `depth` is above 1
        """
        if self._open is None:
            return super().stream(feeds, depth)
        if depth not in (None, 1):
            raise RunError(
                f"a stream of open shapes has one run in flight, not {depth}",
                fix="session.at(feeds).stream(...), for feeds of one shape",
            )
        from trireme.runtime.streams.stream import Streams

        with self._contexts.alone():
            self._check_open()
            if self._streams is None:
                self._streams = Streams("this session")
            return self._streams.begin_open(self.run, feeds)

    def _run(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        if self._tied is None:
            return self._run_program(feeds, out)
        if out is None and self._step is not None and not self._closed:
            made = self._step(feeds)
            if made is not None:
                return made
        out, asked = self._tied.outputs_asked(out)
        return self._tied.keep(self._run_program(self._tied.feeds(feeds), out), asked)

    def _run_beside(
        self, number: int, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        stored = self._stored
        if stored is not None and stored.is_open:
            if stored.takes(feeds):
                return super()._run_beside(number, feeds, out)
            self._prepare_stored()
        if self._open is None:
            return super()._run_beside(number, feeds, out)
        return self._run(feeds, out)  # instances find memory for each of its callers

    def _run_program(
        self, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        stored = self._stored
        if stored is not None and stored.is_open:
            self._check_open()
            serving = self._stored_at(stored, feeds) if out is None else None
            if serving is not None:
                before, stored.ran = stored.ran, serving.shapes
                results = serving.run(feeds)
                if before not in (None, serving.shapes):
                    self._prepare_behind()  # more shapes will come, and it may not serve them
                return results
            self._prepare_stored(is_kept=out is not None or self._behind is not None)
        if self._open is None:
            return super()._run(feeds, out)
        self._begin_run()
        results = self._run_regions(self._open, feeds, out)
        if self._shapes_to_store is not None:
            self._store_shapes()
        return results

    def _stored_at(self, stored: StoredProgram, feeds: Mapping[str, Any]) -> StoredProgram | None:
        """Return what runs feeds, as long as the prepared model has not taken over."""
        behind = self._behind
        if behind is not None and behind.is_ready and not stored.takes(feeds):
            return None
        return stored.at(feeds)

    def _run_regions(
        self,
        program: OpenProgram | DataflowProgram | StatefulProgram,
        feeds: Mapping[str, Any],
        out: Mapping[str, Array] | None,
    ) -> dict[str, Array]:
        if not self._regions_are_watched:
            return program.run(feeds, out)
        from trireme.runtime.failover.turns import holding_turn

        with holding_turn(self):
            return program.run(feeds, out)

    def _run_again(
        self, error: BaseException, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        if self._tied is None or not self._tied.are_variables:
            return super()._run_again(error, feeds, out)
        out, asked = self._tied.outputs_asked(out)  # the other plans have variables, not outputs
        results = super()._run_again(error, feeds, out)
        return None if results is None else self._tied.keep(results, asked)

    def _choose_direct(self) -> None:
        """See SessionFaults; states that grow in place are stepped on where nothing is watched."""
        from trireme.runtime.open_programs import step_of

        if self._open is None:
            super()._choose_direct()
        else:
            self._is_watched = self._has_to_watch()
            self._step = None if self._is_watched else step_of(self._open)

    def _store_shapes(self) -> None:
        """Store the program at the shapes of the run that is just over, for later processes."""
        from trireme.runtime.dynamic.program import OpenProgram
        from trireme.runtime.dynamic.resizable import ShapeRun

        with self._preparing:
            store, self._shapes_to_store = self._shapes_to_store, None
        last = self._open.last if isinstance(self._open, OpenProgram) else None
        if store is not None and last is not None and isinstance(last.region, ShapeRun):
            store(last.region)

    @property
    def spans(self) -> Sequence[PrimitiveSpan]:
        """With a dynamic schedule, when each op of the last run ran, in which frames and turns."""
        from trireme.runtime.dataflow.program import DataflowProgram

        return self._open.spans if isinstance(self._open, DataflowProgram) else ()

    @property
    def _latest(self) -> ProgramSession:
        if self._open is None:
            return self
        from trireme.ir.bind_shapes import shape_advice

        last = self._open.last
        if last is None and len(self._open.stages) > 1:
            raise RunError(
                f"the last run went through {len(self._open.stages)} regions, each with a program",
                fix="session.at(feeds) has one program for the shapes of some feeds",
            )
        if (last is None or last.region is None) and self._open.stages:
            raise RunError(
                f"the last run had no program: {self._open.stages[0].ran_by}",
                fix="session.stages says what ran, session.profile_stages(feeds) what it took",
            )
        if last is None or last.region is None:
            raise RunError(
                "no program has run: the shapes are open",
                fix=shape_advice(self.inputs) or "run the session first",
            )
        return priced(last.region)
