"""The float graph that is quantised: checked, folded, clamps fused into the nodes before them."""

from __future__ import annotations

from trireme.ir.bind_shapes import Shapes, bind_shapes
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.rules import rewritten, rules_by_op
from trireme.passes.algebra import clamp_limits, is_clamp, name_of_clamp
from trireme.passes.fusion import activation_into, fuse_activation, fuse_residual
from trireme.passes.pipeline import optimise
from trireme.support.errors import GraphError

FLOAT_ONLY = (fuse_residual.__name__, fuse_activation.__name__)
"""Passes whose result integers cannot express: a third operand, an activation that is no clamp."""


def prepare(graph: Graph, shapes: Shapes | None) -> Graph:
    """Return the graph with constants, batch norms, pads and clamps folded.

    Errors: GraphError, if the graph is quantised already, has open shapes, bodies or states, or
        computes no floats
    """
    graph = bind_shapes(graph, shapes or {})
    _check(graph)
    folded = optimise(graph, disable=FLOAT_ONLY)
    clamped = rewritten(folded, rules_by_op((lambda op: is_clamp(op.name), _clamp_into)))
    _check_shapes(clamped)
    return optimise(clamped, disable=FLOAT_ONLY)


def _clamp_into(g: GraphRewriter, root: Node) -> tuple[int] | None:
    """relu(conv(x)) -> conv(x) with activation relu; other activations stay nodes."""
    return activation_into(g, root) if name_of_clamp(clamp_limits(g, root)) else None


def _check(graph: Graph) -> None:
    for value in graph.values.values():
        if value.quant is not None:
            raise GraphError(
                f"the model is quantised already: '{value.first_name}' is {value.type}",
                fix="quantise the float model that it was made from",
            )
    for node in graph.nodes:
        op = get_op(node.op)
        if node.op.endswith("quantize_linear"):
            raise GraphError(
                f"the model is quantised already: it has the node {node.label}",
                fix="quantise the float model that it was made from",
            )
        if op.is_host_only:
            what = "a body" if op.has_body else "an effect" if op.effect else "a Python function"
            raise GraphError(
                f"{node.label} has {what}, whose values have no ranges that hold for every run",
                fix="quantise the part of the model without control flow and states",
            )
    check_inputs(graph)


def check_inputs(graph: Graph) -> None:
    """Raise GraphError where an input has an open shape."""
    for value in graph.input_values():
        if not value.type.is_static:
            example = ",".join(str(d) if isinstance(d, int) else "1" for d in value.shape)
            raise GraphError(
                f"input '{value.name}' {value.type} has an open shape, and ranges and scales are "
                "those of one shape",
                fix=f"give its shape: shapes={{'{value.name}': ({example})}}, or --shape "
                f"{value.name}={example}",
            )


def _check_shapes(graph: Graph) -> None:
    for node in graph.nodes:
        for out in node.outputs:
            if not graph.type(out).is_static:
                raise GraphError(
                    f"{node.label} makes {graph.type(out)}, whose shape only a run can tell",
                    fix="quantise the part of the model before it",
                )
