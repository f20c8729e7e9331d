"""A region of a graph as one program: steps in order, memory for what flows between them.

`build` lowers each node to native steps, or to a step on the numpy reference where there is no
kernel, and plans the scratch memory. executable.py puts it on addresses and runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Protocol

from trireme.backend.arena import LiveRange
from trireme.backend.arena import pack as pack_ranges
from trireme.devices.cpu.codegen.aligned_memory import PackedRoom, as_kernels_read
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.batch_tiling import BatchTile, cut
from trireme.devices.cpu.compile.buffer_aliases import find_homes, is_alias
from trireme.devices.cpu.compile.fusion import Group, grouped, lower_group, patterns_of
from trireme.devices.cpu.compile.half import widened
from trireme.devices.cpu.compile.states import RegionStates, states_in
from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    Context,
    KernelFault,
    Operand,
    Packed,
    Step,
    Temp,
    begin,
    finish,
)
from trireme.ir.effects import writes_state
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError
from trireme.support.mapped import release
from trireme.support.records import dataclass

REFERENCE = "numpy reference"


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node that numpy runs between native steps."""

    node: Node

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The values it reads."""
        return self.node.used

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The values it writes."""
        return self.node.outputs


Item = Step | ReferenceStep


class Reader(Protocol):
    """A step of any kind: it reads operands."""

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The operands it reads."""


@dataclass(frozen=True)
class RegionProgram:
    """A region without its addresses, made by `build`."""

    graph: Graph
    items: tuple[Item, ...]
    symbols: tuple[str, ...]
    buffer_aliases: Mapping[int, int]
    """The value in whose memory each value lies; itself where it has memory of its own."""
    offsets: Mapping[int | str, int]
    """Byte offsets in the scratch memory, by value or temp."""
    scratch_bytes: int
    local_bytes: int
    kernels: Mapping[int, str]
    stretches: Sequence[tuple[int, RegionProgram, int]] = ()
    """Stretches that run part by part: first item, program of a part, number of parts."""
    constants: Mapping[int, Array] = field(default_factory=dict)
    """Constants by the identity of the operand that steps name; aligned and contiguous."""
    states: RegionStates = RegionStates()

    @property
    def codes(self) -> tuple[Code, ...]:
        """The kernels, in the order of the steps."""
        return tuple(item.code for item in self.items if isinstance(item, Step))


class LoweredGroups:
    """Groups of nodes with their items, of a graph that was lowered to be priced.

    A later compilation of the graph takes them from here.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[int, ...], tuple[Group, list[Item]]] = {}

    def add(self, group: Group, items: list[Item]) -> None:
        """Keep a group's items."""
        self._made[tuple(node.id for node in group.nodes)] = group, items

    def get(self, graph: Graph, group: Group) -> list[Item] | None:
        """Return the items of the same nodes on the same values; None where there are none."""
        kept, items = self._made.get(tuple(node.id for node in group.nodes), (None, None))
        if kept is None or kept.pattern != group.pattern:
            return None
        for mine, other in zip(group.nodes, kept.nodes, strict=True):
            if (mine.op, mine.inputs, mine.outputs) != (other.op, other.inputs, other.outputs):
                return None
            values = (*mine.used, *mine.outputs)
            same = all(graph.values[v] is self._graph.values.get(v) for v in values)
            if not same or mine.attrs != other.attrs:
                return None
        return items


def ignore_code(code: Code) -> None:
    """Do nothing with a kernel."""


def build(
    graph: Graph,
    isa: Isa,
    threads: int,
    winograd: bool = True,
    recipes: KernelCache | None = None,
    lowered: LoweredGroups | None = None,
    parts: bool = True,
    lowered_code: Callable[[Code], None] = ignore_code,
    serves: Mapping[int, int] | None = None,
) -> RegionProgram:
    """Lower a graph to a program without its constants; see `pack`.

    lowered_code: told of each kernel when the steps of its group are there
    parts: whether large batches are done a part at a time (batch_tiling.py)
    recipes, lowered: kernels and nodes that were done before are not done again; what is lowered
        here is added to `lowered`
    serves: the nodes that added conversions serve, of a graph that is widened already (half.py)
    """
    if serves is None:
        graph, serves = widened(graph)
    context = Context(graph, isa, threads, winograd, recipes=recipes)
    made = _RegionItems(context, serves, lowered or LoweredGroups(graph), lowered_code)
    groups = list(grouped(context, patterns_of(context)))
    for group in cut(graph, groups, isa) if parts else groups:
        if isinstance(group, BatchTile):
            one = build(
                group.graph,
                isa,
                threads,
                winograd,
                recipes,
                parts=False,
                lowered_code=lowered_code,
                serves=serves,
            )
            made.add_tile(one, group.parts)
        else:
            made.add(group)
    return made.program()


class _RegionItems:
    """The items of a region, lowered group by group; the arguments are those of `build`."""

    def __init__(
        self,
        context: Context,
        serves: Mapping[int, int],
        lowered: LoweredGroups,
        lowered_code: Callable[[Code], None],
    ) -> None:
        self._context, self._serves = context, serves
        self._lowered, self._lowered_code = lowered, lowered_code
        self._aliases, self._copies = find_homes(context.graph)
        self._states = states_in(context.graph, self._aliases)
        self._items: list[Item] = []
        self._writes: list[Item] = []
        self._kernels: dict[int, str] = {}
        self._stretches: list[tuple[int, RegionProgram, int]] = []

    def add_tile(self, one: RegionProgram, parts: int) -> None:
        """Add a stretch that runs part by part."""
        self._stretches.append((len(self._items), one, parts))
        self._items += _repeated(one, parts)
        self._kernels |= one.kernels

    def add(self, group: Group) -> None:
        """Add the items of a group; the step that writes a state comes behind all others."""
        node = group.node
        if node.outputs[0] in self._states.views:
            self._kernels[node.id] = "state"
            return
        made = self._items_of(group)
        if made is None:
            self._kernels[node.id] = "alias"
            return
        for item in made:
            if isinstance(item, Step):
                self._lowered_code(item.code)
        first = 1 if writes_state(node) else 0  # the first step writes the state
        self._writes += made[:first]
        self._items += made[first:]
        self._name_kernels(group, made)

    def program(self) -> RegionProgram:
        """Return the program of what was added, with its scratch memory planned."""
        graph, items = self._context.graph, [*self._items, *self._writes]
        offsets, nbytes = _place(graph, items, self._aliases, self._states)
        steps = [item for item in items if isinstance(item, Step)]
        return RegionProgram(
            graph,
            tuple(items),
            tuple(step.code.symbol for step in steps),
            self._aliases,
            offsets,
            nbytes,
            max((step.local_bytes for step in steps), default=0),
            self._kernels,
            self._stretches,
            states=self._states,
        )

    def _items_of(self, group: Group) -> list[Item] | None:
        """Return the items of a group; None for a node whose output lies where its input does."""
        context, node = self._context, group.node
        if len(group.nodes) > 1 or not is_alias(context.graph, node):
            made = self._lowered.get(context.graph, group)
            if made is None:
                made = _lower(context, group, self._serves)
                self._lowered.add(group, made)
            return made
        if node.id in self._copies:
            return [_copy_step(context, node, *self._copies[node.id])]
        return None

    def _name_kernels(self, group: Group, made: Sequence[Item]) -> None:
        """Note the kernels of a group's nodes; a conversion's belong to the node it serves."""
        name = _kernel_name(made)
        for id in dict.fromkeys(self._serves.get(node.id, node.id) for node in group.nodes):
            before = self._kernels.get(id)
            self._kernels[id] = name if before is None else f"{before} + {name}"


def pack(program: RegionProgram) -> RegionProgram:
    """Return the program with its constants, as kernels read them."""
    constants = constants_of(program.items)
    _release(program.graph, constants)
    return replace(program, constants=constants)


def _kernel_name(items: Sequence[Item]) -> str:
    names = dict.fromkeys(i.code.name for i in items if isinstance(i, Step))
    return " + ".join(names) or REFERENCE


def _lower(context: Context, group: Group, serves: Mapping[int, int]) -> list[Item]:
    if not group.native:
        return [ReferenceStep(group.node)]
    nodes = tuple(dict.fromkeys(serves.get(node.id, node.id) for node in group.nodes))
    return [replace(step, nodes=nodes) for step in lower_group(context, group)]


def _repeated(program: RegionProgram, parts: int) -> list[Item]:
    """Return the steps of a part of the batch for each part, on the memory of the whole batch."""
    graph, buffer_aliases, offsets = program.graph, program.buffer_aliases, program.offsets
    whole = {*graph.inputs, *graph.outputs}
    memory = Temp(f"parts from %{graph.nodes[0].outputs[0]}", program.scratch_bytes)

    def beginning(operand: int | Temp, part: int) -> At:
        if isinstance(operand, int) and buffer_aliases[operand] in whole:
            return At(buffer_aliases[operand], part * graph.type(buffer_aliases[operand]).nbytes)
        key = buffer_aliases[operand] if isinstance(operand, int) else operand.key
        return At(memory, offsets[key])

    def place(operand: Operand, part: int) -> Operand:
        if isinstance(operand, int) and graph.values[operand].is_constant:
            return operand
        if isinstance(operand, At):
            at = beginning(operand.of, part)
            return At(at.of, at.offset + operand.offset)
        return beginning(operand, part) if isinstance(operand, int | Temp) else operand

    return [
        replace(
            item,
            reads=tuple(place(operand, part) for operand in item.reads),
            writes=tuple(place(operand, part) for operand in item.writes),
        )
        for part in range(parts)
        for item in program.items
        if isinstance(item, Step)
    ]


def _copy_step(context: Context, node: Node, source: int, target: int) -> Step:
    nbytes = context.type(target).nbytes  # the source may have more rows
    code = context.kernel(_copy_kernel, nbytes)
    reads = (context.operand(source),)
    return Step(code, reads, (target,), seconds=nbytes / 1e10, nodes=(node.id,), family="copy")


def _copy_kernel(isa: Isa, nbytes: int) -> Code:
    fn, (x, y), _, _ = begin(f"copy_{nbytes}", isa, 2)
    fn.line(f"call void @llvm.memcpy.p0.p0.i64({y}, {x}, i64 {nbytes}, i1 false)")
    fn.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    return finish(fn)


def _place(
    graph: Graph,
    items: Sequence[Item],
    buffer_aliases: Mapping[int, int],
    states: RegionStates,
) -> tuple[dict[int | str, int], int]:
    """Return offsets in the scratch memory: not of inputs, outputs, constants and states."""
    outside = {*graph.inputs, *graph.outputs, *states.views}
    spans: dict[int | str, tuple[int, int, int]] = {}
    for position, item in enumerate(items):
        for operand in (*item.reads, *item.writes):
            key: int | str
            operand = operand.of if isinstance(operand, At) else operand
            if isinstance(operand, Temp):
                key, nbytes = operand.key, operand.nbytes
            elif isinstance(operand, int) and buffer_aliases[operand] not in outside:
                if graph.values[operand].is_constant:
                    continue
                key, nbytes = buffer_aliases[operand], graph.type(buffer_aliases[operand]).nbytes
            else:
                continue
            first = spans[key][0] if key in spans else position
            spans[key] = (first, position, nbytes)
    keys = list(spans)
    packing = pack_ranges([LiveRange(k, *spans[key]) for k, key in enumerate(keys)])
    return {key: packing.offsets[k] for k, key in enumerate(keys)}, packing.nbytes


def faults_of(items: Iterable[Reader]) -> list[KernelFault]:
    """Return what the kernels of some steps may find wrong, in the order of their operands."""
    return [one for item in items for one in item.reads if isinstance(one, KernelFault)]


def constants_of(items: Iterable[Reader]) -> dict[int, Array]:
    """Return aligned, contiguous constants by the identity of the array that a step names."""
    named = {id(o): o for item in items for o in item.reads if isinstance(o, CONSTANTS)}
    room = PackedRoom([o.nbytes for o in named.values() if isinstance(o, Packed)])
    found: dict[int, Array] = {}
    for key, operand in named.items():
        if not isinstance(operand, Packed):
            plain = found[key] = as_kernels_read(operand)
            if plain is not operand:
                release(operand)
            continue
        data = operand.make()
        if data.nbytes != operand.nbytes:
            raise InternalError(f"packed {data.nbytes} bytes, not {operand.nbytes}")
        found[key] = room.moved(data)
    return found


def _release(graph: Graph, constants: Mapping[int, Array]) -> None:
    """Give back the pages of weights that were packed; those that kernels read in place stay."""
    for value in graph.values.values():
        if value.data is not None and constants.get(id(value.data)) is not value.data:
            release(value.data)
