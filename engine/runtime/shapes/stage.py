"""Cut an open graph into stages and regions: where shapes come late, or no program serves all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from trireme.backend.capabilities import PolymorphicDevice
from trireme.backend.device import HOST
from trireme.ir.any_rank import has_late_rank
from trireme.ir.bind_shapes import bind_shapes, retyped, sizes_of
from trireme.ir.contents import decided_by_shapes
from trireme.ir.dims import bounds_of, substituted, symbol_name, symbols_of
from trireme.ir.effects import uses_state
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType
from trireme.ir.op import call_of, get_op
from trireme.ops.repeats import bodies_of, pinned_inside, repeat_of
from trireme.passes.bodies import body_of
from trireme.runtime.shapes.closed import why_not_closed
from trireme.runtime.shapes.polymorphic import usual_shapes
from trireme.support.errors import PlacementError, TriremeError
from trireme.support.records import dataclass


def only_chooses(graph: Graph, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether all nodes are branches on inputs of the graph, and one of the bodies has much work.

    Bodies with little work are compiled for each shape with the graph: numpy would run them.
    Errors: ShapeError, if the shapes do not fit the graph
    """
    given = {*graph.inputs, *(v.id for v in graph.values.values() if v.is_constant)}
    nodes = graph.nodes
    if not nodes or not all(_is_choice(node) and given.issuperset(node.used) for node in nodes):
        return False
    sizes = sizes_of(graph, shapes)

    def bound(value: int) -> TensorType:
        type = graph.type(value)
        dims = tuple(substituted(dim, sizes) for dim in type.shape)
        return TensorType(dims, type.dtype, type.quant)

    return any(_has_much_work(node, [bound(value) for value in node.used[1:]]) for node in nodes)


def has_branches(graph: Graph) -> bool:
    """Whether a node chooses one of several bodies: one that is not taken may refuse any shapes."""
    return any(map(_is_choice, graph.nodes))


def _is_choice(node: Node) -> bool:
    return bool(bodies_of(node)) and repeat_of(node.attrs) is None and not node.after


def _has_much_work(node: Node, given: Sequence[TensorType]) -> bool:
    for body in bodies_of(node).values():
        try:
            if not has_little_work(body_of(body, given)):
                return True
        except TriremeError:  # a branch that is not taken may refuse the shapes
            continue
    return False


@dataclass(frozen=True)
class Stage:
    """A graph with static inputs, cut in three. `region` and `rest` are None without nodes.

    most: by results of steps, the most of the dimensions that only a run tells, where proven
    """

    graph: Graph
    region: Graph | None
    steps: tuple[Node, ...]
    rest: Graph | None
    most: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether the region is the whole graph."""
        return self.region is self.graph


def cut(graph: Graph) -> Stage:
    """Return the stage of a graph whose inputs have static shapes."""
    late: set[int] = set()
    after: set[int] = set()
    parts: tuple[list[Node], list[Node], list[Node]] = [], [], []
    region, steps, rest = parts
    for node in graph.nodes:
        if late.intersection(node.used) or after.intersection(node.after):
            part = rest
        elif all(is_planned(graph.type(value)) for value in (*node.used, *node.outputs)):
            part = region
        else:
            part = steps
        part.append(node)
        if part is steps:
            check_pin(node, DATA_DECIDES)
        if part is not region:
            late.update(node.outputs)
            after.add(node.id)
    if not steps and not is_open(graph):
        return Stage(graph, graph, (), None)
    read_late = _reads([*steps, *rest]) | set(graph.outputs)
    made = [out for node in region for out in node.outputs if out in read_late]
    mine = {out for node in rest for out in node.outputs}
    results = [out for out in dict.fromkeys(graph.outputs) if out in mine]
    return Stage(
        graph,
        part_of(graph, "region", region, made) if region else None,
        tuple(steps),
        part_of(graph, "rest", rest, results) if rest else None,
        most_of(graph, steps),
    )


def most_of(graph: Graph, nodes: Iterable[Node]) -> dict[int, int]:
    """Return the most of each result's unknown dimensions, where inference proves any."""
    found: dict[int, int] = {}
    for node in nodes:
        rule = get_op(node.op).most
        is_late = has_late_rank([graph.values[value] for value in node.used])
        if rule is None or is_late:
            continue
        _, most = bounds_of(rule(call_of(graph, node)), graph.symbols)
        if most is not None:
            found |= {out: most for out in node.outputs if UNKNOWN in graph.type(out).shape}
    return found


DATA_DECIDES = "the shape of its result depends on values, so the host runs it"


def check_pin(node: Node, why: str) -> None:
    """Raise PlacementError if a node that the host runs is pinned to a device."""
    if node.pin not in (None, HOST):
        raise PlacementError(
            f"{node.label} is pinned to {node.pin}, which takes static shapes only",
            facts=[why],
            fix="remove the pin",
        )


def _reads(nodes: Iterable[Node]) -> set[int]:
    return {value for node in nodes for value in node.used}


def part_of(graph: Graph, name: str, nodes: Sequence[Node], outputs: Sequence[int]) -> Graph:
    """Return some nodes as a graph; what they read from outside becomes inputs."""
    ids = {node.id for node in nodes}
    made = {out for node in nodes for out in node.outputs}
    read = [value for node in nodes for value in node.used if value not in made]
    inputs = [value for value in dict.fromkeys(read) if not graph.values[value].is_constant]
    values = {v: graph.values[v] for v in (*dict.fromkeys(read), *made)}
    taken: set[str] = set()
    for value in (*inputs, *outputs):
        own = values[value]
        label = own.name if own.name and own.name not in taken else f"{own.name}%{value}"
        taken.add(label)
        values[value] = replace(own, name=label)
    inside = tuple(
        replace(node, after=tuple(other for other in node.after if other in ids)) for node in nodes
    )
    shape = {name for v in values.values() for dim in v.shape for name in symbols_of(dim)}
    symbols = {name: limits for name, limits in graph.symbols.items() if name in shape}
    return Graph(f"{graph.name}.{name}", tuple(inputs), tuple(outputs), inside, values, symbols)


def with_symbols(graph: Graph, most: Mapping[int, int]) -> Graph:
    """Return the graph with a symbol for each unknown dimension of its inputs.

    most: bounds of such dimensions, by the input's id
    """
    types, bounds = [], dict(graph.symbols)
    for value in graph.input_values():
        names = [f"{symbol_name(value.name)}_{axis}" for axis in range(len(value.shape))]
        dims = zip(value.shape, names, strict=True)
        shape = tuple(name if dim == UNKNOWN else dim for dim, name in dims)
        types.append(replace(value.type, shape=shape))
        new = [name for name in shape if isinstance(name, str) and name not in value.shape]
        bounds |= {name: (0, most.get(value.id)) for name in new}
    return retyped(replace(graph, symbols=bounds), types)


def is_planned(type: TensorType) -> bool:
    """Whether memory can be planned for a type: its shape is known, and it is not of strings."""
    return type.is_static and type.dtype != "string"


def is_open(graph: Graph) -> bool:
    """Whether a value of the graph has a shape or a type without planned memory."""
    return not all(is_planned(value.type) for value in graph.values.values())


MOST_REFERENCE_FLOPS = 1 << 20
"""With less work, numpy runs a graph whose shapes come late: compiling takes longer (50 ms)."""


def has_little_work(graph: Graph) -> bool:
    """Whether numpy runs a graph sooner than it is compiled; not if a shape is unknown.

    A graph with a node that is pinned to a device counts as one of much work.
    """
    if is_open(graph) or pinned_inside(graph) is not None:
        return False
    return flops_of(graph) <= MOST_REFERENCE_FLOPS


def flops_of(graph: Graph) -> int:
    """Return the arithmetic of a static graph, an element moved counted as one operation."""
    total = 0
    for node in graph.nodes:
        moved = sum(graph.type(out).elements for out in node.outputs)
        total += moved + get_op(node.op).flops(call_of(graph, node))
    return total


Served = Callable[[Graph], frozenset[int]]
"""Gives the nodes of a graph that may be in a program for every shape."""


def served_nodes(graph: Graph, devices: Mapping[str, object]) -> frozenset[int]:
    """Return the ids of the nodes that a device serves at every shape."""
    device = next((one for one in devices.values() if isinstance(one, PolymorphicDevice)), None)
    if device is None:
        return frozenset()
    return frozenset(
        node.id
        for node in graph.nodes
        if _is_plain(graph, node) and device.polymorphic_reason(graph, node) is None
    )


def _is_plain(graph: Graph, node: Node) -> bool:
    op = get_op(node.op)
    values = [graph.values[value] for value in (*node.used, *node.outputs)]
    return not (
        uses_state(node)
        or op.has_body
        or op.effect
        or node.after
        or node.pin is not None
        or has_late_rank(values)
        or any(UNKNOWN in value.shape or value.dtype == "string" for value in values)
    )


def regions(graph: Graph, served: frozenset[int], join_first: bool = False) -> tuple[Graph, ...]:
    """Return a graph in parts that run in order; none where no node is served, or every one is.

    The first part has the nodes that one program serves, before the first node that none does. The
    second part has such nodes, as far as they do not wait for later ones that are served. All
    others are the third part. What shapes decide is computed in every part that reads it.

    join_first: put the first two parts together, and return none if nothing is left
    """
    waits = _Waits(graph)
    first: list[Node] = []
    between: list[Node] = []
    rest: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] in waits.decided:
            continue
        if waits.on(node, rest) or (node.id in served and waits.on(node, between)):
            rest.append(node)
        elif node.id in served:
            first.append(node)
        else:
            between.append(node)
    if join_first:
        return waits.parts([[*first, *between], rest]) if rest else ()
    if not first or not between:
        return ()
    return waits.parts([first, between, rest] if rest else [first, between])


class _Waits:
    """What nodes of a graph wait for, when shapes decide some values."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self.decided = graph, decided_by_shapes(graph)
        self._sources: dict[int, frozenset[int]] = {}
        for node in graph.nodes:
            if node.outputs[0] in self.decided:
                read = frozenset().union(*(self._source(value) for value in node.used))
                self._sources |= dict.fromkeys(node.outputs, read)

    def _source(self, value: int) -> frozenset[int]:
        """Return the values of a run that a value is, or whose shapes decide it."""
        if self._graph.values[value].is_constant:
            return frozenset()
        return self._sources.get(value, frozenset({value}))

    def on(self, node: Node, others: Sequence[Node]) -> bool:
        """Whether a node waits for one of others."""
        made = {out for other in others for out in other.outputs}
        ids = {other.id for other in others}
        reads = frozenset().union(*(self._source(value) for value in node.used))
        return not made.isdisjoint(reads) or not ids.isdisjoint(node.after)

    def parts(self, groups: Sequence[Sequence[Node]]) -> tuple[Graph, ...]:
        """Return each group of nodes as a graph, with the nodes that compute what shapes decide."""
        graph = self._graph
        whole = [self._with_decided(group) for group in groups]
        outs = [value for value in graph.outputs if value in self.decided]
        if outs:  # the last part makes them
            makers = [node for node in graph.nodes if set(outs).intersection(node.outputs)]
            whole[-1] = self._with_decided([*groups[-1], *makers])
        made: list[Graph] = []
        for k, nodes in enumerate(whole):
            later = {value for others in whole[k + 1 :] for node in others for value in node.used}
            wanted = later | set(graph.outputs)
            own = [out for node in nodes for out in node.outputs]
            decided = self.decided if k + 1 < len(whole) else frozenset[int]()
            results = [out for out in own if out in wanted and out not in decided]
            made.append(part_of(graph, f"region {k}", nodes, results))
        return tuple(made)

    def _with_decided(self, nodes: Sequence[Node]) -> list[Node]:
        """Return nodes in graph order, with those that compute what shapes decide for them."""
        needed = {value for node in nodes for value in node.used}
        ids = {node.id for node in nodes}
        for node in reversed(self._graph.nodes):
            if node.outputs[0] in self.decided and not needed.isdisjoint(node.outputs):
                ids.add(node.id)
                needed.update(node.used)
        return [node for node in self._graph.nodes if node.id in ids]


def check_pins(graph: Graph, optimise: Callable[[Graph], Graph]) -> None:
    """Raise for a node that is pinned to a device although the host has to run it.

    The graph is cut in stages as in a run. Usual sizes stand for those that only a run tells; a
    graph that refuses them is left to its runs.
    Errors: PlacementError
    """
    if pinned_inside(graph) is None:
        return
    rest: Graph | None = graph
    while rest is not None and why_not_closed(rest):
        names = [value.name for value in rest.input_values()]
        try:
            bound = bind_shapes(rest, dict(zip(names, usual_shapes(rest), strict=True)))
            stage = cut(optimise(bound))
            rest = None if stage.rest is None else with_symbols(stage.rest, stage.most)
        except PlacementError:
            raise
        except TriremeError:
            return
