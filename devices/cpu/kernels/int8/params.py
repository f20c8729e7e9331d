"""The integers of a product: those of a result of stored bytes, or of float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trireme.ir.graph import Graph, Node
from trireme.ir.op import Call, call_of
from trireme.ops.integer import (
    FloatSumParams,
    LinearParams,
    conv_params,
    float_sum_params,
    fully_connected_params,
    makes_floats,
)

ProductParams = LinearParams | FloatSumParams
_OF_BYTES: Mapping[str, Callable[[Call], LinearParams]] = {
    "conv": conv_params,
    "fully_connected": fully_connected_params,
}


def params_of(graph: Graph, node: Node) -> ProductParams:
    """Return the parameters of a conv or fully_connected on stored integers.

    Errors: GraphError, where it has none
    """
    call = call_of(graph, node)
    return float_sum_params(call) if makes_floats(call) else _OF_BYTES[node.op](call)
