"""Parts of a bound region: native steps in a row as one call of the pool, and steps of numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from trireme.backend.device import LazySpans, NodeSpan
from trireme.devices.cpu.compile.region import REFERENCE
from trireme.devices.cpu.kernels.lowering import Step
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.devices.cpu.runtime.server import Stamped
from trireme.devices.cpu.runtime.step_rows import call_flags, step_rows
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

_TRIALS = 32
"""Runs after which a call knows which way is faster (runtime/teams.py)."""


class NativeSteps:
    """Native steps that run one after another: one call of the pool.

    pointers: addresses of each step's operands; owners: the value in whose memory each is, and how
        far from its beginning, or None; alive: what owns the memory at these addresses
    """

    def __init__(
        self,
        pool: StepPool,
        steps: Sequence[tuple[Step, int]],
        pointers: Sequence[Sequence[int]],
        owners: Sequence[tuple[int, int] | None],
        alive: object,
    ) -> None:
        self.pointers = np.array([p for row in pointers for p in row] or [0], np.int64)
        self._owners = owners
        rows = step_rows([step for step, _ in steps])
        self._steps = [row.step for row in rows]
        table = np.zeros((len(rows), runtime.STEP_WORDS), np.int64)
        if rows:  # a shape without elements has none
            table[:, :5] = [(steps[row.number][1], *row.words) for row in rows]
        table[:, runtime.STEP_ARGS] += self.pointers.ctypes.data
        self._flags = call_flags(rows)
        self._stamps = np.zeros((len(rows), 2), np.int64)
        self._alive = (self.pointers, alive)
        self.call, self._stamping = self._call(table, None), self._call(table, self._stamps)
        self.run, self._stamped = pool.bind(self.call), pool.bind(self._stamping)

    def _call(self, table: Array, stamps: Array | None) -> PoolCall:
        return PoolCall(table, **self._flags, stamps=stamps, alive=self._alive)

    def uses(self, value: int) -> list[tuple[int, int]]:
        """Return which of the pointers are into a value's memory, and how far into it."""
        owners = enumerate(self._owners)
        return [(k, owner[1]) for k, owner in owners if owner is not None and owner[0] == value]

    def slots(self, value: int) -> list[tuple[int, int]]:
        """Return the addresses of the pointers into a value's memory, and how far into it."""
        table = self.pointers.ctypes.data
        return [(table + 8 * k, offset) for k, offset in self.uses(value)]

    def call_of(self, profile: bool) -> PoolCall:
        """Return the call, or the one that notes when its steps ran."""
        if profile:
            self.stamped()
        return self._stamping if profile else self.call

    def use_single_thread(self, alone: bool | None) -> bool:
        """See `Bound.use_single_thread`."""
        calls = [call for call in (self.call, self._stamping) if call.words[runtime.CALL_TRIES]]
        for call in calls:
            call.words[runtime.CALL_RUNS] = 0 if alone is None else -1
            call.words[[runtime.CALL_WITH, runtime.CALL_ALONE]] = bool(alone), not alone
        return bool(calls)

    def set_idle(self, sleeps: bool) -> None:
        """See `Bound.set_idle`."""
        for call in (self.call, self._stamping):
            call.words[runtime.CALL_PARKS] = sleeps

    def profile(self) -> LazySpans:
        """Run, in the way that runs without stamps found faster; tell when each step ran."""
        self.stamped()
        self._stamped()
        return self.node_spans()

    def stamped(self) -> Stamped:
        """Return the call that writes stamps, in the way that runs without them found faster, and
        what takes its stamps when it has run.
        """
        plain, stamped = self.call.words, self._stamping.words
        if not 0 <= plain[runtime.CALL_RUNS] < _TRIALS:
            learnt = [runtime.CALL_WITH, runtime.CALL_ALONE]
            stamped[runtime.CALL_RUNS], stamped[learnt] = -1, plain[learnt]
        return self._stamping.pointer, self.node_spans

    def node_spans(self) -> LazySpans:
        """Return what tells when each step of the last run with stamps ran."""
        stamps = self._stamps.copy()  # the next run writes them anew
        return lambda: [
            NodeSpan(step.nodes, step.code.name, start_ns * 1e-9, end_ns * 1e-9)
            for step, (start_ns, end_ns) in zip(self._steps, stamps.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class NumpyStep:
    """A node that numpy runs."""

    node: int
    run: Callable[[], None]

    def profile(self) -> LazySpans:
        """Run, and return what tells when it ran."""
        start = perf_counter()
        self.run()
        span = NodeSpan((self.node,), REFERENCE, start, perf_counter())
        return lambda: [span]
