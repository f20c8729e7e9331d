"""Each op's numpy reference against an independent runtime, and its inferred types."""

from dataclasses import replace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from op_samples import assert_close, by_op, interpreted, named, op_samples

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.ir.op import all_ops
from trireme.support.errors import ShapeError

onnx = pytest.importorskip("onnx", reason="the references' peer is ONNX")
onnxruntime = pytest.importorskip("onnxruntime", reason="the references' peer is ONNX Runtime")

from onnx_answers import peer_outputs  # noqa: E402

OF_LITERT = {
    "complex_abs",
    "complex_imag",
    "complex_real",
    "detection_post_process",
    "dynamic_range_lstm",
    "integer_lstm",
    "integer_svdf",
    "rfft2d",
    "soft_non_max_suppression",
}
"""Ops that ONNX has not; LiteRT is their peer, and of quantised samples: converters/tflite."""

CASES = list(
    by_op(
        # what the host drives: ir/test_effects.py, runtime/control, runtime/test_python_op.py
        lambda op: not op.is_host_only and op.name not in OF_LITERT,
        lambda op, sample: not sample.quants and not sample.out_quants,
    )
)
LOOSE = 3e-6
"""Peers compute in float32 where the references do in float64, so every op is given this much."""

ALL_OUTPUTS = {"top_k": 2, "unique": 4, "rnn": 2, "gru": 2, "lstm": 3}
BY_EVALUATOR = {
    ("clip", "no upper limit"): "ONNX Runtime clips infinity to the greatest finite number",
    ("clip", "no lower limit"): "ONNX Runtime clips infinity to the greatest finite number",
    ("max_pool", "NaN, infinities"): "ONNX Runtime's max_pool drops NaN",
}


@pytest.mark.parametrize(("op", "samples"), CASES)
def test_reference_equals_peer(op, samples):
    for sample, name in samples:
        with named(name):
            graph, outputs = interpreted(op, sample, ALL_OUTPUTS.get(op.name))
            types = [graph.type(value) for value in graph.outputs]
            by_evaluator = (op.name, sample.note) in BY_EVALUATOR
            wanted, count = peer_outputs(op, sample, types, by_evaluator)
            for found, peer in zip(outputs[:count], wanted, strict=True):
                assert_close(found, np.asarray(peer), max(op.rtol, LOOSE), name)


@pytest.mark.parametrize(("op", "samples"), CASES)
def test_inferred_types_are_the_arrays(op, samples):
    for sample, name in samples:
        with named(name):
            graph, outputs = interpreted(op, sample)
            for value, array in zip(graph.outputs, outputs, strict=True):
                inferred = graph.type(value).shape
                assert len(inferred) == array.ndim
                sizes = zip(inferred, array.shape, strict=True)
                assert all(dim in ("?", size) for dim, size in sizes)


MOVING = [op for op in all_ops() if op.moves and not op.effect]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("op", MOVING, ids=lambda op: op.name)
def test_what_moves_float32_moves_bfloat16_alike(op):
    """NaN and infinities too: numpy knows no NaN of ml_dtypes when it sorts."""
    for _, sample, _ in op_samples(lambda other: other is op):
        adds = sample.attrs.get("reduction", "none") != "none"
        if adds or sample.quants or sample.inputs[0].dtype != np.float32:
            continue
        wide = [x if x is None else rounded(x) for x in sample.inputs]
        narrow = [
            x.astype(bfloat16) if x is not None and x.dtype == np.float32 else x for x in wide
        ]
        try:
            _, wanted = interpreted(op, replace(sample, inputs=tuple(wide)))
            _, found = interpreted(op, replace(sample, inputs=tuple(narrow)))
        except ShapeError:  # an input of this sample has to be float32
            continue
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.astype(other.dtype), other, err_msg=op.name)


def rounded(x):
    """Floats as bfloat16 has them, with NaN, infinities and ties among them."""
    if x.dtype != np.float32:
        return x
    x = x.astype(bfloat16).astype(np.float32)
    for i, odd in enumerate((np.nan, np.inf, np.nan, -np.inf)):
        x.reshape(-1)[i + 2 :: 11] = odd
    return x


def test_a_grid_samples_a_line_as_numpy_interpolates():
    """One spatial axis, of which ONNX Runtime knows nothing."""
    rng = np.random.default_rng(3)
    x, places = rng.standard_normal((2, 3, 6)), rng.uniform(-1, 1, (2, 4))
    b = GraphBuilder("line")
    ids = [
        b.input(name, TensorType(shape, "float64"))
        for name, shape in (("x", x.shape), ("grid", (2, 4, 1)))
    ]
    graph = b.finish(b.add("grid_sample", *ids, align_corners=1, mode="linear"))
    (found,) = run_reference(graph, {"x": x, "grid": places[..., None]}).values()
    for row, at, made in zip(x, places, found, strict=True):
        for channel, got in zip(row, made, strict=True):
            wanted = np.interp((at + 1) / 2 * 5, np.arange(6), channel)
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [2, 6])
def test_a_grouped_convolution_of_no_images_makes_none(groups):
    b = GraphBuilder("none")
    x = b.input("x", TensorType((0, 5, 4, 6), "float32"))
    w = b.constant("w", np.ones((12, 3, 3, 6 // groups), np.float32))
    kind = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    graph = b.finish(b.add("conv", x, w, groups=groups, **kind))
    (y,) = run_reference(graph, {"x": np.zeros((0, 5, 4, 6), np.float32)}).values()
    assert y.shape == (0, 5, 4, 12)
