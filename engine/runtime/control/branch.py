"""What runs an `if`: both branches are bound to its operands and outputs, and one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from trireme.backend.device import Buffer, host_alloc
from trireme.runtime.context import ExecutionContext
from trireme.runtime.control.operands import ControlOperands
from trireme.runtime.control.tally import LazyBodySpans, Tally, watch
from trireme.runtime.control.watched import watch_calls
from trireme.runtime.execute import serial_order, serial_runner
from trireme.runtime.program import Program

if TYPE_CHECKING:
    from trireme.runtime.failover.task_watch import TaskWatch


class BranchDriver:
    """An `if` on its memory. An output that nobody reads has memory of its own."""

    kernel = "if, driven by the host"

    def __init__(self, operands: ControlOperands, branches: Sequence[Program]) -> None:
        self._condition = operands.array(0).reshape(-1)
        captures = [operands.buffer(k) for k in range(1, len(operands.inputs))]
        self.contexts = [_bound(one, captures, operands.outputs) for one in branches]
        self._orders = [serial_order(one.program.plan, one.calls) for one in self.contexts]
        self._watches: Sequence[TaskWatch | None] = [None] * len(self.contexts)
        self._then, self._else = (
            serial_runner(one.program.plan, one.calls) for one in self.contexts
        )

    def watch_bodies(self, run: TaskWatch) -> None:
        """See CallWithBodies."""
        self._watches = [run.of_body(one.program.plan) for one in self.contexts]
        self._then, self._else = (
            serial_runner(one.program.plan, one.calls, watch)
            for one, watch in zip(self.contexts, self._watches, strict=True)
        )
        for one in self.contexts:
            watch_calls(one.calls, run)

    def profiled(self) -> LazyBodySpans:
        """Run; return what tells how long the kernels of the branch took."""
        taken = 0 if self._condition[0] else 1
        context = self.contexts[taken]
        plan = context.program.plan
        tally = Tally(plan, ("then_branch", "else_branch")[taken])
        tally.add(watch(context, self._orders[taken], self._watches[taken]))
        return partial(tally.spans, 1)

    def run(self) -> None:
        """Run the branch that the condition takes."""
        if self._condition[0]:
            self._then()
        else:
            self._else()


def _bound(
    program: Program, captures: Sequence[Buffer], outputs: Sequence[Buffer]
) -> ExecutionContext:
    graph = program.plan.graph
    places = dict(zip(graph.inputs, captures, strict=True))
    unread = graph.outputs[len(outputs) :]
    places |= dict(zip(graph.outputs, outputs, strict=False))
    places |= {value: host_alloc(max(graph.type(value).nbytes, 1)) for value in unread}
    return ExecutionContext(program, places=places)
