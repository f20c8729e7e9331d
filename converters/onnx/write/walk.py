"""Write each node of a Graph by its rule, collect every refusal, and put the model together."""

from __future__ import annotations

from typing import Any

import onnx

from trireme.converters.onnx.write.names import OnnxNames
from trireme.converters.onnx.write.table import OPSET, rule_of
from trireme.converters.onnx.write.use import WrittenNode, onnx_dtype
from trireme.ir.graph import UNKNOWN, Graph, Value
from trireme.support.errors import ConvertError
from trireme.version import __version__

_IR_VERSION = 11
"""The oldest version of the file that may hold OPSET."""
_MOST_BYTES = (1 << 31) - 1


def export(graph: Graph) -> bytes:
    """Return the ONNX file of a graph, of opset OPSET.

    Quantised values are QuantizeLinear and DequantizeLinear around the float operator. Symbols are
    named dimensions. Bounds of symbols and pins have no form in ONNX and are left out.

    Errors: ConvertError, naming every node that cannot be written and why; or if the file would
        reach 2 GiB
    """
    names = OnnxNames(graph)
    refused = [why for node in graph.nodes if (why := _written(WrittenNode(names, node)))]
    if refused:
        raise ConvertError(
            f"{graph.name}: {len(refused)} of {len(graph.nodes)} nodes have no form in ONNX",
            facts=refused,
        )
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            names.nodes,
            graph.name,
            [_info(value, value.name) for value in graph.input_values()],
            _outputs(names),
            names.initializers,
        ),
        opset_imports=_opsets(names),
        producer_name="trireme",
        producer_version=__version__,
        ir_version=_IR_VERSION,
    )
    if model.ByteSize() > _MOST_BYTES:
        raise ConvertError(f"{graph.name}: the ONNX file would hold 2 GiB or more")
    return bytes(model.SerializeToString(deterministic=True))


def _opsets(names: OnnxNames) -> list[Any]:
    """Return the opset of ONNX, and of each further domain that a node is of."""
    further = sorted({node.domain for node in names.nodes} - {""})
    opsets = [("", OPSET), *((domain, 1) for domain in further)]
    return [onnx.helper.make_opsetid(*one) for one in opsets]


def _written(use: WrittenNode) -> str:
    """Write a node; return the reason where it cannot be written."""
    try:
        rule = rule_of(use.node.op)
        if rule is None:
            raise use.error("no operator of ONNX has this meaning")
        if use.is_channels_last and len(use.node.outputs) > 1:
            raise use.error("NHWC with several outputs")
        for id, name in zip(use.node.outputs, rule(use), strict=True):
            use.names.bind(id, name, use.is_channels_last)
    except ConvertError as error:
        for id in use.node.outputs:
            use.names.bind_nothing(id)
        known = error.summary.startswith(use.label)
        return error.summary if known else f"{use.label}: {error.summary}"
    return ""


def _outputs(names: OnnxNames) -> list[Any]:
    """Return the types of the outputs; an output that no node makes gets an Identity."""
    graph, found, given = names.graph, [], set(graph_names(names.graph))
    for id in graph.outputs:
        name, value = names.stored(id), graph.values[id]
        if name in given or value.is_constant:
            (name,) = names.emit("Identity", [name], value.name)
        given.add(name)
        found.append(_info(value, name))
    return found


def graph_names(graph: Graph) -> list[str]:
    """Return the names of the inputs."""
    return [value.name for value in graph.input_values()]


def _info(value: Value, name: str) -> Any:
    shape = [None if dim == UNKNOWN else dim for dim in value.shape]
    return onnx.helper.make_tensor_value_info(name, onnx_dtype(value.dtype), shape)
