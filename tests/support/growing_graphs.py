"""ONNX models of any number of nodes: what session time is measured on as graphs grow."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SHAPE = (1, 64)


def onnx_bytes(nodes, outputs, shape=SHAPE, weights=None):
    """Return a model of one input "x"; `outputs` are names with their shapes."""
    graph = helper.make_graph(
        nodes,
        "growing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(w, name) for name, w in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def chain(n):
    """Tanh and Sigmoid in turns."""
    nodes, last = [], "x"
    for i in range(n):
        nodes.append(helper.make_node(("Tanh", "Sigmoid")[i % 2], [last], [f"v{i}"]))
        last = f"v{i}"
    return onnx_bytes(nodes, [(last, SHAPE)])


def fan(n):
    """One value read by n nodes, each an output of the model."""
    nodes = [helper.make_node("Mul", ["x", f"c{i}"], [f"v{i}"]) for i in range(n)]
    weights = {f"c{i}": np.full(1, 0.5 + i / n, np.float32) for i in range(n)}
    return onnx_bytes(nodes, [(f"v{i}", SHAPE) for i in range(n)], weights=weights)


def split(n):
    """One Split of n outputs."""
    names = [f"v{i}" for i in range(n)]
    node = helper.make_node("Split", ["x"], names, axis=0, num_outputs=n)
    return onnx_bytes([node], [(name, (1, 4)) for name in names], shape=(n, 4))


def concat(n):
    """n nodes side by side, all alive until one Concat reads them."""
    nodes = [helper.make_node(("Tanh", "Sigmoid")[i % 2], ["x"], [f"t{i}"]) for i in range(n // 2)]
    nodes += [helper.make_node("Add", [f"t{i}", "x"], [f"u{i}"]) for i in range(n // 2)]
    nodes.append(helper.make_node("Concat", [f"u{i}" for i in range(n // 2)], ["y"], axis=0))
    return onnx_bytes(nodes, [("y", (n // 2, SHAPE[1]))])


def ladder(n):
    """Two chains with a rung at each step."""
    nodes, a, b = [], "x", "x"
    for i in range(n // 3):
        nodes.append(helper.make_node("Tanh", [a], [f"a{i}"]))
        nodes.append(helper.make_node("Sigmoid", [b], [f"b{i}"]))
        nodes.append(helper.make_node(("Add", "Sub")[i % 2], [f"a{i}", f"b{i}"], [f"c{i}"]))
        a, b = f"c{i}", f"b{i}"
    return onnx_bytes(nodes, [(a, SHAPE)])


def grid(n, width=32):
    """Rows of nodes that each read two neighbours of the row before."""
    weights = {f"c{c}": np.full(1, 0.5 + c / width, np.float32) for c in range(width)}
    nodes = [helper.make_node("Mul", ["x", f"c{c}"], [f"g0_{c}"]) for c in range(width)]
    rows = n // width
    for r in range(1, rows):
        for c in range(width):
            reads = [f"g{r - 1}_{c}", f"g{r - 1}_{(c + 1) % width}"]
            nodes.append(helper.make_node(("Add", "Max", "Sub")[(r + c) % 3], reads, [f"g{r}_{c}"]))
    outputs = [(f"g{rows - 1}_{c}", SHAPE) for c in range(width)]
    return onnx_bytes(nodes, outputs, weights=weights)


KINDS = {one.__name__: one for one in (chain, fan, split, concat, ladder, grid)}
