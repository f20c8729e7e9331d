"""Read arithmetic from a graph: polynomials with constant coefficients, products, clamps.

Exporters write x * 0.5 * (1 + erf(x / 1.414)) in a dozen forms. The patterns compare the computed
polynomial or product, instead of listing the forms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from trireme.ir.graph import Node
from trireme.ir.op import all_ops, get_op, has_op
from trireme.ir.rewriter import GraphRewriter
from trireme.support.records import dataclass

ARITHMETIC = ("add", "sub", "mul", "div", "pow", "neg")
CLOSE = 1e-4
"""Relative difference up to which a model's constant equals a formula's."""
MAX_DEPTH = 12
MAX_POWER = 4


@dataclass(frozen=True)
class Polynomial:
    """sum of coefs[n] * base ** n, and the nodes that compute it; a constant has no base."""

    base: int | None
    coefs: Mapping[int, float]
    nodes: tuple[Node, ...] = ()

    def is_close(self, coefs: Mapping[int, float]) -> bool:
        """Whether the coefficients are those given."""
        mine = {power: c for power, c in self.coefs.items() if c}
        return mine.keys() == coefs.keys() and all(close(mine[n], coefs[n]) for n in coefs)


def close(a: float, b: float) -> bool:
    """Whether a model's constant equals b, within CLOSE."""
    return math.isclose(a, b, rel_tol=CLOSE)


def scalar(g: GraphRewriter, value: int | None) -> float | None:
    """Return the number in a constant of one element, None for any other value."""
    data = g.data(value)
    if data is None or data.size != 1 or data.dtype.kind not in "fiu":
        return None
    if value is not None and g.type(value).quant is not None:
        return None
    return float(data.reshape(()))


def polynomial(
    g: GraphRewriter, value: int, root: Node, stop: int | None = None, depth: int = 0
) -> Polynomial:
    """Return a value as a polynomial of `stop`.

    Without `stop` the base is where arithmetic begins, or a value with other readers.
    """
    itself = Polynomial(value, {1: 1.0})
    number = scalar(g, value)
    if number is not None:
        return Polynomial(None, {0: number})
    node = g.made_by(value, root, *ARITHMETIC)
    if value == stop or node is None or depth > MAX_DEPTH or g.is_quantized(node):
        return itself
    if stop is None and depth and g.uses(value) > 1:
        return itself
    if node.attrs.get("activation") or g.type(value).dtype not in ("float32", "float64", "float16"):
        return itself
    operands = [polynomial(g, i, root, stop, depth + 1) for i in node.used]
    bases = {p.base for p in operands if p.base is not None}
    if len(bases) != 1:
        return itself
    coefs = _combined(node.op, [p.coefs for p in operands])
    if coefs is None or max(coefs) > MAX_POWER:
        return itself
    nodes = dict.fromkeys(n for p in operands for n in p.nodes)
    return Polynomial(bases.pop(), coefs, (*nodes, node))


def _combined(op: str, operands: list[Mapping[int, float]]) -> Mapping[int, float] | None:
    """Return the coefficients of op(operands); None when the result is no polynomial."""
    if op == "neg":
        return _scaled(operands[0], -1.0)
    a, b = operands
    if op in ("add", "sub"):
        b = _scaled(b, -1.0 if op == "sub" else 1.0)
        return {n: a.get(n, 0.0) + b.get(n, 0.0) for n in {*a, *b}}
    if op == "mul":
        return _product(a, b)
    if set(b) != {0}:  # division by, or a power of, a value that is not a number
        return None
    if op == "div":
        return _scaled(a, 1.0 / b[0]) if b[0] else None
    if b[0] not in (1.0, 2.0, 3.0):
        return None
    power = a
    for _ in range(int(b[0]) - 1):
        power = _product(power, a)
    return power


def _scaled(a: Mapping[int, float], factor: float) -> dict[int, float]:
    return {n: c * factor for n, c in a.items()}


def _product(a: Mapping[int, float], b: Mapping[int, float]) -> dict[int, float]:
    out: dict[int, float] = {}
    for n, c in a.items():
        for m, d in b.items():
            out[n + m] = out.get(n + m, 0.0) + c * d
    return out


@dataclass
class Factors:
    """number * leaves[0] * leaves[1] ..., and the nodes that compute it."""

    number: float = 1.0
    leaves: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def product(g: GraphRewriter, root: Node) -> Factors:
    """Return the factors of a tree of mul and of div by a number, read by the root alone."""
    found = Factors()
    _factors(g, root, root, found, 0)
    return found


def _factors(g: GraphRewriter, node: Node, root: Node, found: Factors, depth: int) -> None:
    for position, value in enumerate(node.used):
        number = scalar(g, value)
        inner = g.only_for(value, root, "mul", "div") if depth < MAX_DEPTH else None
        if number is not None:
            found.number = _times(found.number, number, node.op == "div" and position == 1)
        elif node.op == "div" and position == 1:
            found.number = math.nan  # a quotient, which is close to no formula
        elif inner is not None and not inner.attrs.get("activation") and not g.is_quantized(inner):
            _factors(g, inner, root, found, depth + 1)
        else:
            found.leaves.append(value)
    found.nodes.append(node)


def _times(a: float, b: float, divide: bool) -> float:
    if not divide:
        return a * b
    return a / b if b else math.nan


@dataclass(frozen=True)
class Clamp:
    """min(max(inner, low), high) of a polynomial, and the nodes that compute it."""

    low: float
    high: float
    inner: Polynomial
    nodes: tuple[Node, ...]


def clamp(g: GraphRewriter, value: int, root: Node, stop: int | None = None) -> Clamp | None:
    """Return the clamp that makes a value: a clip, a relu or an op's own activation."""
    node = g.made_by(value, root, *clamp_before(g, value), "add", "sub", "mul")
    return clamp_of(g, node, root, stop) if node else None


def clamp_of(g: GraphRewriter, node: Node, root: Node, stop: int | None = None) -> Clamp | None:
    """Return the clamp of a node, None when the node is none."""
    limits = None if g.is_quantized(node) else clamp_limits(g, node)
    if limits is None:
        return None
    if is_clamp(node.op):
        inner = polynomial(g, node.used[0], root, stop, depth=1)
        return Clamp(*limits, inner, (*inner.nodes, node))
    operands = [polynomial(g, i, root, stop, depth=1) for i in node.used]
    bases = {p.base for p in operands if p.base is not None}
    coefs = _combined(node.op, [p.coefs for p in operands])
    if len(bases) != 1 or coefs is None:
        return None
    nodes = (*dict.fromkeys(n for p in operands for n in p.nodes), node)
    return Clamp(*limits, Polynomial(bases.pop(), coefs, nodes), nodes)


def is_clamp(op: str) -> bool:
    """Whether an op clamps its input: clip, or an op with the trait `clamp`."""
    return op == "clip" or get_op(op).clamp is not None


def clamp_before(g: GraphRewriter, value: int | None) -> tuple[str, ...]:
    """Return the op that makes a value if it is a clamp, as an argument of `made_by`."""
    node = g.producer(value)
    return (node.op,) if node is not None and is_clamp(node.op) else ()


def named_clamp(name: str) -> tuple[float, float] | None:
    """Return the limits of an activation, None where it is no clamp."""
    return get_op(name).clamp if has_op(name) else None


def name_of_clamp(limits: tuple[float, float] | None) -> str | None:
    """Return the activation that clamps to the limits, None where there is none."""
    return next((op.name for op in all_ops() if limits and op.clamp == limits), None)


def clamp_limits(g: GraphRewriter, node: Node) -> tuple[float, float] | None:
    """Return (low, high) of a relu, of a clip by numbers, or of an activation that clamps."""
    if node.op != "clip":
        return named_clamp(node.op) or named_clamp(node.attrs.get("activation", ""))
    limits = [-math.inf, math.inf]
    for position, value in enumerate(node.inputs[1:]):
        if value is not None:
            number = scalar(g, value)
            if number is None:
                return None
            limits[position] = number
    return limits[0], limits[1]
