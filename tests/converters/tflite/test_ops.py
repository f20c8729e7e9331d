"""One-operator .tflite models, converted and interpreted, against LiteRT's reference kernels."""

import numpy as np
import pytest
from flatbuffers import flexbuffers
from litert import litert_run, random_inputs
from tflite_16x8_cases import q16  # noqa: F401  adds its cases
from tflite_builder import Op, T, constant, model, one_op
from tflite_cases import CASES, RNG, SEED
from tflite_quantised_cases import quantised  # noqa: F401  adds its cases

from trireme.converters.tflite.control import CONTROL
from trireme.converters.tflite.recurrent import RECURRENT
from trireme.converters.tflite.scatter import SCATTERS
from trireme.converters.tflite.segments import SEGMENTS
from trireme.converters.tflite.walk import OPERATORS, convert
from trireme.ir.interpreter import run_reference

NOT_IN_REFERENCE = {
    *(name for name in CASES if name.startswith("Convolution2DTransposeBias")),  # XNNPACK's alone
    "LOCAL_RESPONSE_NORMALIZATION",
    "CEIL",
    "ELU",
    "ROUND",
    "int8 SUM",
}
"""LiteRT 2.3's reference kernels lack these; its int8 SUM gives -1 everywhere, and its reference
LRN leaves out the last channel of each window, which its default kernel and TensorFlow do not."""


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_litert(name):
    data, tolerance = CASES[name]
    inputs = random_inputs(data, SEED)
    theirs = litert_run(data, inputs, reference=name not in NOT_IN_REFERENCE)
    ours = run_reference(convert(data), inputs)
    assert list(ours) == list(theirs)
    for output, want in theirs.items():
        got = ours[output]
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind == "f":
            limit = tolerance * max(np.abs(want).max(), 1.0)
            np.testing.assert_allclose(got, want, atol=limit, rtol=0, err_msg=f"seed {SEED}")
        else:
            worst = np.abs(got.astype(np.int64) - want.astype(np.int64)).max()
            assert worst <= tolerance, f"off by {worst}, seed {SEED}"


@pytest.mark.parametrize("regular", [False, True])
@pytest.mark.parametrize(
    ("per_anchor", "least"), [(1, 0.3), (2, 0.3), (1, -np.inf), (1, np.inf), (1, np.nan)]
)
def test_detection_post_process(regular, per_anchor, least):
    rng = np.random.default_rng(SEED)
    anchors = np.concatenate([rng.random((40, 2)), rng.uniform(0.1, 0.4, (40, 2))], 1)
    options = {
        "max_detections": 7,
        "max_classes_per_detection": per_anchor,
        "detections_per_class": 5,
        "use_regular_nms": regular,
        "nms_score_threshold": float(least),
        "nms_iou_threshold": 0.4,
        "num_classes": 3,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    count = 7 * per_anchor
    outputs = [T((1, count, 4)), T((1, count)), T((1, count)), T((1,))]
    inputs = [T((1, 40, 4)), T((1, 40, 4)), constant(anchors.astype(np.float32))]
    custom = bytes(flexbuffers.Dumps(options))
    data = one_op("TFLite_Detection_PostProcess", inputs, outputs, custom=custom)
    feeds = random_inputs(data, SEED)
    theirs, ours = litert_run(data, feeds), run_reference(convert(data), feeds)
    found = int(theirs["t6"][0])
    assert found == int(ours["t6"][0])
    assert (found > 0) == (least < 1)
    rows = found if regular else found * per_anchor
    for name in ("t3", "t4", "t5"):
        np.testing.assert_allclose(ours[name][0, :rows], theirs[name][0, :rows], atol=1e-6)


def test_float16_weights_become_float32():
    half = constant(RNG.standard_normal((5, 4)).astype(np.float16))
    tensors = [T((2, 4)), half, T((5, 4)), T((2, 5))]
    operators = [
        Op("DEQUANTIZE", [1], [2]),
        Op("FULLY_CONNECTED", [0, 2], [3], "FullyConnectedOptions"),
    ]
    data = model(tensors, operators, [0], [3])
    graph, inputs = convert(data), random_inputs(data, SEED)
    assert [node.op for node in graph.nodes] == ["fully_connected"]
    want = litert_run(data, inputs)["t3"]
    np.testing.assert_allclose(run_reference(graph, inputs)["t3"], want, atol=1e-5)


def test_every_operator_of_the_table_is_tried():
    tried = {part for name in CASES for part in name.split()}
    elsewhere = {
        "TFLite_Detection_PostProcess",
        "RFFT2D",
        "COMPLEX_ABS",
        "DEPTHWISE_CONV_2D",
        "BITCAST",
        "DENSIFY",
        "WHERE",
        "REAL",
        "IMAG",
        "BITWISE_XOR",
        "L2_POOL_2D",
        *CONTROL,
        *RECURRENT,
        *SCATTERS,
        *SEGMENTS,
    }
    assert set(OPERATORS) - tried - elsewhere == set()
