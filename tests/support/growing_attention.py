"""A step of attention whose keys and values are states that grow, and ONNX Runtime's answers."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from stateful_models import PeerRuns

HEADS, DEPTH = 2, 8

CLOSE = dict(rtol=1e-5, atol=1e-5)


def attention_model(reads_past=False):
    """Return a step of attention: keys and values join the past, queries read both.

    reads_past: whether an output depends on the past itself, and on how long it is
    """
    past, new = ["b", HEADS, "p", DEPTH], ["b", HEADS, "s", DEPTH]
    nodes = [
        helper.make_node("Concat", ["past.k", "k"], ["present.k"], axis=2),
        helper.make_node("Concat", ["past.v", "v"], ["present.v"], axis=-2),
        helper.make_node("Transpose", ["present.k"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present.v"], ["y"]),
    ]
    outputs = [("y", new), ("present.k", ["b", HEADS, "t", DEPTH])]
    outputs.append(("present.v", ["b", HEADS, "t", DEPTH]))
    if reads_past:
        nodes += [
            helper.make_node("Shape", ["past.k"], ["shape"], start=2, end=3),
            helper.make_node("ReduceSum", ["past.v", "axes"], ["total"], keepdims=0),
            helper.make_node("Cast", ["shape"], ["count"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["total", "count"], ["z"]),
        ]
        outputs.append(("z", ["b", HEADS, DEPTH]))
    constants = [
        numpy_helper.from_array(np.array(DEPTH**-0.5, np.float32), "scale"),
        numpy_helper.from_array(np.array([2]), "axes"),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, TensorProto.FLOAT, new) for name in "qkv"]
        + [info(f"past.{name}", TensorProto.FLOAT, past) for name in "kv"],
        [info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def attention_peer(model, batch):
    """Return ONNX Runtime with states of no rows."""
    empty = np.zeros((batch, HEADS, 0, DEPTH), np.float32)
    return PeerRuns(model, {f"past.{name}": empty for name in "kv"})


def rows(rng, count, batch=1):
    shape = (batch, HEADS, count, DEPTH)
    return {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}


def same(given, expected):
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(given[name], array, **CLOSE)


def state_line(session):
    return session.stages[0].state
