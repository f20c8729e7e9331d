"""A graph of branches alone, as exporters merge two decoders: the branches have open programs."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from trireme.passes import pipeline
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SEED, WIDTH = 41, 96


def branch(name, with_past, wide, rng):
    """keys = past and x after it, or x alone; y = softmax(x keys') keys W."""
    joined = [helper.make_node("Concat", ["past", "x"], [f"{name}_keys"], axis=1)]
    if not with_past:
        joined = [helper.make_node("Relu", ["x"], [f"{name}_keys"])]
    nodes = [
        *joined,
        helper.make_node("Transpose", [f"{name}_keys"], [f"{name}_turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", f"{name}_turned"], [f"{name}_scores"]),
        helper.make_node("Softmax", [f"{name}_scores"], [f"{name}_shares"], axis=-1),
        helper.make_node("MatMul", [f"{name}_shares", f"{name}_keys"], [f"{name}_mixed"]),
        helper.make_node("MatMul", [f"{name}_mixed", f"{name}_w"], [f"{name}_y"]),
    ]
    weight = (rng.standard_normal((WIDTH, wide)) / 9).astype(np.float32)
    outputs = [
        helper.make_tensor_value_info(f"{name}_{part}", TensorProto.FLOAT, None)
        for part in ("y", "keys")
    ]
    kept = [numpy_helper.from_array(weight, f"{name}_w")]
    return helper.make_graph(nodes, name, [], outputs, kept)


def merged(wide=WIDTH):
    """Two decoders in one file: `past` is only read with `use_cache`."""
    rng = np.random.default_rng(SEED)
    branches = [branch("then", True, wide, rng), branch("plain", False, wide, rng)]
    node = helper.make_node(
        "If",
        ["use_cache"],
        ["y", "keys"],
        then_branch=branches[0],
        else_branch=branches[1],
    )

    def value(name, *dims):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        [node],
        "merged",
        [
            helper.make_tensor_value_info("use_cache", TensorProto.BOOL, [1]),
            value("x", "n", "s", WIDTH),
            value("past", "n", "past", WIDTH),
        ],
        [value("y", "n", "s", wide), value("keys", "n", "all", WIDTH)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


def feeds(rng, use_cache, batch, count, past):
    return {
        "use_cache": np.array([use_cache]),
        "x": rng.standard_normal((batch, count, WIDTH)).astype(np.float32),
        "past": rng.standard_normal((batch, past, WIDTH)).astype(np.float32),
    }


RUNS = [(False, 2, 9, 1), *[(True, 2, 1, past) for past in range(9, 30)], (True, 1, 3, 9)]


@pytest.mark.parametrize("from_path", [True, False])
def test_branches_equal_onnx_runtime_at_every_shape(from_path, tmp_path):
    model, rng = merged(), np.random.default_rng(SEED)
    path = tmp_path / "merged.onnx"
    path.write_bytes(model)
    peer = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    with Session(path if from_path else model) as session:
        for run in [*RUNS, *RUNS[::-5]]:
            given = feeds(rng, *run)
            for got, want in zip(session.run(given).values(), peer.run(None, given), strict=True):
                assert got.shape == want.shape
                np.testing.assert_allclose(got, want, atol=2e-5, err_msg=f"{run}, seed {SEED}")


def test_a_branch_is_compiled_once_for_every_shape(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "trireme.runtime.control.open_loop.optimise",
        lambda graph: calls.append(graph.name) or pipeline.optimise(graph),
    )
    rng = np.random.default_rng(SEED)
    with Session(merged(4096)) as session:
        for past in range(40, 70):
            session.run(feeds(rng, True, 2, 3, past))
        assert len(calls) == 1
        (stage,) = session.stages
        assert stage.steps and not stage.nodes


def test_shapes_that_contradict_each_other_are_refused():
    rng = np.random.default_rng(SEED)
    with Session(merged()) as session:
        given = feeds(rng, True, 2, 1, 9)
        with pytest.raises(RunError, match="past"):
            session.run(given | {"past": given["past"][:1]})
        session.run(given)
