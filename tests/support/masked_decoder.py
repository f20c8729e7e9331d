"""A decoder step as ONNX: ids and the past of each layer, and a causal mask of their shapes."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE, WIDTH, WORDS = 2, 8, 16, 50


def decoder(layers=2, past=("p", "p")):
    """Bytes of a decoder step: ids and the past's keys and values; a causal mask of the shapes."""
    rng = np.random.default_rng(0)
    numbers = {"heads": [0, 0, HEADS, SIZE], "flat": [0, 0, WIDTH], "one": 1, "zero": 0, "last": -1}
    weights = {name: np.array(number, np.int64) for name, number in numbers.items()}
    weights |= {"axes": np.array([0]), "column": np.array([1])}
    weights["table"] = rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
    weights["low"] = np.array(-1e9, np.float32)
    weights["none"] = np.array(0, np.float32)
    nodes = []

    def add(op, inputs, *outputs, **attrs):
        nodes.append(helper.make_node(op, inputs, list(outputs), **attrs))
        return outputs[0]

    def weight(name):
        weights[name] = (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32)
        return name

    x = add("Gather", ["table", "ids"], "x")
    add("Shape", ["ids"], "rows", start=1, end=2)
    add("Shape", ["past.k.0"], "before", start=2, end=3)
    add("Add", ["rows", "before"], "all")
    for name in ("before", "all"):
        add("Squeeze", [name], f"{name}.n")
    add("Range", ["before.n", "all.n", "one"], "queries")
    add("Range", ["zero", "all.n", "one"], "keys")
    add("Unsqueeze", ["queries", "column"], "queries.c")
    add("LessOrEqual", ["keys", "queries.c"], "allowed")
    add("Where", ["allowed", "none", "low"], "mask")
    inputs = [("ids", TensorProto.INT64, ["b", "s"])]
    outputs = [("y", TensorProto.FLOAT, None)]
    for n in range(layers):
        heads = {}
        for name in "qkv":
            flat = add("MatMul", [x, weight(f"w{name}.{n}")], f"{name}.flat.{n}")
            add("Reshape", [flat, "heads"], f"{name}.heads.{n}")
            heads[name] = add("Transpose", [f"{name}.heads.{n}"], f"{name}.{n}", perm=(0, 2, 1, 3))
        for name, symbol in zip("kv", past, strict=True):
            shape = ["b", HEADS, symbol, SIZE]
            inputs.append((f"past.{name}.{n}", TensorProto.FLOAT, shape))
            outputs.append((f"present.{name}.{n}", TensorProto.FLOAT, None))
            parts = [f"past.{name}.{n}", heads[name]]
            heads[name] = add("Concat", parts, f"present.{name}.{n}", axis=2)
        add("Transpose", [heads["k"]], f"turned.{n}", perm=(0, 1, 3, 2))
        scores = add("MatMul", [heads["q"], f"turned.{n}"], f"scores.{n}")
        add("Softmax", [add("Add", [scores, "mask"], f"masked.{n}")], f"soft.{n}", axis=-1)
        add("MatMul", [f"soft.{n}", heads["v"]], f"read.{n}")
        add("Transpose", [f"read.{n}"], f"back.{n}", perm=(0, 2, 1, 3))
        flat = add("Reshape", [f"back.{n}", "flat"], f"joined.{n}")
        product = add("MatMul", [flat, weight(f"wo.{n}")], f"out.{n}")
        x = add("Add", [x, product], "y" if n == layers - 1 else f"x.{n}")
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def fed(rng, b, s, p, layers=2):
    past = {
        f"past.{name}.{n}": rng.standard_normal((b, HEADS, p, SIZE)).astype(np.float32)
        for n in range(layers)
        for name in "kv"
    }
    return {"ids": rng.integers(0, WORDS, (b, s)), **past}
