"""loop_invariants: what is the same in every turn moves out of loops, and constants move in.

A capture that is a constant becomes a constant of the body, so that a device packs it once. A
carried value that no turn changes becomes a capture. A node that reads nothing but captures and
constants is computed once, before the loop. So is the product of the rows that turns choose of a
capture: one product of all rows reads the weights once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.ir.op import OpDef, get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ops.repeats import SAFE_FAMILIES, bodies_of, repeat_of, runs_all_turns
from trireme.ops.shapes import to_ints
from trireme.passes.constants import is_repeatable

MOST_ROWS_BYTES = 16 << 20
"""The most bytes of the products of all rows that turns choose from."""
LEAST_READ_BYTES = 256 << 10
"""The least bytes of weights that turns read of a product that moves out of the loop. A task before
the loop takes 0.6 us; 29 turns that read 0.2 MB gain less, 0.5 MB more.
"""
T = TypeVar("T")


def loop_invariants(graph: Graph) -> Rewritten:
    """Move constants into bodies, and invariant nodes out of loops."""
    rules = rules_by_op(
        (_has_body, known_captures),
        (_has_body, steady_states),
        (_has_body, hoisted_nodes),
        (["loop"], hoisted_rows),
        (_has_body, unread_captures),
    )
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


def steady_states(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(s, x), body(t, c) of (f(t, c), c) -> loop(s, x), body(t, c) of f(t, c), c a capture."""
    form = repeat_of(root.attrs)
    if form is None:
        return None
    body, first, made = form.body, form.first, form.made
    starts = zip(root.outputs[: form.carried], root.inputs[first:], strict=False)
    operands = {out: start for out, start in starts if start is not None}
    steady = [
        k
        for k, out in enumerate(root.outputs[: form.carried])
        if body.inputs[first + k] == body.outputs[made + k] and g.type(out) == g.type(operands[out])
    ]
    kept = [out for k, out in enumerate(root.outputs) if k not in steady]
    if not steady or not kept:
        return None
    outputs = [out for k, out in enumerate(body.outputs) if k - made not in steady]
    places = [first + k for k in steady]
    inputs = tuple(_moved_to_end(body.inputs, places))
    attrs = {
        **root.attrs,
        "body": replace(body, inputs=inputs, outputs=tuple(outputs)),
        "carried": form.carried - len(steady),
    }
    quants = [g.type(out).quant for out in kept]
    results = g.add_many(root.op, _moved_to_end(root.inputs, places), attrs, [root], quants)
    moved = dict(zip(kept, results, strict=True))
    return tuple(
        moved[out] if out in moved else _unchanged(g, root, operands[out], out)
        for out in root.outputs
    )


def _moved_to_end(items: Sequence[T], places: Sequence[int]) -> list[T]:
    """Return a list with the items at these places last."""
    stay = [one for place, one in enumerate(items) if place not in places]
    return [*stay, *(items[place] for place in places)]


def _unchanged(g: GraphRewriter, root: Node, value: int, out: int) -> int:
    """Return what stands for an output that is an operand; an output of the graph is made anew."""
    quant = g.type(out).quant
    return g.add("identity", [value], {}, [root], quant) if g.is_output(out) else value


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


def hoisted_rows(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(n, x), body of f(x[t] w) -> loop(n, y) of y = x w, body of f(y[t])."""
    form = repeat_of(root.attrs)
    first, condition = (*root.inputs, None, None)[:2]
    trips = g.data(first)
    if form is None or trips is None:
        return None
    if not runs_all_turns(None if condition is None else g.values[condition], form.body):
        return None
    body, skipped = form.body, len(root.inputs) - len(form.body.inputs)
    places = range(_first_capture(root), len(root.inputs))
    outside = {body.inputs[k - skipped]: root.inputs[k] for k in places}
    turns = to_ints(trips)[0]
    for node in body.nodes:
        chooser = body.producer(node.used[0]) if node.op == "fully_connected" else None
        if chooser is None or not _chooses_a_row(body, chooser, 2 * turns):
            continue
        if turns * body.type(node.used[1]).nbytes < LEAST_READ_BYTES:
            continue
        whole = outside.get(chooser.used[0])
        if whole is None or not _may_take_all(body, node, body.type(chooser.used[0]).dims[0]):
            continue
        product = _product_of_all(g, body, node, whole)
        smaller = _read_row(body, node, chooser, g.type(product))
        return _again(g, root, [*root.inputs, product], {"body": smaller})
    return None


def _chooses_a_row(body: Graph, node: Node, most: int) -> bool:
    """Whether a node gathers one index along the first axis of a value of at most so many rows."""
    if node.op != "gather" or node.attrs["batch_dims"] or body.type(node.used[1]).shape:
        return False
    type = body.type(node.used[0])
    is_first = node.attrs["axis"] in (0, -len(type.shape))
    return type.is_static and is_first and type.dims[0] <= most


def _may_take_all(body: Graph, node: Node, rows: int) -> bool:
    """Whether a product has constant float weights, and the products of all rows are not large."""
    types = [body.type(value) for value in (*node.used, *node.outputs)]
    return (
        all(value is None or body.values[value].is_constant for value in node.inputs[1:3])
        and all(type.quant is None for type in types)
        and rows * types[-1].nbytes <= MOST_ROWS_BYTES
        and not node.after
    )


def _residual(node: Node) -> int | None:
    """Return the residual of a fully_connected."""
    return (*node.inputs, None, None)[3]


def _product_of_all(g: GraphRewriter, body: Graph, node: Node, whole: int) -> int:
    """Add the product of all rows; a residual, and what comes after it, stays in the body."""
    weights = [None if value is None else body.values[value] for value in node.inputs[1:3]]
    operands = [
        None if one is None or one.data is None else g.constant(one.data, one.name)
        for one in weights
    ]
    activation = node.attrs["activation"] if _residual(node) is None else ""
    return g.add("fully_connected", [whole, *operands], {"activation": activation}, [node])


def _read_row(body: Graph, node: Node, chooser: Node, rows: TensorType) -> Graph:
    """Return a body that gets all products, and reads the row of the turn in place of a node."""
    whole, residual, out = max(body.values) + 1, _residual(node), node.outputs[0]
    row = out if residual is None else whole + 1
    one = replace(rows, shape=rows.shape[1:])
    number = max(each.id for each in body.nodes) + 1
    made = [replace(chooser, id=number, inputs=(whole, chooser.used[1]), outputs=(row,))]
    values = {**body.values, whole: Value(whole, "rows", rows)}
    if residual is not None:
        values[row] = Value(row, "row", one)
        attrs = {"activation": node.attrs["activation"]}
        made.append(replace(node, op="add", inputs=(row, residual), attrs=attrs))
    nodes = [new for each in body.nodes for new in (made if each is node else [each])]
    return replace(body, inputs=(*body.inputs, whole), nodes=tuple(nodes), values=values)


def unread_captures(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """loop(.., x), body(.., c) that does not read c -> loop(..), body(..)."""
    form = repeat_of(root.attrs)
    if form is None:
        return None
    body, skipped = form.body, len(root.inputs) - len(form.body.inputs)
    read = {value for node in body.nodes for value in node.used} | set(body.outputs)
    places = range(_first_capture(root), len(root.inputs))
    unread = [k for k in places if body.inputs[k - skipped] not in read]
    if not unread:
        return None
    inputs = [value for k, value in enumerate(body.inputs) if k + skipped not in unread]
    values = {id: one for id, one in body.values.items() if id in read or id in inputs}
    for node in body.nodes:
        values |= {out: body.values[out] for out in node.outputs}
    smaller = replace(body, inputs=tuple(inputs), values=values)
    operands = [value for k, value in enumerate(root.inputs) if k not in unread]
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
