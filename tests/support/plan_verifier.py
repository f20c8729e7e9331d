"""Prove a plan: an independent check of any plan, whatever algorithm made it.

For every pair of tasks that touch a common byte, at least one writing, the waits must order the two
as the values need. The check finds the order of effects anew from the ops. Data and the waits for
effects alone must keep that order, because shared memory may change. The check shares no code with
`plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trireme.ir.graph import Node
from trireme.ir.op import get_op
from trireme.plan.plan import Plan
from trireme.support.errors import PlanError


def check_plan(plan: Plan) -> None:
    """Raise PlanError, naming tasks and values, if an order that the waits allow can go wrong."""
    before = _closure(plan)
    _check_nodes(plan, before)
    _check_effects(plan)
    _check_bytes(plan, before)
    _check_arenas(plan)


def _closure(plan: Plan) -> list[int]:
    """Return, for each task, the tasks that must be over when it starts, as bits."""
    before: list[int] = []
    for position, task in enumerate(plan.tasks):
        if task.index != position:
            raise PlanError(f"task {task.index} stands at position {position}")
        bits = 0
        for other in task.waits:
            if not 0 <= other < position:
                raise PlanError(f"task {position} waits for task {other}, which is not earlier")
            bits |= before[other] | 1 << other
        before.append(bits)
    return before


def _check_nodes(plan: Plan, before: list[int]) -> None:
    """Check that each node runs once, and each input is made before it or inside its task."""
    graph = plan.graph
    made_in: dict[int, int] = {}
    for task in plan.tasks:
        inside: set[int] = set()
        for node in task.nodes:
            for value in node.used:
                if graph.values[value].is_constant or value in inside or value in graph.inputs:
                    continue
                maker = made_in.get(value)
                if maker is None or not before[task.index] >> maker & 1:
                    raise PlanError(
                        f"task {task.index} reads %{value} and does not wait for task {maker}"
                    )
                if value not in plan.tasks[maker].outputs:
                    raise PlanError(f"%{value} leaves task {maker} but is not an output of it")
            inside.update(node.outputs)
        made_in.update(dict.fromkeys(inside, task.index))
    ran = [node.id for task in plan.tasks for node in task.nodes]
    if sorted(ran) != sorted(node.id for node in graph.nodes):
        raise PlanError("the tasks do not run every node exactly once")


def _check_effects(plan: Plan) -> None:
    """Check that every effect runs after its predecessors, by data and the waits for effects."""
    task_of = {node.id: task.index for task in plan.tasks for node in task.nodes}
    made_in = {value: task.index for task in plan.tasks for value in task.outputs}
    before: list[int] = []
    for task in plan.tasks:
        if not set(task.effects) <= set(task.waits):
            raise PlanError(f"task {task.index} does not wait for the effects {task.effects}")
        bits = 0
        for other in {*task.effects, *(made_in[v] for v in task.inputs if v in made_in)}:
            bits |= before[other] | 1 << other
        before.append(bits)
    for first, second in _effect_pairs(plan.graph.nodes):
        one, two = task_of[first.id], task_of[second.id]
        if one != two and not before[two] >> one & 1:
            raise PlanError(
                f"task {two} must run after the effect of task {one}",
                facts=[f"task {one}: {first.label}", f"task {two}: {second.label}"],
            )


def _effect_pairs(nodes: Sequence[Node]) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of nodes that must keep their order.

    A pair is two uses of a state, at least one a write, or an effect of another kind and any other.
    """
    earlier: list[tuple[Node, str]] = []
    for node in nodes:
        effect = get_op(node.op).effect
        if not effect:
            continue
        for other, kind in earlier:
            known = {effect, kind} <= {"reads", "writes"}
            if not known or (
                node.attrs["state"] == other.attrs["state"] and "writes" in (effect, kind)
            ):
                yield other, node
        earlier.append((node, effect))


def _check_bytes(plan: Plan, before: list[int]) -> None:
    """Check that a writer of bytes is after earlier users and before later users of them."""
    graph, slots = plan.graph, plan.slots
    writer = {value: -1 for value in graph.inputs}
    readers: dict[int, list[int]] = {}
    for task in plan.tasks:
        writer.update(dict.fromkeys(task.outputs, task.index))
        for value in task.inputs:
            readers.setdefault(value, []).append(task.index)
    end = len(plan.tasks)
    for value in graph.outputs:
        if value in writer:
            readers.setdefault(value, []).append(end)

    def ordered(first: int, second: int) -> bool:
        return first == -1 or second == end or bool(before[second] >> first & 1)

    values = sorted(writer, key=lambda value: (slots[value].memory, slots[value].offset, value))
    for i, a in enumerate(values):
        for b in values[i + 1 :]:
            if slots[b].memory != slots[a].memory or (
                slots[b].offset >= slots[a].offset + slots[a].nbytes
            ):
                break
            if not slots[a].overlaps(slots[b]):
                continue
            one, two = (a, b) if writer[a] <= writer[b] else (b, a)
            users = [*readers.get(one, []), writer[one]]
            if writer[two] == -1 or not all(
                user != end and ordered(user, writer[two]) for user in users
            ):
                raise PlanError(
                    f"%{one} and %{two} share bytes of {slots[one].memory}, and task "
                    f"{writer[two]} does not wait for every use of %{one}",
                    facts=[f"uses of %{one}: tasks {users}"],
                )


def _check_arenas(plan: Plan) -> None:
    for value, slot in plan.slots.items():
        packing = plan.arenas[slot.memory]
        if slot.offset < 0 or slot.offset + slot.nbytes > packing.nbytes:
            raise PlanError(f"%{value} lies outside the arena of {slot.memory}: {slot}")
        if slot.nbytes != plan.graph.type(value).nbytes:
            raise PlanError(f"%{value} has a slot of {slot.nbytes} bytes: {plan.graph.type(value)}")
