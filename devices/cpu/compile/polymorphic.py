"""A region with symbols as one program for every shape, and the same for one shape.

`build_polymorphic` lowers a sample of the region (kernels/sample.py): the groups of
nodes, the code, the packed constants and who shares memory hold for every shape. `program_at` adds
what one shape decides: the words that kernels read, chunks and offsets in the scratch memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.buffer_aliases import find_homes, is_alias
from trireme.devices.cpu.compile.fusion import Group, Pattern, chain_terms, grouped
from trireme.devices.cpu.compile.half import kernel_reason
from trireme.devices.cpu.compile.program import (
    REFERENCE,
    ReferenceStep,
    RegionProgram,
    constants_of,
)
from trireme.devices.cpu.compile.scratch_slots import ScratchSlot, scratch_slots
from trireme.devices.cpu.kernels.f32.elementwise import expression_step
from trireme.devices.cpu.kernels.items import open_rule
from trireme.devices.cpu.kernels.lowering import (
    At,
    Context,
    Extents,
    Operand,
    Sized,
    SizedTemp,
    Step,
    Temp,
)
from trireme.devices.cpu.kernels.movement.move import whole_copy
from trireme.devices.cpu.kernels.sample import GenericSample, sample_of
from trireme.devices.cpu.patterns.attention import (
    Attention,
    find_open_attention,
    open_attention_step,
)
from trireme.devices.cpu.patterns.polymorphic_dynamic_range import (
    find_polymorphic_hybrid,
    levels_steps,
    product_steps,
)
from trireme.devices.cpu.runtime.slot_places import slot_places
from trireme.ir.contents import decided_by_shapes
from trireme.ir.graph import Graph, Node
from trireme.ir.quantization.dynamic_range import HybridProduct, Levels
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError


def polymorphic_reason(sample: GenericSample, decided: frozenset[int], node: Node) -> str | None:
    """Say why a node has no kernel for every shape; None when it has, or needs none.

    A node that has no native kernel in any shape needs none: numpy runs it, as it always does.
    """
    why = _lacking(sample, decided, node)
    if why is None or not decided.isdisjoint(node.used):  # constants once a shape is known
        return why
    node = sample.usual.node(node.id)
    return None if kernel_reason(sample.usual, node) else why


def _lacking(sample: GenericSample, decided: frozenset[int], node: Node) -> str | None:
    """Say why no native kernel runs a node in every shape."""
    graph = sample.graph
    node = graph.node(node.id)
    if decided.issuperset(node.outputs) or is_alias(graph, node):
        return None
    rule = open_rule(graph, node)
    return rule if isinstance(rule, str) else None


Item = Step | ReferenceStep


@dataclass(frozen=True)
class PolymorphicProgram:
    """Everything about a region but what a shape decides."""

    graph: Graph
    sample: GenericSample
    decided: frozenset[int]
    steps: tuple[Item, ...]
    buffer_aliases: Mapping[int, int]
    temps: Mapping[str, SizedTemp]
    slots: tuple[ScratchSlot, ...]
    kernels: Mapping[int, str]
    constants: Mapping[int, Array]

    @property
    def codes(self) -> tuple[Code, ...]:
        """The kernels."""
        native = (step for step in self.steps if isinstance(step, Step))
        return tuple(code for step in native for code in step.codes)


def build_polymorphic(
    graph: Graph,
    isa: Isa,
    threads: int,
    recipes: KernelCache | None = None,
    winograd: bool = True,
) -> PolymorphicProgram:
    """Lower a region with symbols; `packed` adds the constants.

    Errors: CompileError, if a node has no kernel for every shape
    """
    decided = decided_by_shapes(graph)
    sample = sample_of(graph)
    for node in graph.nodes:
        reason = polymorphic_reason(sample, decided, node)
        if reason is not None:
            raise CompileError(f"cpu: {node.label}: {reason}")
    kept = tuple(n for n in sample.graph.nodes if not decided.issuperset(n.outputs))
    inside = replace(sample.graph, nodes=kept)
    context = Context(inside, isa, threads, winograd, is_open=True, recipes=recipes)
    buffer_aliases, copies = find_homes(context.graph, appends_in_place=True)
    steps: list[Item] = []
    kernels: dict[int, str] = {}

    def lacks(_: Graph, node: Node) -> str | None:
        return _lacking(sample, decided, node)

    for group in grouped(context, _patterns(context.graph), lacks):
        node = group.node
        if len(group.nodes) == 1 and is_alias(context.graph, node):
            if node.id in copies:
                steps.append(whole_copy(context, node, *copies[node.id]))
            kernels[node.id] = "copy" if node.id in copies else "alias"
            continue
        if not group.native:
            steps.append(ReferenceStep(node))
            kernels[node.id] = REFERENCE
            continue
        made = _lower(context, group)
        name = " + ".join(dict.fromkeys(step.codes[0].name for step in made))
        kernels |= {node.id: name for node in group.nodes}
        steps += made
    needed = _needed(context.graph, steps, buffer_aliases)
    unread = [step for step in steps if isinstance(step, Step) and step not in needed]
    kernels |= {node: "state" for step in unread for node in step.nodes}
    steps = needed
    operands = [operand for step in steps for operand in (*step.reads, *step.writes)]
    temps = {one.key: one for one in operands if isinstance(one, SizedTemp)}
    slots = scratch_slots(graph, steps, buffer_aliases, temps)
    return PolymorphicProgram(
        graph, sample, decided, tuple(steps), buffer_aliases, temps, slots, kernels, {}
    )


def _needed(graph: Graph, steps: Sequence[Item], homes: Mapping[int, int]) -> list[Item]:
    """Return the steps without copies of rows that every reader reads in the buffer itself."""
    views = {
        homes[node.outputs[0]]
        for node in graph.nodes
        if node.op == "held_rows"
        and not is_alias(graph, node)
        and not graph.is_output(node.outputs[0])
    }
    reads = (o.of if isinstance(o, At) else o for step in steps for o in step.reads)
    read = {homes[o] for o in reads if isinstance(o, int)}
    unread = views - read

    def is_copy(step: Item) -> bool:
        return bool(step.writes) and all(
            isinstance(o, int) and homes[o] in unread for o in step.writes
        )

    return [step for step in steps if not is_copy(step)]


def packed(program: PolymorphicProgram) -> PolymorphicProgram:
    """Return the program with its constants, which all shapes share."""
    return replace(program, constants=constants_of(program.steps))


def _patterns(graph: Graph) -> list[Pattern]:
    """Return the patterns of a sample that are one kernel for every shape."""
    return [*find_open_attention(graph), *find_polymorphic_hybrid(graph)]


def _lower(context: Context, group: Group) -> Sequence[Step]:
    nodes = tuple(node.id for node in group.nodes)
    if isinstance(group.pattern, Attention):
        return [open_attention_step(context, group.pattern)]
    if isinstance(group.pattern, Levels):
        return levels_steps(context, group.pattern)
    if isinstance(group.pattern, HybridProduct):
        return product_steps(context, group.pattern)
    if len(nodes) > 1:
        name, terms, inputs = chain_terms(context, group)
        step = expression_step(context, name, terms, inputs, group.node.outputs[0], nodes)
        return [step]
    rule = open_rule(context.graph, group.node)
    if isinstance(rule, str):
        raise CompileError(f"cpu: {group.node.label}: {rule}")
    return rule.lower(context, group.node)


def program_at(program: PolymorphicProgram, graph: Graph) -> RegionProgram:
    """Return the program for a graph of the same nodes with static types.

    Errors: CompileError, if the kernels do not serve the shape
    """
    sized = _sized_steps(program, graph)
    words = np.array([word for _, one in sized for word in one.words] or [0], np.int64)
    extra: dict[int, Array] = {}

    def operand_of(operand: Operand) -> Operand:
        if isinstance(operand, int) and operand in program.decided:
            data = graph.values[operand].data
            if data is not None:
                extra[id(data)] = as_kernels_read(data)
                return data
        if isinstance(operand, SizedTemp):
            return Temp(operand.key, operand.bytes_at(graph))
        return operand

    items: list[Step | ReferenceStep] = []
    at = 0
    for step, one in sized:
        if isinstance(step, ReferenceStep):
            items.append(step)
            continue
        code = step.codes[one.variant]
        reads, writes = step.reads, step.writes
        decided = not program.decided.isdisjoint(o for o in reads if isinstance(o, int))
        if decided or program.temps:
            reads, writes = (tuple(map(operand_of, ends)) for ends in (reads, writes))
        extra |= {id(array): as_kernels_read(array) for array in one.arrays}
        items.append(
            Step(
                code,
                (Extents(words, at), *one.arrays, *reads),
                writes,
                one.chunks,
                one.local_bytes,
                one.seconds,
                step.nodes,
                one.columns,
                family=step.family,
            )
        )
        at += len(one.words)
    offsets, nbytes = _offsets(program, graph)
    return RegionProgram(
        graph,
        tuple(items),
        tuple(item.code.symbol for item in items if isinstance(item, Step)),
        program.buffer_aliases,
        offsets,
        nbytes,
        max((item.local_bytes for item in items if isinstance(item, Step)), default=0),
        program.kernels,
        constants={**program.constants, **extra} if extra else program.constants,
    )


def sized_for(step: Step, graph: Graph) -> Sized:
    """Return what a shape decides of a step.

    Errors: CompileError, if it reads or makes an empty tensor, and not only moves elements
    """
    sized = step.sized(graph)
    values = graph.values
    if sized.chunks and any(
        values[operand].type.elements == 0
        for operand in (*step.reads, *step.writes)
        if isinstance(operand, int)
    ):
        label = graph.node(step.nodes[-1]).label
        raise CompileError(f"cpu: {label} has no kernel of all shapes for empty tensors")
    return sized


def _sized_steps(
    program: PolymorphicProgram, graph: Graph
) -> list[tuple[Step | ReferenceStep, Sized]]:
    """Return the steps with what a shape decides of each.

    Errors: CompileError, if the kernels do not serve the shape
    """
    for value in program.decided:
        found = graph.values.get(value)
        if found is not None and not found.is_constant and graph.users(value):
            raise CompileError(f"cpu: '{found.first_name}' is not constant in this shape")
    program.sample.check(graph)
    return [
        (step, Sized(()) if isinstance(step, ReferenceStep) else sized_for(step, graph))
        for step in program.steps
    ]


def _offsets(program: PolymorphicProgram, graph: Graph) -> tuple[dict[int | str, int], int]:
    """Return the offsets in scratch memory for a shape, and its bytes."""
    room = [
        max(
            program.temps[member].bytes_at(graph)
            if isinstance(member, str)
            else graph.values[member].type.nbytes
            for member in slot.members
        )
        for slot in program.slots
    ]
    begins, nbytes = slot_places(room, [slot.below for slot in program.slots])
    pairs = zip(program.slots, begins, strict=True)
    return {member: begin for slot, begin in pairs for member in slot.members}, nbytes
