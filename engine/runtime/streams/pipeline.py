"""Several runs of one program in flight: model parallelism for throughput.

Run k + 1 is on a device while run k is on the next one. Each run in flight has a context. A step is
a task, and a queue is a device or a link between memories. The bits are those of one run after
another, states included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.ir.effects import States
from trireme.plan.flow import flow_of, state_waits
from trireme.plan.plan import Plan
from trireme.runtime.context import ExecutionContext
from trireme.runtime.dispatch import CHEAP_S
from trireme.runtime.execute import noted, task_runner
from trireme.runtime.failover.task_watch import TaskWatch
from trireme.runtime.program import Program
from trireme.runtime.streams.dispatcher import Dispatcher, StreamContext, StreamStep


def pipeline(
    program: Program,
    depth: int | None = None,
    states: States | None = None,
    new_watch: Callable[[Plan], TaskWatch] | None = None,
) -> Dispatcher:
    """Return what runs a program with `depth` runs in flight; None for the least that is enough.

    states: those of the session, which all runs share
    new_watch: makes what gives up tasks of each run in flight that hang; None for nothing
    Errors: PlanError, if the contexts do not fit a device's memory
    """
    plan = program.plan
    flow = flow_of(plan, [task.estimate_s for task in plan.tasks], depth)
    queues = list(dict.fromkeys(task.device for task in plan.tasks))
    first = ExecutionContext(program, states=states)
    others = [ExecutionContext(program, first.scratch, states=states) for _ in range(1, flow.depth)]
    between = state_waits(plan)
    contexts = []
    for one in (first, *others):
        watch = None if new_watch is None else new_watch(plan)
        contexts.append(StreamContext(one, _steps(one, queues, watch), between, watch=watch))
    return Dispatcher(flow, contexts, queues)


def _steps(
    context: ExecutionContext, queues: Sequence[str], watch: TaskWatch | None
) -> list[StreamStep]:
    """Return a step for each task."""
    return [
        StreamStep(
            queues.index(task.device),
            task.waits,
            task.estimate_s < CHEAP_S,
            _step(context, task.index, watch),
        )
        for task in context.program.plan.tasks
    ]


def _step(context: ExecutionContext, task: int, watch: TaskWatch | None) -> Callable[[], None]:
    run = task_runner(context.program.plan, context.calls, task, watch)
    return run if watch is None else noted(run, (task,), watch)
