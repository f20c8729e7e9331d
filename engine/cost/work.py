"""The work of nodes: arithmetic, bytes, classes, and kernels of a device without its own."""

from __future__ import annotations

from collections.abc import Hashable

from trireme.backend.device import Device, DeviceSpec, KernelCost
from trireme.ir.graph import Graph, Node
from trireme.ir.interpreter import is_quantized
from trireme.ir.op import call_of, get_op
from trireme.support.records import dataclass


@dataclass(frozen=True)
class Work:
    """The work of a node on any device: arithmetic operations and bytes read and written."""

    kind: str
    dtype: str
    flops: int
    nbytes: int

    @property
    def terms(self) -> dict[str, float]:
        """The amounts, by the names of a curve's terms."""
        return {"flops": float(self.flops), "bytes": float(self.nbytes)}


def work_of(graph: Graph, node: Node) -> Work:
    """Return the work of a node of static types."""
    op, call = get_op(node.op), call_of(graph, node)
    values = {*node.used, *node.outputs}
    nbytes = sum(graph.type(value).nbytes for value in values)
    dtype = graph.type(node.used[0]).dtype if node.used else graph.type(node.outputs[0]).dtype
    return Work(_kind(graph, node, op.family), dtype, op.flops(call), nbytes)


def node_signature(graph: Graph, node: Node) -> Hashable:
    """Return a key for nodes that take the same time: op, types and attributes."""
    types = tuple(str(graph.type(value)) for value in (*node.used, *node.outputs))
    return node.op, types, repr(sorted(node.attrs.items()))


def reference_classes(graph: Graph, node: Node) -> tuple[str, str]:
    """Return the classes of a node on the numpy reference, the narrower first: its op, its family.

    Quantised arithmetic is a class of its own. For ops that only move data, all integers share a
    class.
    """
    op = get_op(node.op)
    form = " quantised" if is_quantized(graph, node) and not op.moves else ""
    return f"op {op.name}{form}", f"family {op.family}{form}"


def _kind(graph: Graph, node: Node, family: str) -> str:
    """Return the op family; depthwise convolution has its own, because it is bandwidth-bound."""
    if node.op == "conv" and node.attrs["groups"] > 1:
        return "depthwise"
    return family


def roofline_s(work: Work, spec: DeviceSpec) -> float:
    """Return the seconds of the larger of compute and memory traffic.

    Source: Williams, Waterman, Patterson, "Roofline" (2009)
    """
    rate = spec.flops.get(work.dtype) or min(spec.flops.values(), default=1e9)
    return max(work.flops / rate, work.nbytes / spec.bandwidth)


def generic_works(graph: Graph) -> list[KernelCost]:
    """Return each node as a kernel of its own, for a device that does not describe its kernels."""
    rows = [(node, work_of(graph, node)) for node in graph.nodes]
    return [KernelCost((node.id,), f"{w.kind}/{w.dtype}", w.terms) for node, w in rows]


def supported_part(graph: Graph, device: Device) -> Graph:
    """Return the nodes that a device runs with kernels, as a graph; the graph itself if all.

    Values of other nodes are inputs of the part, and values that other nodes read are outputs.
    """
    mine = [
        node
        for node in graph.nodes
        if device.unsupported_reason(graph, node) is None and not device.kernel_note(graph, node)
    ]
    if len(mine) == len(graph.nodes):
        return graph
    made = {value for node in mine for value in node.outputs}
    inside = {node.id for node in mine}
    used = dict.fromkeys(value for node in mine for value in node.used)
    inputs = [v for v in used if v not in made and not graph.values[v].is_constant]
    outputs = [
        value
        for value in made
        if graph.is_output(value) or any(user.id not in inside for user in graph.users(value))
    ]
    return Graph(
        graph.name,
        tuple(inputs),
        tuple(outputs),
        tuple(mine),
        {value: graph.values[value] for value in (*used, *made)},
    )
