"""A region with symbols as one program for every shape, and the same for one shape.

`build_polymorphic` lowers a sample of the region (kernels/polymorphic/sample.py): the groups of
nodes, the code, the packed constants and who shares memory hold for every shape. `program_at` adds
what one shape decides: the words that kernels read, chunks and offsets in the scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.backend.device import Executable
from trireme.backend.kernel_table import form_of
from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.buffer_aliases import find_homes, is_alias
from trireme.devices.cpu.compile.executable import CpuExecutable
from trireme.devices.cpu.compile.fusion import Group, chain_terms, grouped
from trireme.devices.cpu.compile.program import RegionProgram, constants_of
from trireme.devices.cpu.kernels.lowering import Context, Extents, Operand, Step
from trireme.devices.cpu.kernels.polymorphic.elementwise import expression_step
from trireme.devices.cpu.kernels.polymorphic.sample import GenericSample, sample_of, varies
from trireme.devices.cpu.kernels.polymorphic.step import PolymorphicStep
from trireme.devices.cpu.kernels.polymorphic.table import POLYMORPHIC
from trireme.devices.cpu.patterns.attention import Attention
from trireme.devices.cpu.patterns.polymorphic_attention import (
    attention_step,
    find_polymorphic_attention,
)
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.devices.cpu.runtime.server import Server
from trireme.ir.contents import decided_by_shapes
from trireme.ir.graph import Graph, Node, Value
from trireme.support.dtypes import Array, itemsize
from trireme.support.errors import CompileError

_ALIGN = 64
_USUAL = 64
"""What a size that varies is taken for, where memory is shared by values of unlike sizes."""


def polymorphic_reason(sample: GenericSample, decided: frozenset[int], node: Node) -> str | None:
    """Say why a node has no kernel for every shape; None when it has, or needs none."""
    if decided.issuperset(node.outputs):
        return None
    graph = sample.graph
    node = graph.node(node.id)
    if is_alias(graph, node):
        return None
    rule = POLYMORPHIC.find(graph, node)
    if rule is None:
        form = form_of(graph, node)
        return f"{node.op} on {form} has no kernel whose sizes are known when it runs"
    return rule.reason(graph, node)


@dataclass(frozen=True)
class ScratchSlot:
    """Scratch memory that values of disjoint lives share: their ids, or keys of Temps."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class PolymorphicProgram:
    """Everything about a region but what a shape decides."""

    graph: Graph
    sample: GenericSample
    decided: frozenset[int]
    steps: tuple[PolymorphicStep, ...]
    buffer_aliases: Mapping[int, int]
    slots: tuple[ScratchSlot, ...]
    kernels: Mapping[int, str]
    constants: Mapping[int, Array]

    @property
    def codes(self) -> tuple[Code, ...]:
        """The kernels."""
        return tuple(code for step in self.steps for code in step.codes)


def build_polymorphic(
    graph: Graph, isa: Isa, threads: int, recipes: KernelCache | None = None
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
    context = Context(replace(sample.graph, nodes=kept), isa, threads, recipes=recipes)
    buffer_aliases, copies = find_homes(context.graph)
    if copies:
        node = context.graph.node(next(iter(copies)))
        raise CompileError(f"cpu: {node.label}: an output is another's memory in another shape")
    steps: list[PolymorphicStep] = []
    kernels: dict[int, str] = {}

    def lacks(_: Graph, node: Node) -> str | None:
        return polymorphic_reason(sample, decided, node)

    for group in grouped(context, find_polymorphic_attention(context.graph), lacks):
        if len(group.nodes) == 1 and is_alias(context.graph, group.node):
            kernels[group.node.id] = "alias"
            continue
        made = _lower(context, group)
        name = " + ".join(dict.fromkeys(step.codes[0].name for step in made))
        kernels |= {node.id: name for node in group.nodes}
        steps += made
    slots = tuple(_slots(context.graph, steps, buffer_aliases))
    return PolymorphicProgram(
        graph, sample, decided, tuple(steps), buffer_aliases, slots, kernels, {}
    )


def packed(program: PolymorphicProgram) -> PolymorphicProgram:
    """Return the program with its constants, which all shapes share."""
    return replace(program, constants=constants_of(program.steps))


def _lower(context: Context, group: Group) -> Sequence[PolymorphicStep]:
    nodes = tuple(node.id for node in group.nodes)
    if isinstance(group.pattern, Attention):
        return [attention_step(context, group.pattern)]
    if len(nodes) > 1:
        name, terms, inputs = chain_terms(context, group)
        return [expression_step(context, name, terms, inputs, group.node.outputs[0], nodes)]
    rule = POLYMORPHIC.find(context.graph, group.node)
    if rule is None:
        raise CompileError(f"cpu: {group.node.label} has no kernel for every shape")
    return rule.lower(context, group.node)


def _slots(
    graph: Graph, steps: Sequence[PolymorphicStep], homes: Mapping[int, int]
) -> Iterator[ScratchSlot]:
    """Yield the memory of what flows between steps: a value takes the free slot nearest in size."""
    outside = {*graph.inputs, *graph.outputs}
    lives: dict[int, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        for operand in (*step.reads, *step.writes):
            if isinstance(operand, int) and homes[operand] not in outside:
                home = homes[operand]
                if not graph.values[home].is_constant:
                    lives[home] = (lives.get(home, (position, 0))[0], position)
    slots: list[tuple[int, list[int]]] = []  # the last step that uses each, and its members
    for home, (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        wanted = _usual_bytes(graph.values[home])
        free = [
            (max(wanted, have) / min(wanted, have), k)
            for k, (until, members) in enumerate(slots)
            if until < first
            for have in [max(_usual_bytes(graph.values[m]) for m in members)]
        ]
        ratio, k = min(free, default=(math.inf, 0))
        if ratio > 4:
            slots.append((last, [home]))
        else:
            slots[k] = (last, [*slots[k][1], home])
    return iter([ScratchSlot(tuple(members)) for _, members in slots])


def _usual_bytes(value: Value) -> int:
    sizes = (_USUAL if varies(dim) else dim for dim in value.type.dims)
    return max(math.prod(sizes), 1) * itemsize(value.dtype)


def program_at(program: PolymorphicProgram, graph: Graph) -> RegionProgram:
    """Return the program for a graph of the same nodes with static types.

    Errors: CompileError, if the kernels do not serve the shape
    """
    values = graph.values
    for value in program.decided:
        if value in values and not values[value].is_constant and graph.users(value):
            raise CompileError(f"cpu: '{values[value].first_name}' is not constant in this shape")
    program.sample.check(graph)
    sized = [(step, step.size(graph)) for step in program.steps]
    words = np.array([word for _, one in sized for word in one.words] or [0], np.int64)
    extra: dict[int, Array] = {}

    def operand_of(operand: Operand) -> Operand:
        if isinstance(operand, int) and operand in program.decided:
            data = values[operand].data
            if data is not None:
                extra[id(data)] = as_kernels_read(data)
                return data
        return operand

    items, at = [], 0
    for step, one in sized:
        code = step.codes[one.variant]
        reads = step.reads
        if not program.decided.isdisjoint(o for o in reads if isinstance(o, int)):
            reads = tuple(map(operand_of, reads))
        items.append(
            Step(
                code,
                (Extents(words, at), *reads),
                step.writes,
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
        tuple(item.code.symbol for item in items),
        program.buffer_aliases,
        offsets,
        nbytes,
        max((item.local_bytes for item in items), default=0),
        program.kernels,
        constants={**program.constants, **extra} if extra else program.constants,
    )


def _offsets(program: PolymorphicProgram, graph: Graph) -> tuple[dict[int | str, int], int]:
    """Return the offsets in scratch memory for a shape, and its bytes."""
    offsets: dict[int | str, int] = {}
    at = 0
    for slot in program.slots:
        offsets |= dict.fromkeys(slot.members, at)
        nbytes = max(graph.values[member].type.nbytes for member in slot.members)
        at += -(-nbytes // _ALIGN) * _ALIGN
    return offsets, at


class CpuPolymorphic:
    """A region compiled for every shape: a PolymorphicExecutable."""

    def __init__(
        self, program: PolymorphicProgram, jit: Jit, pool: StepPool, server: Server | None
    ) -> None:
        self._program, self._jit, self._pool, self._server = program, jit, pool, server
        self.constant_bytes = sum(array.nbytes for array in program.constants.values())

    def at(self, graph: Graph) -> Executable:
        """Return the executable of one shape."""
        program = program_at(self._program, graph)
        return CpuExecutable(program, self._jit, self._pool, self._server)
