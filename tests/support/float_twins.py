"""The float model that a model of integers stands for, where no float file of it is published."""

from dataclasses import replace

from trireme.ir.graph import Graph, TensorType
from trireme.ops.integer.types import dequantized


def float_twin(graph):
    """Return the graph with float32 in place of quantised values, and no quantize nodes.

    Constants keep the numbers that their integers mean, so the error of rounded weights is none.
    """
    values = {id: _float_value(value) for id, value in graph.values.items()}
    same, nodes = {}, []
    for node in graph.nodes:
        inputs = tuple(same.get(id, id) for id in node.inputs)
        if node.op == "quantize":
            same[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
    outputs = tuple(same.get(id, id) for id in graph.outputs)
    return Graph(graph.name, graph.inputs, outputs, tuple(nodes), values)


def _float_value(value):
    if value.quant is None:
        return value
    data = None if value.data is None else dequantized(value.data, value.type)
    return replace(value, type=TensorType(value.shape, "float32"), data=data)
