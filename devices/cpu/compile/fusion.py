"""Find nodes that become one kernel: attentions, ops on int8 weights, elementwise chains.

A chain computes in registers what would go through memory. A node joins the chain of its consumer
when the consumer is its only reader and makes an output of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trireme.devices.cpu.kernels.expressions import EXPRESSIONS
from trireme.devices.cpu.kernels.f32.elementwise import (
    MOST_INPUTS,
    Term,
    expression_step,
    node_term,
    term_inputs,
)
from trireme.devices.cpu.kernels.lowering import TABLE, Context, Rule, Step, native_reason
from trireme.devices.cpu.patterns.attention import (
    Attention,
    find_attention,
    find_open_attention,
    with_shared_code,
)
from trireme.devices.cpu.patterns.dynamic_range import chosen_hybrid, lower_levels, lower_product
from trireme.devices.cpu.patterns.moved_assigns import MovedAssign, find_moved_assigns
from trireme.devices.cpu.patterns.stored_products import StoredProduct, find_stored_products
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import is_quantized
from trireme.ir.quantization.dynamic_range import HybridProduct, Levels
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

MOST_NODES = 32
"""Nodes of one chain: LLVM takes longer than linear in a block's length, and a pass over memory
costs little beside 32 ops. Equal pieces of a long chain are one kernel."""

Pattern = Attention | Levels | HybridProduct | StoredProduct | MovedAssign


@dataclass(frozen=True)
class Group:
    """Nodes that become one kernel; the last one, `node`, makes the result."""

    nodes: tuple[Node, ...]
    native: bool
    pattern: Pattern | None = None

    @property
    def node(self) -> Node:
        """The node whose outputs the group leaves behind."""
        return self.nodes[-1]


Reason = Callable[[Graph, Node], str | None]


def patterns_of(context: Context) -> list[Pattern]:
    """Return the patterns that are one kernel."""
    graph = context.graph
    if context.is_open:
        from trireme.devices.cpu.patterns.polymorphic_dynamic_range import find_polymorphic_hybrid

        return [*find_open_attention(graph), *find_polymorphic_hybrid(graph)]
    stored, assigns = find_stored_products(graph), find_moved_assigns(graph)
    return [*with_shared_code(find_attention(graph)), *stored, *assigns, *chosen_hybrid(context)]


def grouped(
    context: Context, found: Sequence[Pattern], reason: Reason = native_reason
) -> Iterator[Group]:
    """Yield the nodes of a graph in groups, each when its last node comes.

    reason: says why a node has no kernel
    """
    graph = context.graph
    pending: dict[int, tuple[Node, ...]] = {}  # chains by the value they make
    patterns = {node.id: one for one in found for node in one.nodes}
    for node in graph.nodes:
        pattern = patterns.get(node.id)
        if pattern is not None:
            for value in node.used:
                if value in pending:
                    yield Group(pending.pop(value), True)
            if node is pattern.nodes[-1]:
                yield Group(pattern.nodes, True, pattern)
            continue
        native = reason(graph, node) is None
        chain: tuple[Node, ...] = (node,)
        if native and _is_expression(graph, node):
            for value in dict.fromkeys(node.used):
                if value in pending:
                    before = pending.pop(value)
                    if _fits(graph, before + chain):
                        chain = before + chain
                    else:
                        yield Group(before, True)
            if _joins_its_reader(graph, node, reason):
                pending[node.outputs[0]] = chain
                continue
        yield Group(chain, native)


def _fits(graph: Graph, chain: Sequence[Node]) -> bool:
    """Whether nodes, and the arrays that they read, are few enough for one kernel."""
    return len(chain) <= MOST_NODES and len(_inputs(graph, chain)) <= MOST_INPUTS


def _is_expression(graph: Graph, node: Node) -> bool:
    """Whether a node is elementwise and works on no stored integers."""
    return node.op in EXPRESSIONS and not is_quantized(graph, node)


def _joins_its_reader(graph: Graph, node: Node, reason: Reason) -> bool:
    """Whether the only reader of a node's result is an elementwise node of the same shape."""
    value = node.outputs[0]
    readers = graph.users(value)
    if graph.is_output(value) or len(readers) != 1 or not _is_expression(graph, readers[0]):
        return False
    reader = readers[0]
    same = graph.type(reader.outputs[0]).shape == graph.type(value).shape
    return same and reason(graph, reader) is None


def _inputs(graph: Graph, nodes: Sequence[Node]) -> tuple[int, ...]:
    """Return the values that a chain reads from memory, in order."""
    made = {node.outputs[0] for node in nodes}
    read = (value for node in nodes for value in term_inputs(graph, node))
    return tuple(dict.fromkeys(value for value in read if value not in made))


def lower_group(context: Context, group: Group) -> Sequence[Step]:
    """Return the steps of a native group."""
    if isinstance(group.pattern, (Attention, StoredProduct, MovedAssign)):
        return group.pattern.lower(context)
    if isinstance(group.pattern, (Levels, HybridProduct)):
        return _lower_hybrid(context, group.pattern)
    if len(group.nodes) == 1:
        return _rule_of(context, group.node).lower(context, group.node)
    return [_chain_step(context, group)]


def _lower_hybrid(context: Context, pattern: Levels | HybridProduct) -> Sequence[Step]:
    if context.is_open:
        from trireme.devices.cpu.patterns import polymorphic_dynamic_range as every_shape

        if isinstance(pattern, Levels):
            return every_shape.levels_steps(context, pattern)
        return every_shape.product_steps(context, pattern)
    if isinstance(pattern, Levels):
        return lower_levels(context, pattern)
    return lower_product(context, pattern)


def _rule_of(context: Context, node: Node) -> Rule:
    """Return the rule that lowers a node."""
    rule: Rule | str | None
    if context.is_open:
        from trireme.devices.cpu.kernels.items import open_rule

        rule = open_rule(context.graph, node)
    else:
        rule = TABLE.find(context.graph, node)
    if not isinstance(rule, Rule):
        raise InternalError(f"{node.label} has no native kernel")
    return rule


def _chain_step(context: Context, group: Group) -> Step:
    """Return the step of a chain of elementwise nodes."""
    name, terms, inputs = chain_terms(context, group)
    nodes = tuple(node.id for node in group.nodes)
    return expression_step(context, name, terms, inputs, group.node.outputs[0], nodes)


def chain_terms(context: Context, group: Group) -> tuple[str, list[Term], tuple[int, ...]]:
    """Return a chain of elementwise nodes as an expression: its name, terms and inputs."""
    inputs = _inputs(context.graph, group.nodes)
    places = {value: ~k for k, value in enumerate(inputs)}
    terms = []
    for k, node in enumerate(group.nodes):
        terms.append(node_term(context.graph, node, places))
        places[node.outputs[0]] = k
    name = "_".join(node.op for node in group.nodes)
    return name if len(name) < 60 else f"chain_of_{len(terms)}", terms, inputs
