"""Several runs of one program in flight: model parallelism for throughput.

Run k + 1 is on a device while run k is on the next one. Each run in flight has a context. A step is
a task, and a queue is a device or a link between memories. The bits are those of one run after
another, states included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from trireme.ir.effects import States
from trireme.plan.flow import flow_of, state_waits
from trireme.plan.plan import Plan
from trireme.runtime.context import ExecutionContext
from trireme.runtime.dispatch import CHEAP_S
from trireme.runtime.execute import TaskListener
from trireme.runtime.failures import raise_named
from trireme.runtime.program import Program
from trireme.runtime.streams.dispatcher import Dispatcher, StreamContext, StreamStep


def pipeline(
    program: Program,
    depth: int | None = None,
    states: States | None = None,
    new_watch: Callable[[Plan], TaskListener] | None = None,
) -> Dispatcher:
    """Return what runs a program with `depth` runs in flight; None for the least that is enough.

    states: those of the session, which all runs share
    new_watch: makes what waits for the tasks of each run in flight; None for their own waits
    Errors: PlanError, if the contexts do not fit a device's memory
    """
    plan = program.plan
    flow = flow_of(plan, [task.estimate_s for task in plan.tasks], depth)
    queues = list(dict.fromkeys(task.device for task in plan.tasks))
    first = ExecutionContext(program, states=states)
    others = [ExecutionContext(program, first.scratch, states=states) for _ in range(1, flow.depth)]
    between = state_waits(plan)
    contexts = [
        StreamContext(one, _steps(one, queues, new_watch and new_watch(plan)), between)
        for one in (first, *others)
    ]
    return Dispatcher(flow, contexts, queues)


def _steps(
    context: ExecutionContext, queues: Sequence[str], watch: TaskListener | None
) -> list[StreamStep]:
    """Return a step for each task."""
    return [
        StreamStep(
            queues.index(task.device),
            task.waits,
            task.estimate_s < CHEAP_S,
            partial(_run, context, task.index, watch),
        )
        for task in context.program.plan.tasks
    ]


def _run(context: ExecutionContext, task: int, watch: TaskListener | None) -> None:
    """Run a task and wait for it."""
    try:
        if watch is None:
            context.calls[task].launch().wait()
        else:
            watch.begin((task,))
            watch.wait(context.calls[task].launch(), (task,))
            watch.end((task,))
    except Exception as error:
        raise_named(context.program.plan, [task], error)
