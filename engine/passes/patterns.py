"""patterns: activations, normalisations and softmax written out in small ops become one op.

Float only. The one op computes the same formula; results differ by the rounding of the steps it
leaves out.
"""

from __future__ import annotations

import math

from trireme.ir.graph import Graph, Node
from trireme.ir.op import has_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import Rewritten, apply, rules_by_op
from trireme.passes.algebra import (
    Clamp,
    Factors,
    clamp,
    clamp_before,
    clamp_of,
    close,
    polynomial,
    product,
)
from trireme.passes.normalise import NORMALISE

SQRT_HALF = math.sqrt(0.5)
SQRT_2_PI = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715
TANH_FORM = {1: SQRT_2_PI, 3: SQRT_2_PI * GELU_CUBE}
"""0.5 x (1 + tanh(this)). Source: Hendrycks and Gimpel, Gaussian Error Linear Units"""


def patterns(graph: Graph) -> Rewritten:
    """Make one op of GELU, swish, hard swish, mish, softplus, norms, softmax."""
    return apply(graph, PATTERNS)


def _two_factors(g: GraphRewriter, root: Node) -> tuple[Factors, list[tuple[int, int]]] | None:
    """Return a product of a number and two values, and the values in both orders."""
    if root.attrs.get("activation") or g.is_quantized(root):
        return None
    found = product(g, root)
    if len(found.leaves) != 2:
        return None
    a, b = found.leaves
    return found, [(a, b), (b, a)]


def gelu(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) -> gelu(x)."""
    factors = _two_factors(g, root)
    if factors is None:
        return None
    found, orders = factors
    for x, rest in orders:
        outer = polynomial(g, rest, root)
        inner = g.made_by(outer.base, root, "erf", "tanh")
        if inner is None or g.is_quantized(inner):
            continue
        half = 0.5 / found.number if found.number else math.nan
        arg = polynomial(g, inner.used[0], root, stop=x)
        wanted = {1: SQRT_HALF} if inner.op == "erf" else TANH_FORM
        if arg.base == x and arg.is_close(wanted) and outer.is_close({0: half, 1: half}):
            nodes = [*arg.nodes, inner, *outer.nodes, *found.nodes]
            approximate = "none" if inner.op == "erf" else "tanh"
            return (g.add("gelu", [x], {"approximate": approximate}, nodes),)
    return None


def swish(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x sigmoid(alpha x) -> swish(x)."""
    factors = _two_factors(g, root)
    if factors is None or factors[0].number != 1.0:
        return None
    for x, rest in factors[1]:
        gate = g.only_for(rest, root, "sigmoid")
        if gate is None or g.is_quantized(gate):
            continue
        arg = polynomial(g, gate.used[0], root, stop=x)
        if arg.base == x and set(arg.coefs) == {1}:
            nodes = [*arg.nodes, gate, *factors[0].nodes]
            return (g.add("swish", [x], {"alpha": arg.coefs[1]}, nodes),)
    return None


def mish(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x tanh(softplus(x)) -> mish(x)."""
    factors = _two_factors(g, root)
    if factors is None or factors[0].number != 1.0 or not has_op("mish"):
        return None
    for x, rest in factors[1]:
        outer = g.only_for(rest, root, "tanh")
        inner = g.made_by(outer.used[0], root, "softplus") if outer else None
        if outer and inner and inner.used[0] == x:
            return (g.add("mish", [x], {}, [inner, outer, *factors[0].nodes]),)
    return None


def hard_swish(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """x clip(x + 3, 0, 6) / 6, or x hard_sigmoid(x) with slope 1/6 -> hard_swish(x)."""
    factors = _two_factors(g, root)
    if factors is None:
        return None
    found, orders = factors
    for x, rest in orders:
        gate = _hard_gate(g, x, rest, found.number, root)
        if gate is not None:
            return (g.add("hard_swish", [x], {}, [*gate, *found.nodes]),)
    return None


def _hard_gate(g: GraphRewriter, x: int, rest: int, number: float, root: Node) -> list[Node] | None:
    """Return the nodes that make `rest` if number * rest is clip(x / 6 + 1/2, 0, 1)."""
    node = g.made_by(rest, root, "hard_sigmoid")
    if node is not None:
        same = close(node.attrs["alpha"], 1 / 6) and close(node.attrs["beta"], 0.5)
        return [node] if same and number == 1.0 and node.used[0] == x else None
    found = clamp(g, rest, root, stop=x)
    slope = _slope(found, number) if found else None
    if found is None or slope is None or found.inner.base != x:
        return None
    return list(found.nodes) if close(slope[0], 1 / 6) and close(slope[1], 0.5) else None


def _slope(found: Clamp, number: float) -> tuple[float, float] | None:
    """Return (a, b) if number * clamp is clip(a x + b, 0, 1)."""
    if found.low != 0.0 or not close(found.high * number, 1.0) or 1 not in found.inner.coefs:
        return None
    if not set(found.inner.coefs) <= {0, 1}:
        return None
    return found.inner.coefs[1] * number, found.inner.coefs.get(0, 0.0) * number


def hard_sigmoid(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """clip(a x + b, 0, 1), or clip(x + 3, 0, 6) / 6 -> hard_sigmoid(x)."""
    if g.is_quantized(root):
        return None
    if root.op == "clip":
        found, number, nodes = clamp_of(g, root, root), 1.0, list[Node]()
    else:
        if root.attrs.get("activation"):
            return None
        factors = product(g, root)
        if len(factors.leaves) != 1:
            return None
        leaf = factors.leaves[0]
        if g.only_for(leaf, root, *clamp_before(g, leaf), "add") is None:
            return None
        found, number, nodes = clamp(g, factors.leaves[0], root), factors.number, factors.nodes
    slope = _slope(found, number) if found else None
    if (
        found is None
        or slope is None
        or found.inner.base is None
        or len(found.nodes) + len(nodes) < 2
    ):
        return None
    attrs = {"alpha": slope[0], "beta": slope[1]}
    return (g.add("hard_sigmoid", [found.inner.base], attrs, [*found.nodes, *nodes]),)


def softplus(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """log(exp(x) + 1) -> softplus(x)."""
    outer = polynomial(g, root.used[0], root)
    inner = g.made_by(outer.base, root, "exp")
    if inner is None or not outer.is_close({0: 1.0, 1: 1.0}) or g.is_quantized(root):
        return None
    return (g.add("softplus", [inner.used[0]], {}, [inner, *outer.nodes, root]),)


PATTERNS = rules_by_op(
    (["mul", "div"], gelu),
    (["mul"], swish),
    (["mul"], mish),
    (["mul", "div"], hard_swish),
    (["mul", "div", "clip"], hard_sigmoid),
    (["log"], softplus),
    *NORMALISE,
)
