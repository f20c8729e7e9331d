#!/usr/bin/env bash
# onnxruntime 1.32.0 (cpu): the same QDQ model gives other integers with graph optimisations than
# without, at exact halves and an odd zero point. QuantizeLinear rounds halves to even and then adds
# the zero point. The optimiser fuses DequantizeLinear, op, QuantizeLinear into QLinearMul and
# QLinearAveragePool, whose kernels add the zero point first. QLinearAveragePool does so only where
# it has more than one output: a single mean is rounded first. An even zero point hides all of it.
#
# Seen, int8:
#   Mul, 9 * 1 at output scale 2 (4.5): zero point 3: optimised 8, plain 7; zero point 4: both 8
#   AveragePool, means of 15 and 16 (15.5), zero point 3: one output: 19 and 19;
#   two outputs: optimised 18, plain 19
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet onnxruntime==1.32.0 onnx==1.23.2 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Level = onnxruntime.GraphOptimizationLevel


def results(nodes, arrays, x):
    """The integers with all optimisations, and with none."""
    info = helper.make_tensor_value_info
    initialisers = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    ends = [info("x", TensorProto.INT8, x.shape)], [info("y", TensorProto.INT8, None)]
    graph = helper.make_graph(nodes, "g", *ends, initialisers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    seen = []
    for level in (Level.ORT_ENABLE_ALL, Level.ORT_DISABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        seen.append(session.run(None, {"x": x})[0].ravel().tolist())
    return seen


def number(value, dtype=np.float32):
    return np.array(value, dtype)


def product(zero):
    arrays = {"one": number(1), "two": number(2), "z": number(zero, np.int8)}
    arrays["b"] = np.array([zero + 1], np.int8)
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "one", "z"], ["dx"]),
        node("DequantizeLinear", ["b", "one", "z"], ["db"]),
        node("Mul", ["dx", "db"], ["p"]),
        node("QuantizeLinear", ["p", "two", "z"], ["y"]),
    ]
    return results(nodes, arrays, np.array([zero + 9], np.int8))


def pool(outputs):
    arrays = {"one": number(1), "z": number(3, np.int8)}
    x = np.tile(np.array([18, 19], np.int8), outputs).reshape(1, 1, 1, -1)
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["x", "one", "z"], ["d"]),
        node("AveragePool", ["d"], ["p"], kernel_shape=[1, 2], strides=[1, 2]),
        node("QuantizeLinear", ["p", "one", "z"], ["y"]),
    ]
    return results(nodes, arrays, x)


seen = {
    "Mul, zero point 3": product(3),
    "Mul, zero point 4": product(4),
    "AveragePool, one output": pool(1),
    "AveragePool, two outputs": pool(2),
}
for name, pair in seen.items():
    print(f"{name}: optimised {pair[0]}, plain {pair[1]}")
want = [[[8], [7]], [[8], [8]], [[19], [19]], [[18, 18], [19, 19]]]
assert list(seen.values()) == want, seen
PY
