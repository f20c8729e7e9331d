"""Streams of a program: a pipeline, or whole runs on programs of one model in turn, side by side.

Instances of one kind of device can each run the whole model: a stream then needs no stage to be as
long as another. The instances are alike, so the bits are those of a run on any one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trireme.backend.capabilities import driver_queue_of
from trireme.backend.device import HOST, Device, DeviceSpec, Event
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.effects import States, uses_state
from trireme.ir.graph import Graph
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.plan.flow import Flow, flow_of, state_waits
from trireme.plan.plan import Plan, make_plan
from trireme.runtime.control.compile import compile_plan
from trireme.runtime.loop.dispatch import CHEAP_S
from trireme.runtime.loop.execute import launch_behind, noted, serial_runner, task_runner
from trireme.runtime.loop.task_watch import TaskWatch
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.failures import raise_named
from trireme.runtime.program.program import Program
from trireme.runtime.streams.dispatcher import Dispatcher, StreamContext, StreamStep
from trireme.support.errors import PlacementError
from trireme.support.units import time_text

_AHEAD = 2
"""Contexts of a program: one runs while the next one's inputs are put in."""
_GAIN = 0.98
"""Round robin is chosen if a run is predicted to take at most this share of a pipeline's time."""


def interchangeable(specs: Mapping[str, DeviceSpec]) -> list[str]:
    """Return the most devices that are instances of one kind, told apart by nothing but silicon.

    What no instance is stays out of it; so does one with a memory of its own, whose copies the
    instances would wait for.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, spec in specs.items():
        if spec.kind != name and spec.memory == HOST:
            groups.setdefault((spec.kind, spec.description), []).append(name)
    found = max(groups.values(), key=len, default=[])
    return found if len(found) > 1 else []


@dataclass(frozen=True)
class RoundRobinPlan:
    """How instances would take whole runs in turn: a plan for each, by name, and their flow."""

    plans: Mapping[str, Plan]
    flow: Flow

    def flow_beside(self, pipeline: Flow) -> Flow | None:
        """Return the flow, saying what a pipeline would take; None where that is no slower."""
        if self.flow.steady_s > _GAIN * pipeline.steady_s:
            return None
        beside = f"; a pipeline would take {time_text(pipeline.steady_s)} a run"
        return replace(self.flow, why=self.flow.why + beside)


def plan_round_robin(
    graph: Graph, devices: Mapping[str, Device], calibration: Calibration | None
) -> RoundRobinPlan | None:
    """Return how instances of a device would take the runs of a stream in turn.

    None where there are no instances, runs share states, or one instance cannot run the model alone
    """
    names = interchangeable({name: device.spec for name, device in devices.items()})
    if not names or any(uses_state(node) for node in graph.nodes):
        return None
    try:
        plans = {
            name: make_plan(place(graph, CostModel({name: devices[name]}, calibration), PLAIN))
            for name in names
        }
    except PlacementError:
        return None
    return RoundRobinPlan(plans, round_robin_flow(list(plans.values()), ", ".join(names)))


def round_robin_flow(plans: Sequence[Plan], over: str) -> Flow:
    """Return the flow of a stream whose runs are executed by plans in turn; they share nothing."""
    flows = [flow_of(plan, [task.estimate_s for task in plan.tasks], 1) for plan in plans]
    first, depth = flows[0], _AHEAD * len(plans)
    arenas: dict[str, int] = {}
    for flow in flows:
        for memory, nbytes in flow.arena_bytes.items():
            arenas[memory] = arenas.get(memory, 0) + _AHEAD * nbytes
    return Flow(
        depth,
        max(flow.alone_s for flow in flows) / len(plans),
        first.alone_s,
        first.busiest,
        first.busy_s / len(plans),
        arenas,
        f"whole runs in turn, {_AHEAD} for each of {over}",
    )


def pipeline(
    program: Program,
    depth: int | None = None,
    states: States | None = None,
    new_watch: Callable[[Plan], TaskWatch] | None = None,
) -> Dispatcher:
    """Return what runs a program with `depth` runs in flight; None for the least that is enough.

    Run k + 1 is on a device while run k is on the next one. A step is a task, and a queue is a
    device or a link between memories. The bits are those of one run after another, states included.
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


def pipeline_or_round_robin(
    graph: Graph,
    program: Program,
    calibration: Calibration,
    depth: int | None,
    states: States | None = None,
    new_watch: Callable[[Plan], TaskWatch] | None = None,
) -> Dispatcher:
    """Return a pipeline of a program, or instances of a device that take whole runs in turn.

    The instances are taken where they are predicted to be faster. A depth is a pipeline's.
    new_watch: see `pipeline`
    """
    found, devices = pipeline(program, depth, states, new_watch), program.devices
    planned = plan_round_robin(graph, devices, calibration) if depth is None else None
    flow = planned.flow_beside(found.flow) if planned is not None else None
    if planned is None or flow is None:
        return found
    return round_robin(
        [compile_plan(plan, {name: devices[name]}) for name, plan in planned.plans.items()],
        flow,
        new_watch,
    )


def round_robin(
    programs: Sequence[Program],
    flow: Flow,
    new_watch: Callable[[Plan], TaskWatch] | None = None,
) -> Dispatcher:
    """Return what gives whole runs to programs in turn.

    Where all devices queue launches by themselves, a run is launched whole; else every program has
    a thread. Runs that are watched have threads, because a launch that hangs holds its own.
    flow: memory and predicted steady state, if the programs share nothing
    new_watch: see `pipeline`
    """
    made = [ExecutionContext(program) for _ in range(_AHEAD) for program in programs]
    if new_watch is None and all(driver_queue_of(call) for one in made for call in one.calls):
        return Dispatcher(
            flow, [StreamContext(one, launch=partial(_launch, one)) for one in made], ()
        )
    contexts = []
    for number, one in enumerate(made):
        plan = one.program.plan
        watch = None if new_watch is None else new_watch(plan)
        run = serial_runner(plan, one.calls, watch)
        steps = [StreamStep(number % len(programs), (), False, run)]
        contexts.append(StreamContext(one, steps, watch=watch))
    return Dispatcher(flow, contexts, [f"replica-{number}" for number in range(len(programs))])


def _launch(context: ExecutionContext, events: list[Event]) -> None:
    """Launch every task of a context behind those it waits for."""
    plan = context.program.plan
    try:
        launch_behind(plan, context.calls, events)
    except Exception as error:
        raise_named(plan, [len(events)], error)
