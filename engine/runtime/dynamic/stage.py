"""Cut a graph at the values whose shapes only a run can tell.

The inputs of the graph have static shapes. Nodes whose results are static too make up the region,
which is placed, planned and compiled like any graph. Nodes that read static values and make others
are the steps: the host runs them (non_zero, nms, a reshape to computed sizes, strings). All later
nodes wait in the rest, a graph whose inputs get their shapes from the arrays of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from trireme.backend.device import HOST
from trireme.ir.any_rank import has_late_rank
from trireme.ir.bind_shapes import retyped
from trireme.ir.dims import bounds_of, symbol_name, symbols_of
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType
from trireme.ir.op import call_of, get_op
from trireme.ops.repeats import pinned_inside
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass


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
