"""A region of a graph as one program: steps in order, memory for what flows between them.

`build` lowers each node to native steps, or to a step on the numpy reference where there is no
kernel, and plans the scratch memory. executable.py puts it on addresses and runs it. The program of
a graph whose sizes vary serves every shape; open_sizes.py adds what a shape decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trireme.devices.cpu.codegen.aligned_memory import PackedRoom, as_kernels_read
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.batch_tiling import BatchTile, cut, repeated
from trireme.devices.cpu.compile.buffer_aliases import find_homes, is_alias
from trireme.devices.cpu.compile.fusion import Group, grouped, lower_group, patterns_of
from trireme.devices.cpu.compile.half import widened
from trireme.devices.cpu.compile.region import (
    REFERENCE,
    Item,
    ReferenceStep,
    RegionProgram,
)
from trireme.devices.cpu.compile.scratch_slots import (
    scratch_offsets,
    scratch_slots,
    temps_of,
)
from trireme.devices.cpu.compile.states import states_in
from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    Context,
    KernelFault,
    Packed,
    SizedTemp,
    Step,
    begin,
    finish,
    native_reason,
    varies,
)
from trireme.devices.cpu.kernels.movement.move import whole_copy
from trireme.ir.effects import writes_state
from trireme.ir.graph import Graph, Node
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError
from trireme.support.mapped import release

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.open_sizes import OpenSizes


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
    opened: OpenSizes | None = None,
) -> RegionProgram:
    """Lower a graph to a program without its constants; see `pack`.

    lowered_code: told of each kernel when the steps of its group are there
    parts: whether large batches are done a part at a time (batch_tiling.py)
    recipes, lowered: kernels and nodes that were done before are not done again; what is lowered
        here is added to `lowered`
    serves: the nodes that added conversions serve, of a graph that is widened already (half.py)
    opened: what a graph with symbols is lowered as
    Errors: CompileError, if a node of such a graph has no kernel for every shape
    """
    if opened is not None:
        opened.check()
        graph, serves = opened.lowered, {}
    elif serves is None:
        graph, serves = widened(graph)
    context = Context(graph, isa, threads, winograd, opened is not None, recipes=recipes)
    made = _RegionItems(context, serves, lowered or LoweredGroups(graph), lowered_code)
    reason = native_reason if opened is None else opened.lacks
    groups = list(grouped(context, patterns_of(context), reason))
    for group in cut(graph, groups, isa) if parts and opened is None else groups:
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
    return made.program() if opened is None else made.open_program(opened)


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
        self._aliases, self._copies = find_homes(context.graph, appends_in_place=context.is_open)
        self._states = states_in(context.graph, self._aliases)
        self._items: list[Item] = []
        self._writes: list[Item] = []
        self._kernels: dict[int, str] = {}
        self._stretches: list[tuple[int, RegionProgram, int]] = []

    def add_tile(self, one: RegionProgram, parts: int) -> None:
        """Add a stretch that runs part by part."""
        self._stretches.append((len(self._items), one, parts))
        self._items += repeated(one, parts)
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
        if self._context.is_open:
            _check_sizes(self._context.graph, node, made)
        for item in made:
            for code in item.codes if isinstance(item, Step) else ():
                self._lowered_code(code)
        first = 1 if writes_state(node) else 0  # the first step writes the state
        self._writes += made[:first]
        self._items += made[first:]
        self._name_kernels(group, made)

    def program(self) -> RegionProgram:
        """Return the program of what was added, with its scratch memory planned."""
        graph, items = self._context.graph, [*self._items, *self._writes]
        offsets, nbytes = scratch_offsets(graph, items, self._aliases, self._states.views)
        return RegionProgram(
            graph,
            tuple(items),
            self._aliases,
            self._kernels,
            offsets,
            nbytes,
            self._stretches,
            states=self._states,
        )

    def open_program(self, opened: OpenSizes) -> RegionProgram:
        """Return the program of what was added, whose scratch memory a shape places."""
        items: list[Item] = [*self._items, *self._writes]
        unread = _unread_rows(self._context.graph, items, self._aliases)
        self._kernels |= {node: "state" for step in unread for node in step.nodes}
        items = [item for item in items if item not in unread]
        found = temps_of(items)
        temps = {key: one for key, one in found.items() if isinstance(one, SizedTemp)}
        return RegionProgram(
            opened.graph,
            tuple(items),
            self._aliases,
            self._kernels,
            opened=opened,
            slots=scratch_slots(opened.graph, items, self._aliases, temps),
            temps=temps,
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
            copy = whole_copy if context.is_open else _copy_step
            return [copy(context, node, *self._copies[node.id])]
        return None

    def _name_kernels(self, group: Group, made: Sequence[Item]) -> None:
        """Note the kernels of a group's nodes; a conversion's belong to the node it serves."""
        name = _kernel_name(made)
        for id in dict.fromkeys(self._serves.get(node.id, node.id) for node in group.nodes):
            before = self._kernels.get(id)
            self._kernels[id] = name if before is None else f"{before} + {name}"


def _check_sizes(graph: Graph, node: Node, made: Sequence[Item]) -> None:
    """Raise if a step of an open graph would serve the sizes of its sample alone."""
    for step in made:
        if isinstance(step, Step) and step.size is None:
            operands = (one for one in (*step.reads, *step.writes) if isinstance(one, int))
            if any(varies(dim) for one in operands for dim in graph.type(one).dims):
                raise InternalError(f"{node.label}: {step.code.name} reads no sizes that vary")


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


def _unread_rows(graph: Graph, items: Sequence[Item], homes: Mapping[int, int]) -> list[Step]:
    """Return the steps that copy rows which every reader reads in the buffer itself."""
    views = {
        homes[node.outputs[0]]
        for node in graph.nodes
        if node.op == "held_rows"
        and not is_alias(graph, node)
        and not graph.is_output(node.outputs[0])
    }
    reads = (o.of if isinstance(o, At) else o for item in items for o in item.reads)
    unread = views - {homes[o] for o in reads if isinstance(o, int)}
    return [
        item
        for item in items
        if isinstance(item, Step)
        and item.writes
        and all(isinstance(o, int) and homes[o] in unread for o in item.writes)
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


def faults_of(items: Iterable[Item]) -> list[KernelFault]:
    """Return what the kernels of some steps may find wrong, in the order of their operands."""
    return [one for item in items for one in item.reads if isinstance(one, KernelFault)]


def constants_of(items: Iterable[Item]) -> dict[int, Array]:
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
