"""Seconds of a body's kernels over the turns of a launch, for a profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from trireme.backend.device import BodySpan, Event, NodeSpan, held_s
from trireme.plan.plan import Plan, Task
from trireme.runtime.context import ExecutionContext
from trireme.runtime.execute import TaskListener
from trireme.support.records import dataclass

WATCHED_TURNS = 8
"""Turns of a launch that are watched; what they took stands for the others."""
LazyBodySpans = Callable[[], tuple[BodySpan, ...]]
"""Returns the spans of bodies, computed on the call."""
WatchedTurn = Sequence[tuple[int, float, float, Event]]
"""The tasks of a turn in their order: number, start and end in seconds, and event."""


def watch(
    context: ExecutionContext, order: Sequence[int], listener: TaskListener | None = None
) -> WatchedTurn:
    """Run the tasks of a body once, in an order that respects the waits; note when each ran.

    listener: is told when tasks begin and end
    """
    turn = []
    for index in order:
        start = time.perf_counter()
        if listener is None:
            event = context.calls[index].launch(True)
            event.wait()
        else:
            listener.begin((index,))
            event = context.calls[index].launch(True)
            listener.wait(event, (index,))
            listener.end((index,))
        turn.append((index, start, time.perf_counter(), event))
    return turn


@dataclass(frozen=True)
class Key:
    """One kernel of a body: its task and its place in it, or a kernel of a body inside."""

    task: int
    position: int
    inner: tuple[str, ...] = ()


class Tally:
    """Adds up the spans of the watched turns of one body."""

    def __init__(self, plan: Plan, name: str) -> None:
        self._plan, self._name = plan, name
        self._rows: dict[Key, BodySpan] = {}
        self._turns: list[WatchedTurn] = []

    def add(self, turn: WatchedTurn) -> None:
        """Add one turn; its spans are read later, so that the next turn does not wait."""
        self._turns.append(turn)

    def _read(self, turn: WatchedTurn) -> None:
        for index, start_s, end_s, event in turn:
            task = self._plan.tasks[index]
            if task.is_copy:
                label = f"copy {self._plan.graph.values[task.inputs[0]].first_name}"
                self._count(Key(index, 0), self._row(task, label, "copy", end_s - start_s))
            else:
                self._read_nodes(task, event.spans())

    def _read_nodes(self, task: Task, spans: Sequence[NodeSpan]) -> None:
        for position, (span, took) in enumerate(zip(spans, held_s(spans), strict=True)):
            nodes = [self._plan.graph.node(node) for node in span.nodes]
            label = "+".join(node.op for node in nodes) or task.nodes[0].op
            label += f" ({nodes[0].source})" if nodes else ""
            choices = self._plan.placement.choices
            known = [choices[node.id] for node in nodes if node.id in choices]
            estimate_s = sum(one.estimates[task.device].seconds for one in known)
            row = self._row(task, label, span.kernel, took, estimate_s)
            self._count(Key(task.index, position), replace(row, clock=span.clock))
            for inner in span.bodies:
                path = (self._name, nodes[0].label if nodes else "", *inner.path)
                key = Key(task.index, position, (*inner.path, inner.label))
                self._count(key, replace(inner, path=path))

    def spans(self, turns: int) -> tuple[BodySpan, ...]:
        """Return the rows for so many turns, of which the watched ones are a sample."""
        for turn in self._turns:
            self._read(turn)
        scale = turns / len(self._turns) if self._turns else 0.0
        return tuple(
            replace(
                row,
                turns=round(row.turns * scale),
                seconds=row.seconds * scale,
                estimate_s=row.estimate_s * scale,
            )
            for row in self._rows.values()
        )

    def _row(
        self, task: Task, label: str, kernel: str, took: float, estimate_s: float = 0.0
    ) -> BodySpan:
        return BodySpan((self._name,), label, task.device, kernel, "wall", 1, took, estimate_s)

    def _count(self, key: Key, row: BodySpan) -> None:
        old = self._rows.get(key)
        if old is not None:
            row = replace(
                row,
                turns=old.turns + row.turns,
                seconds=old.seconds + row.seconds,
                estimate_s=old.estimate_s + row.estimate_s,
            )
        self._rows[key] = row
