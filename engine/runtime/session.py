"""Open a model on devices: a Session takes inputs by name and gives outputs by name.

    with Session(graph, devices=["npu", "opencl", "cpu"]) as session:
        outputs = session.run({"input": x})

`prepare` goes from the model to the program, `ProgramSession` runs it. Where the model's shapes are
open, the programs of `dynamic` run it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trireme.runtime.contexts import checked_contexts
from trireme.runtime.io_binding import RunInContext
from trireme.runtime.load_log import LoadLog
from trireme.runtime.prepared_session import PreparedSession
from trireme.runtime.requests.front import MAX_QUEUE, TakesRequests
from trireme.runtime.session_arguments import SessionArguments
from trireme.runtime.shared_programs import PROGRAMS
from trireme.runtime.sibling_sessions import sibling
from trireme.runtime.stored import stored_key
from trireme.support.arguments import later_names

if TYPE_CHECKING:
    from trireme.backend.device import Device, Progress
    from trireme.cost.calibration import Calibration
    from trireme.ir.bind_shapes import Shapes
    from trireme.ir.graph import Value
    from trireme.model_file.cache import Model
    from trireme.placement.options import FixedPlacement, PlacementOptions
    from trireme.runtime.executors import Mode
    from trireme.runtime.options import ExecutionOptions
    from trireme.runtime.signatures import GraphChoice, SiblingSessions
    from trireme.runtime.states.rules import StateRules
    from trireme.support.dtypes import Array

__getattr__ = later_names(
    __name__,
    {
        "Array": "trireme.support.dtypes",
        "Calibration": "trireme.cost.calibration",
        "Device": "trireme.backend.device",
        "ExecutionOptions": "trireme.runtime.options",
        "FixedPlacement": "trireme.placement.options",
        "Mode": "trireme.runtime.executors",
        "Model": "trireme.model_file.cache",
        "PlacementOptions": "trireme.placement.options",
        "RunRequest": "trireme.runtime.requests.request",
        "Progress": "trireme.backend.device",
        "Shapes": "trireme.ir.bind_shapes",
        "StateRules": "trireme.runtime.states.rules",
    },
)

_PREPARED = frozenset(
    {
        "graph",
        "states",
        "unmeasured",
        "placement_options",
        "execution_options",
        "_calibration",
        "_open",
        "_program",
        "_context",
        "_calls",
        "_binding",
        "_runs",
    }
)
"""The attributes of a session that come from preparing its model."""


class Session(PreparedSession, TakesRequests):
    """A model ready to run on some devices.

    Where an earlier process left the program of the model's file, runs need nothing more
    (runtime/stored.py). The rest of a session is then prepared when it is first asked for.

    devices: names or open devices, all of which must open and compile; the placement decides who
        does what, and says why a device has nothing to do. "cpu#1", "cpu#2" are instances of cpu
        with cores of their own (docs/explanation/parallelism.md). When None those of a held
        lockfile, else cpu
    threads: worker threads of the cpu device, or of each instance; when None those of a held
        lockfile, else all its cores
    fallback: drop a device that gives an error before it runs (when it is opened, asked, given
        memory or code to compile), and say so in `dropped`; repeat a run that a device fails
        without it, and say so in `events` (docs/explanation/reliability.md)
    mode: "parallel" runs tasks as their waits allow, "serial" one by one, "auto" in the way that
        is faster (executors.py); the same bits
    contexts: how many calls run at once, each on memory of its own, which is made when a second
        call first comes; further ones wait in the order in which they come. When None as many as
        keep the cpu device busy, and 1 where calls cannot run at once (`contexts_why`)
    placement: a placement to hold instead of searching: a Placement, a Lock or its file
    measure: try the best placements and each device alone on this machine and keep the fastest;
        a second or two, and `placement.measured` tells (autotune.py)
    calibration: measured cost curves, or the file that holds them; this user's file when None
    shapes: shapes of inputs that the model leaves open. What stays open is bound by each run, which
        may have any shape within the bounds of a symbol: {"ids": (1, "seq<=512")}
    states: outputs that are inputs of the next run, so that the caller feeds and gets neither:
        {"past": "present"}, or {"past.*": "present.*"} for many (runtime/states/rules.py)
    buckets: sizes of symbols that feeds are padded to, for devices that take static shapes:
        {"seq": [64, 128, 512]}. A run takes the next larger ones, and its outputs are cut. An error
        where padding would reach a result (docs/how-to/open-shapes.md)
    batch: make the first axis of all inputs this, where it is 1 (placement/shards/batch.py);
        when None that of a held lockfile
    progress: told what loading is at: (what, done, total), total 0 where it is not known
    placement_options: what decides where nodes go: objective, pins, sharding
        (placement/options.py)
    execution_options: what is seldom set: the passes, the tasks, devices' own options (options.py)
    Errors: DeviceError, PlacementError, PlanError, CompileError, and convert's
    """

    def __init__(
        self,
        model: Model,
        *,
        devices: Sequence[str | Device] | None = None,
        threads: int | None = None,
        fallback: bool = False,
        mode: Mode = "auto",
        contexts: int | None = None,
        placement: FixedPlacement | None = None,
        measure: bool = False,
        calibration: Calibration | str | os.PathLike[str] | None = None,
        shapes: Shapes | None = None,
        states: StateRules | None = None,
        buckets: Mapping[str, Sequence[int]] | None = None,
        batch: int | None = None,
        progress: Progress | None = None,
        placement_options: PlacementOptions | None = None,
        execution_options: ExecutionOptions | None = None,
    ) -> None:
        asked = SessionArguments(
            model=model,
            devices=devices,
            threads=threads,
            fallback=fallback,
            mode=mode,
            contexts=contexts,
            placement=placement,
            measure=measure,
            calibration=calibration,
            shapes=shapes,
            states=states,
            buckets=buckets,
            batch=batch,
            progress=progress,
            placement_options=placement_options,
            execution_options=execution_options,
        )
        self._begin()
        self._tied, self._step, self._asked, self._shapes_to_store = None, None, asked, None
        self._behind = None
        log = LoadLog(asked)
        self._siblings: SiblingSessions | None = None
        self._optional: list[Value] | None = None
        self._key = stored_key(vars(asked))
        shared = self._key is not None and PROGRAMS.has(self._key.key)
        self._stored = None if self._key is None or shared else self._key.open()
        try:
            if self._stored is None or not self._stored.is_open:
                self._open = None
            if self._stored is None:
                self._prepare_model(asked)
            else:
                self._direct = None if self._stored.is_open else self._stored.run
                self._widen(self._stored.count(checked_contexts(contexts)))
                self._closing.callback(self._close_stored)
        except BaseException:
            self.close()
            raise
        log.end(self._stored is not None)

    @property
    def _kind(self) -> type[Session]:
        return FurtherSession

    def _context_beside(self) -> RunInContext:
        return super()._context_beside() if self._stored is None else self._stored.beside()

    @property
    def _max_queue(self) -> int:
        how = self._asked.execution_options
        return MAX_QUEUE if how is None else how.max_queue

    @contextmanager
    def _states_kept(self) -> Iterator[None]:
        """Put states back after the block."""
        if self._stored is not None or not self.states.types:
            yield
            return
        before = self.get_state()
        try:
            yield
        finally:
            self.set_state(before)

    def close(self) -> None:
        """Refuse requests that wait; give back threads, memory and devices opened here."""
        self._close_requests()
        super().close()

    if not TYPE_CHECKING:  # it would let any name pass

        def __getattr__(self, name: str) -> Any:
            """Prepare the model where a stored program runs, for what runs do not need."""
            if name in _PREPARED and vars(self).get("_stored") is not None:
                self._prepare_stored()
                return object.__getattribute__(self, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _prepare_stored(self, is_kept: bool = True) -> None:
        """See OpenSession."""
        from trireme.runtime.dynamic.program import OpenProgram

        with self._preparing:
            if self._stored is not None:
                self._stored.check_current()
                if self._behind is not None:
                    self._behind.wait()
                self._prepare_model(self._asked)
                if self._behind is not None:
                    self._behind.close()
                if self._stored.ran is not None and isinstance(self._open, OpenProgram):
                    self._open.note(self._stored.ran)
                if is_kept:
                    self._shapes_to_store = None
                self._stored.drop_others()
                if self._stored.is_open:
                    self._beside.clear()  # runs that are under way hold theirs
                self._stored = None
                self._direct = None if self._closed else self._direct

    def _close_stored(self) -> None:
        """Close the stored program; one that was replaced goes with its last run."""
        if self._stored is not None:
            self._stored.close()

    def _prepare_behind(self) -> None:
        """See OpenSession."""
        if self._behind is not None:
            return
        from trireme.runtime.background_prepare import BackgroundPreparation

        with self._preparing:
            if self._behind is None and not self._closed:
                self._behind = BackgroundPreparation(partial(_prepared, self._asked))
                self._closing.callback(self._behind.close)

    def reset_after_fork(self) -> None:
        """See ProgramSession."""
        super().reset_after_fork()
        self._preparing = threading.RLock()

    def _finish(self) -> None:
        if self._stored is None:  # the device of a stored program leaves nothing under way
            super()._finish()

    @property
    def inputs(self) -> list[Value]:
        """What to feed: each has .name, .type.shape, .type.dtype. States are not fed."""
        if self._stored is not None:
            return list(self._stored.inputs)
        return super().inputs if self._tied is None else self._tied.inputs

    @property
    def outputs(self) -> list[Value]:
        """What `run` returns, in the model's order. Outputs that are states are kept."""
        if self._stored is not None:
            return list(self._stored.outputs)
        return super().outputs if self._tied is None else self._tied.outputs

    @property
    def optional_inputs(self) -> list[Value]:
        """What a run may feed, and need not: the default of each is its data.

        Such are the inputs of an ONNX file that have an initializer, from IR version 4 on. They are
        constants in this session; a run that feeds some has a session of its own, which the first
        such run opens. `ExecutionOptions(optional_inputs=...)` makes them inputs of this one.
        """
        if self._optional is None:
            from trireme.model_file.convert import optional_inputs

            how = self._asked.execution_options
            fed = () if how is None else how.optional_inputs
            found = optional_inputs(self._asked.model)
            self._optional = [value for value in found if value.name not in fed]
        return list(self._optional)

    @property
    def is_stored(self) -> bool:
        """Whether the program of an earlier process runs, and nothing else is prepared yet."""
        return self._stored is not None

    @property
    def devices(self) -> Mapping[str, Device]:
        """The open devices, by name."""
        return super().devices if self._open is None else self._devices

    def _run_signature(
        self, signature: str, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        own = self._asked.execution_options
        if own is not None and signature == own.signature:
            return self.run(feeds, out)
        return self._run_sibling(signature, feeds, out)

    def _run_fed(
        self, unknown: tuple[str, ...], feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array] | None:
        known = {value.name for value in self.optional_inputs} if unknown else set()
        if not unknown or not known.issuperset(unknown):
            return None
        return self._run_sibling(tuple(sorted(unknown)), feeds, out)

    def _run_sibling(
        self, choice: GraphChoice, feeds: Mapping[str, Any], out: Mapping[str, Array] | None
    ) -> dict[str, Array]:
        """Return the outputs of another graph of the model."""
        from trireme.runtime.signatures import SiblingSessions

        self._check_open()
        with self._contexts.alone():
            if self._siblings is None:
                self._siblings = SiblingSessions(partial(sibling, Session, self._asked))
                self._closing.callback(self._siblings.close)
        return self._siblings.run(self, choice, feeds, out)

    def reset(self) -> None:
        """Give every state its initial value, those of other graphs of the model too.

        Errors: RunError, if a stream is under way
        """
        super().reset()
        if self._siblings is not None:
            self._siblings.reset()


def _prepared(asked: SessionArguments) -> Session:
    """Return a session of the same arguments whose model is prepared."""
    session = Session(**{**vars(asked), "progress": None})
    try:
        session._prepare_stored()
    except BaseException:
        session.close()
        raise
    return session


class FurtherSession(Session):
    """A session that another one opens: to measure, for a region, or without a device.

    The session that opens it notes what there is to say.
    """

    _tells_references = False
