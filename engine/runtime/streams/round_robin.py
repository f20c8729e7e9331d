"""Whole runs of a stream dealt out to programs of one model, side by side.

Instances of one kind of device can each run the whole model: a stream then needs no stage to be as
long as another. Their programs are made here; `RoundRobin` gives them the items. Results are those
of a run on one instance, whichever it was: they are alike, so the bits are too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue

from trireme.backend.capabilities import QueuedCall, driver_queue_of
from trireme.backend.device import HOST, Device, DeviceSpec, Event
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.plan.flow import Flow, flow_of
from trireme.plan.plan import Plan, make_plan
from trireme.runtime.context import ExecutionContext
from trireme.runtime.execute import serial_runner
from trireme.runtime.failures import launch_error
from trireme.runtime.program import Program, compile_plan
from trireme.runtime.streams.pipeline import Item, Pipeline
from trireme.support.errors import PlacementError
from trireme.support.forks import register_at_fork
from trireme.support.units import time_text

_AHEAD = 2
"""Lanes a program: one runs while the next one's inputs are put in."""
_GAIN = 0.98
"""Of a pipeline's seconds a run: what dealing must be predicted to take at most to be chosen."""


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


class RoundRobinPlan:
    """How a stream would be dealt out to instances: a plan for each, and its flow.

    Errors: PlacementError, if there are no instances, or one cannot run the model alone
    """

    def __init__(
        self, graph: Graph, devices: Mapping[str, Device], calibration: Calibration | None
    ) -> None:
        names = interchangeable({name: device.spec for name, device in devices.items()})
        if not names:
            raise PlacementError("a stream can be dealt out to instances of one kind of device")
        if any(uses_state(node) for node in graph.nodes):
            raise PlacementError("runs that share states cannot be dealt out")
        self.devices = {name: devices[name] for name in names}
        self.plans: dict[str, Plan] = {}
        for name, device in self.devices.items():
            costs = CostModel({name: device}, calibration)
            self.plans[name] = make_plan(place(graph, costs, PLAIN))
        self.flow = dealt_flow(list(self.plans.values()), ", ".join(names))

    def flow_beside(self, pipeline: Flow) -> Flow | None:
        """Return the flow, saying what a pipeline would take; None where that is no slower."""
        if self.flow.steady_s > _GAIN * pipeline.steady_s:
            return None
        beside = f"; a pipeline would take {time_text(pipeline.steady_s)} a run"
        return replace(self.flow, why=self.flow.why + beside)

    def instead_of(self, pipeline: Pipeline) -> Pipeline | RoundRobin:
        """Return what deals a stream out, or the pipeline where that is no slower."""
        flow = self.flow_beside(pipeline.flow)
        if flow is None:
            return pipeline
        made = [compile_plan(plan, {n: self.devices[n]}) for n, plan in self.plans.items()]
        return RoundRobin(made, flow)


def dealt_flow(plans: Sequence[Plan], over: str) -> Flow:
    """Return how whole runs flow that are dealt out to plans which share nothing."""
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
        f"whole runs dealt out, {_AHEAD} for each of {over}",
    )


def dealt_or_none(
    graph: Graph, devices: Mapping[str, Device], calibration: Calibration | None
) -> RoundRobinPlan | None:
    """Return how a stream would be dealt out, None where it cannot be."""
    if not interchangeable({name: device.spec for name, device in devices.items()}):
        return None
    try:
        return RoundRobinPlan(graph, devices, calibration)
    except PlacementError:
        return None


def streamer(
    graph: Graph, program: Program, depth: int | None, deals: bool, calibration: Calibration | None
) -> Pipeline | RoundRobin:
    """Return what runs a stream: the program as a pipeline or, if it `deals` and where that is
    predicted to be faster, whole runs of the graph dealt out to instances of a device."""
    pipeline = Pipeline(program, depth)
    dealt = dealt_or_none(graph, program.devices, calibration) if deals and not depth else None
    return pipeline if dealt is None else dealt.instead_of(pipeline)


class RoundRobin:
    """Gives the items of a stream to programs in turn: launches those whose devices run calls by
    themselves, and keeps a thread for each where they do not.

    flow: their memory and predicted steady state, if the programs share nothing
    asked: the depth that was asked for, None as with a pipeline of the least depth
    """

    asked: int | None = None

    def __init__(self, programs: Sequence[Program], flow: Flow) -> None:
        self.flow, self.count = flow, len(programs)
        self.contexts = [ExecutionContext(program) for _ in range(_AHEAD) for program in programs]
        self._place = {id(context): place for place, context in enumerate(self.contexts)}
        self._waits = [[task.waits for task in program.plan.tasks] for program in programs]
        self._runs = [
            serial_runner(context.program.plan, context.calls) for context in self.contexts
        ]
        self._launches = all(
            driver_queue_of(call) for context in self.contexts for call in context.calls
        )
        self.reset_after_fork()
        register_at_fork(self)

    def reset_after_fork(self) -> None:
        """Start afresh: no thread, no item waiting for one."""
        self._events: dict[int, list[Event]] = {}
        self._queues: list[SimpleQueue[Item | None]] = [SimpleQueue() for _ in range(self.count)]
        self._threads: list[threading.Thread] = []
        self._done = threading.Condition()
        self._stopping = False

    def start(self) -> None:
        """Start the threads, where they are needed and not there."""
        if self._stopping:
            self.end()  # an interrupt kept the last from its end
        for number in range(len(self._threads), 0 if self._launches else self.count):
            thread = threading.Thread(
                target=self._serve, args=(number,), name=f"trireme-replica-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def submit(self, item: Item, before: Item | None) -> None:
        """Give an item to the program whose context it has."""
        place = self._place[id(item.context)]
        item.unfinished = 1
        if self._launches:
            self._events[item.number] = self._launched(item, place)
        else:
            self._queues[place % self.count].put(item)

    def wait(self, item: Item) -> None:
        """Return when an item is over."""
        if self._launches:
            for event in self._events.get(item.number, ()):
                try:
                    event.wait()
                except Exception as error:
                    item.error = item.error or error
            self._events.pop(item.number, None)
            return
        with self._done:
            while item.unfinished > 0:
                self._done.wait()

    def end(self) -> None:
        """Stop the threads; what runs is waited for, what is queued is not begun."""
        self._stopping = True
        for queue in self._queues[: len(self._threads)]:
            queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # a collector may run this anywhere
                thread.join()
        with self._done:
            self._done.notify_all()
        self.reset_after_fork()

    def _launched(self, item: Item, place: int) -> list[Event]:
        """Launch every call of a context behind those it waits for."""
        events: list[Event] = []
        calls: Sequence[QueuedCall] = self.contexts[place].calls  # type: ignore[assignment]
        try:
            for call, waits in zip(calls, self._waits[place % self.count], strict=True):
                events.append(call.launch(False, [events[index] for index in waits]))
        except Exception as error:
            plan = self.contexts[place].program.plan
            item.error = launch_error(plan, [len(events)], error)
        return events

    def _serve(self, number: int) -> None:
        while (item := self._queues[number].get()) is not None:
            try:
                if item.error is None and not self._stopping:
                    self._runs[self._place[id(item.context)]]()
            except BaseException as error:
                item.error = error
            with self._done:
                item.unfinished = 0
                self._done.notify_all()
