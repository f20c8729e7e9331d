"""Use an op of one line, `bump`, in every stage: run by `test_new_op.py` on a tree that has it."""

from contextlib import closing

import numpy as np
from onnx import TensorProto, helper

from trireme import Session, convert
from trireme.backend.registry import open_device
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.devices.opencl.platforms import find_devices
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.ir.interpreter import interpret, is_quantized, run_reference
from trireme.passes.pipeline import optimise
from trireme.placement.shards.shard import ShardSpec, shard
from trireme.runtime.eager import eager

HAS_OPENCL = any(not found.checker for found in find_devices())
X = np.random.default_rng(3).standard_normal((1, 6, 8, 5)).astype(np.float32)


def ops(graph: Graph) -> str:
    """The ops of a graph's nodes, in order."""
    return " ".join(node.op for node in graph.nodes)


def between_transposes() -> Graph:
    """bump and its neighbours in channels first, between transposes that cancel."""
    b = GraphBuilder("model")
    y = b.add("transpose", b.input("x", TensorType(X.shape, "float32")), perm=(0, 3, 1, 2))
    y = b.add("mul", b.add("bump", b.add("add", y, b.constant("c", np.float32(0.5)))), y)
    return b.finish(b.add("transpose", y, perm=(0, 2, 3, 1)))


def bump_of_integers() -> Graph:
    """bump between 8-bit integers as ONNX writes them."""
    b = GraphBuilder("integers")
    scale, zero = b.constant("s", np.float32(0.02)), b.constant("z", np.int8(3))
    x = b.input("x", TensorType(X.shape, "float32"))
    real = b.add("dequantize_linear", b.add("quantize_linear", x, scale, zero), scale, zero)
    return b.finish(b.add("quantize_linear", b.add("bump", real), scale, zero))


def from_onnx() -> Graph:
    """A converted model."""
    shape = list(X.shape)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    graph = helper.make_graph([helper.make_node("Bump", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    return convert(model.SerializeToString())


def main() -> None:
    """Assert in each stage what an elementwise op gets there."""
    want = np.exp(-(X.astype(np.float64) ** 2)).astype(np.float32)
    np.testing.assert_allclose(eager.run("bump", X), want, rtol=0, atol=2e-6)

    graph = optimise(between_transposes())
    assert ops(graph) == "add bump mul", graph

    with closing(open_device("cpu", threads=2)) as cpu:
        kernels = cpu.compile([graph])[0].kernels
    assert len(set(kernels.values())) == 1 and REFERENCE not in kernels.values(), kernels

    ids = tuple(node.id for node in graph.nodes)
    parts = shard(graph, ShardSpec(ids, "rows", ("one", "other"), (4,))).graph
    assert ops(parts).count("bump") == 2, parts
    (whole,), (halves,) = (interpret(g, {g.inputs[0]: X}).values() for g in (graph, parts))
    assert whole.tobytes() == halves.tobytes()

    integers = optimise(bump_of_integers())
    (node,) = (node for node in integers.nodes if node.op == "bump")
    assert is_quantized(integers, node)
    for name in ("cpu", "npu"):
        with closing(open_device(name)) as device:
            assert device.unsupported_reason(integers, node) is None
            assert not device.kernel_note(integers, node)

    runs = [(model, "cpu") for model in (graph, integers, from_onnx())]
    for model, name in [*runs, *([(graph, "opencl")] if HAS_OPENCL else [])]:
        feeds = {model.values[model.inputs[0]].name: X}
        (right,) = run_reference(model, feeds).values()
        with Session(model, devices=[name]) as session:
            placed = [node for node in session.placement.graph.nodes if node.op == "bump"]
            assert [session.placement.device_of[node.id] for node in placed] == [name]
            (found,) = session.run(feeds).values()
        limit = 0 if right.dtype.kind == "i" else 2e-6
        np.testing.assert_allclose(found, right, rtol=0, atol=limit)


if __name__ == "__main__":
    main()
