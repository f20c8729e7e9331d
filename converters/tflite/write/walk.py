"""Write each node of a Graph by its rule, collect every refusal, and lay the file out."""

from __future__ import annotations

from trireme.converters.tflite.write.activations import ACTIVATIONS
from trireme.converters.tflite.write.flat import file_bytes
from trireme.converters.tflite.write.float_sums import without_float_sums
from trireme.converters.tflite.write.hybrid import with_hybrid_products
from trireme.converters.tflite.write.table import RULES
from trireme.converters.tflite.write.tensors import WrittenTensors
from trireme.converters.tflite.write.use import NodeWriter
from trireme.ir.graph import Graph
from trireme.passes.pipeline import optimise
from trireme.support.errors import ConvertError


def export(graph: Graph) -> bytes:
    """Return the TensorFlow Lite file of a graph.

    A graph that has no form as it is, one with NCHW nodes say, is written as the passes leave it.
    Symbols are open dimensions. Bounds of symbols and pins have no form and are left out.

    Errors: ConvertError, naming every node that cannot be written and why; or if the file would
        reach 2 GiB
    """
    graph = without_float_sums(graph)
    tensors, refused = _written(graph)
    if refused:
        graph = optimise(graph)
        tensors, refused = _written(graph)
    if refused:
        raise ConvertError(
            f"{graph.name}: {len(refused)} of {len(graph.nodes)} nodes have no form in "
            "TensorFlow Lite",
            facts=refused,
        )
    _add_outputs(tensors)
    return file_bytes(tensors.file)


def _written(graph: Graph) -> tuple[WrittenTensors, list[str]]:
    """Return the tensors and operators of a graph, and the reasons of its refused nodes."""
    hybrid = with_hybrid_products(graph, ACTIVATIONS)
    graph, tensors = hybrid.graph, WrittenTensors(hybrid.graph, hybrid.symmetric)
    reasons = [_node(NodeWriter(tensors, node)) for node in graph.nodes]
    return tensors, [reason for reason in reasons if reason]


def _node(use: NodeWriter) -> str:
    """Write a node; return the reason where it cannot be written."""
    try:
        rule = RULES.get(use.node.op)
        if any(isinstance(value, Graph) for value in use.node.attrs.values()):
            raise use.error("subgraphs, which its bodies would be, are not written")
        if rule is None:
            raise use.error("no operator of TensorFlow Lite has this meaning")
        rule(use)
    except ConvertError as error:
        known = error.summary.startswith(use.label)
        return error.summary if known else f"{use.label}: {error.summary}"
    return ""


def _add_outputs(tensors: WrittenTensors) -> None:
    """Name the outputs; one that no node makes, or that comes twice, gets a copy."""
    given: set[int] = set()
    for id in tensors.graph.outputs:
        tensor = tensors.of(id)
        if tensor in given or id in tensors.graph.inputs or tensors.graph.values[id].is_constant:
            tensor = tensors.copied(tensor)
        given.add(tensor)
        tensors.file.outputs.append(tensor)
