"""narrow_bodies: bodies of control flow learn the shapes of what they are given.

A carried value whose shape changes from turn to turn keeps its dimensions unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import UNKNOWN, Graph, Node, TensorType
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.ir.verify import check
from trireme.ops.repeats import Repeat, body_types, repeat_of
from trireme.support.errors import ShapeError

Types = Sequence[TensorType]


def narrow_bodies(graph: Graph) -> Rewritten:
    """Give bodies the types of their operands, where these say more than the bodies know."""
    return apply(graph, rules_by_op((lambda op: op.has_body, known_operands)))


def known_operands(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """op(x float32[4], body of x float32[?]) -> the same with a body of x float32[4]."""
    form = repeat_of(root.attrs)
    values = root.inputs[1 if form is None else form.first :]
    given = [g.type(value) for value in values if value is not None]
    try:
        attrs = narrowed(root.attrs, given)
    except ShapeError:  # a branch that is never taken may refuse the shapes
        return None
    if attrs is root.attrs:
        return None
    quants = [g.type(out).quant for out in root.outputs]
    return g.add_many(root.op, root.inputs, attrs, [root], quants)


def narrowed(attrs: Mapping[str, Any], given: Types) -> Mapping[str, Any]:
    """Return the attributes of a node with bodies of the types that it is given; the same if known.

    given: the types of its operands but for condition and trip count
    Errors: ShapeError, if a body refuses the types
    """
    form, types = repeat_of(attrs), body_types(attrs, given)
    if form is not None:
        bodies = {"body": settled(form, types, body_of)}
    else:
        branches = {k: v for k, v in attrs.items() if isinstance(v, Graph)}
        bodies = {key: body_of(body, types) for key, body in branches.items()}
    if all(attrs[key] is body for key, body in bodies.items()):
        return attrs
    return {**attrs, **bodies}


def settled(form: Repeat, given: Types, bound: Callable[[Graph, Types], Graph]) -> Graph:
    """Return the body of carried values whose types are the same from turn to turn.

    given: the types of the inputs in the first turn
    bound: returns a body whose inputs have these types
    """
    types, end = list(given), form.first + form.carried
    while True:
        made = bound(form.body, types)
        before = types[form.first : end]
        after = [made.type(out) for out in made.outputs[form.made : form.made + form.carried]]
        wider = [_widened(old, new) for old, new in zip(before, after, strict=True)]
        if wider == before:
            return made
        types[form.first : end] = wider


def _widened(old: TensorType, new: TensorType) -> TensorType:
    if not (old.has_rank and new.has_rank) or len(old.shape) != len(new.shape):
        raise ShapeError(f"a carried value is {old} before a turn and {new} after it")
    dims = (a if a == b else UNKNOWN for a, b in zip(old.shape, new.shape, strict=True))
    return TensorType(tuple(dims), old.dtype, old.quant)


def body_of(body: Graph, given: Types) -> Graph:
    """Return a body whose inputs have these types; the body itself where it knows them.

    Errors: ShapeError, if a node of it refuses them
    """
    known = [body.type(value) for value in body.inputs]
    if all(map(_says_no_more, given, known)):
        return body
    return check(narrow_bodies(retyped(body, given)).graph)


def _says_no_more(given: TensorType, known: TensorType) -> bool:
    if not given.has_rank:
        return True
    if not known.has_rank:
        return False
    pairs = zip(given.shape, known.shape, strict=True)
    return all(new == old or not isinstance(new, int) for new, old in pairs)
