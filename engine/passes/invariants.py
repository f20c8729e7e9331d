"""loop_invariants: what is the same in every turn moves out of loops, and constants move in.

A capture that is a constant becomes a constant of the body, so that a device packs it once. A node
that reads nothing but captures and constants is computed once, before the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trireme.ir.graph import Graph, Node
from trireme.ir.op import OpDef, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.repeats import SAFE_FAMILIES, bodies_of, repeat_of
from trireme.passes.constants import is_repeatable


def loop_invariants(graph: Graph) -> Rewritten:
    """Move constants into bodies, and invariant nodes out of loops."""
    rules = rules_by_op((_has_body, known_captures), (_has_body, hoisted_nodes))
    return apply(graph, rules)


def _has_body(op: OpDef) -> bool:
    return op.has_body


def known_captures(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(.., constant), body(.., c) -> loop(..), body(..) with the constant inside."""
    first = _first_capture(root)
    known = [k for k in range(first, len(root.inputs)) if g.data(root.inputs[k]) is not None]
    if not known:
        return None
    bodies = {key: _with_constants(g, root, body, known) for key, body in bodies_of(root).items()}
    inputs = [value for k, value in enumerate(root.inputs) if k not in known]
    return _again(g, root, inputs, bodies)


def _with_constants(g: GraphRewriter, root: Node, body: Graph, known: list[int]) -> Graph:
    """Return a body in which the captures at these operands are constants."""
    skipped = len(root.inputs) - len(body.inputs)
    outer = {k: g.values[v] for k, v in enumerate(root.inputs) if v is not None}
    mine = {body.inputs[k - skipped]: outer[k] for k in known}
    values = dict(body.values)
    for value, constant in mine.items():
        values[value] = replace(constant, id=value, name=body.values[value].name)
    inputs = tuple(value for value in body.inputs if value not in mine)
    return replace(body, inputs=inputs, values=values)


def hoisted_nodes(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(x), body(s, x) of f(x) and g(s, f(x)) -> loop(x, f(x)), body(s, x, y) of g(s, y)."""
    form = repeat_of(root.attrs)
    if form is None or g.is_quantized(root):
        return None
    body, first = form.body, _first_capture(root)
    skipped = len(root.inputs) - len(body.inputs)
    outside: dict[int, int | None] = {
        value: root.inputs[k + skipped]
        for k, value in enumerate(body.inputs)
        if k + skipped >= first
    }
    moved = []
    for node in body.nodes:
        if _is_invariant(body, node, outside):
            moved.append(node)
            outside |= dict(zip(node.outputs, _computed(g, body, node, outside), strict=True))
    if not moved:
        return None
    left = [node for node in body.nodes if node not in moved]
    read = {value for node in left for value in node.used} | set(body.outputs)
    made = [value for node in moved for value in node.outputs if value in read]
    used = read | {*body.inputs, *made} | {value for node in left for value in node.outputs}
    smaller = replace(
        body,
        inputs=(*body.inputs, *made),
        nodes=tuple(left),
        values={id: value for id, value in body.values.items() if id in used},
    )
    operands = [*root.inputs, *[None] * (first - len(root.inputs)), *(outside[v] for v in made)]
    return _again(g, root, operands, {"body": smaller})


def _first_capture(root: Node) -> int:
    """Return which operand is the first capture."""
    form = repeat_of(root.attrs)
    return 1 if form is None else form.first + form.carried + len(form.slices)


def _is_invariant(body: Graph, node: Node, outside: Mapping[int, int | None]) -> bool:
    """Whether a node may be computed before the loop, even where the loop has no turn."""
    op = get_op(node.op)
    reads = [value for value in node.used if not body.values[value].is_constant]
    if not reads or not all(value in outside for value in reads):
        return False
    if op.has_body or op.effect or node.after or not is_repeatable(node.op):
        return False
    floats = all(body.type(value).dtype.startswith(("float", "bfloat")) for value in reads)
    cannot_fail = op.elementwise or op.family in SAFE_FAMILIES
    plain = all(body.type(value).quant is None for value in (*node.used, *node.outputs))
    return floats and cannot_fail and plain


def _computed(
    g: GraphRewriter, body: Graph, node: Node, outside: Mapping[int, int | None]
) -> tuple[int, ...]:
    """Add a node of a body to the graph around it; return its outputs."""
    inputs: list[int | None] = []
    for value in node.inputs:
        data = None if value is None else body.values[value].data
        if value is None or data is None:
            inputs.append(None if value is None else outside[value])
        else:
            inputs.append(g.constant(data, body.values[value].name))
    return g.add_many(node.op, inputs, node.attrs, [node], [None] * len(node.outputs))


def _again(
    g: GraphRewriter, root: Node, inputs: list[int | None], bodies: Mapping[str, Graph]
) -> tuple[int, ...]:
    quants = [g.type(out).quant for out in root.outputs]
    return g.add_many(root.op, inputs, {**root.attrs, **bodies}, [root], quants)
