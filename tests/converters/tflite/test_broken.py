"""Damaged, hostile and unsupported .tflite files: a typed error that names the field, at once."""

import numpy as np
import pytest
import tflite
from lab.stress.tflite_seeds import small_tflite
from litert import interpreter, litert_run
from tflite_builder import Op, T, constant, model, one_op

from trireme.converters.tflite.walk import convert
from trireme.ir.interpreter import run_reference
from trireme.support.errors import ConvertError, ModelFileError


def test_the_small_model_is_sound():
    graph = convert(small_tflite())
    assert [node.op for node in graph.nodes] == [
        "conv",
        "reshape",
        "dequantize",
        "detection_post_process",
    ]


def test_every_cut_is_refused():
    data = small_tflite()
    for length in range(0, len(data) - 64, 7):
        with pytest.raises(ModelFileError):
            convert(data[:length])


def test_another_kind_of_file():
    with pytest.raises(ModelFileError, match="not a .tflite file"):
        convert(b"PK\x03\x04 certainly not a model")


def test_a_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="cannot read"):
        convert(tmp_path / "absent.tflite")


def test_all_unsupported_operators_in_one_error():
    tensors = [T((2, 3)) for _ in range(4)]
    operators = [Op("HASHTABLE", [0], [1]), Op("FlexErf", [1], [2]), Op("HASHTABLE", [2], [3])]
    with pytest.raises(ConvertError) as caught:
        convert(model(tensors, operators, [0], [3]))
    assert "3 of 3 operators" in caught.value.summary
    assert caught.value.facts == (
        "2 x HASHTABLE (first tflite:HASHTABLE#0)",
        "1 x FlexErf (first tflite:FlexErf#1)",
    )


def test_strings_are_refused():
    with pytest.raises(ConvertError, match="tensors of strings are not supported"):
        convert(model([T((2,), "string"), T((2,), "string")], [Op("PACK", [0], [1])], [0], [1]))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (model([T((2, 3)), T((2, 3))], [Op("RELU", [1], [1])], [0], [1]), "read before it is made"),
        (model([T((2, 3))] * 2, [Op("RELU", [0], [1])] * 2, [0], [1]), "made twice"),
        (model([T((2, 3))] * 2, [Op("RELU", [0], [1])], [0, 0], [1]), "listed twice"),
        (model([T((2, 3)), T((2, 4))], [Op("RELU", [0], [1])], [0], [1]), "declared"),
        (model([T((2, 3)), T((2, 3))], [Op("RELU", [], [1])], [0], [1]), "0 inputs"),
        (model([T((2, 3)), T((2, 3))], [Op("RELU", [7], [1])], [0], [1]), "names tensor 7"),
        (one_op("RELU", [T((2, 3), "int8", (0.0,))], [T((2, 3), "int8", (1.0,))]), "quantization"),
        (one_op("RELU", [T((2, -3))], [T((2, 3))]), "shape"),
        (one_op("ADD", [T((2, 3)), T((2, 3), data=np.zeros(5, np.float32))], [T((2, 3))]), "takes"),
        (one_op("ADD", [T((2, 3)), T((2, 4))], [T((2, 3))]), "contradicts itself"),
    ],
)
def test_contradictions_name_the_field(data, sentence):
    with pytest.raises(ModelFileError, match=sentence):
        convert(data)


def test_a_quantised_input_of_a_float_operator_is_refused():
    data = one_op("L2_NORMALIZATION", [T((2, 3), "int8", (1.0,))], [T((2, 3), "int8", (1.0,))])
    with pytest.raises(ConvertError, match="L2_NORMALIZATION#0"):
        convert(data)


def int16(*scales, zero=0):
    return T((2, 3), "int16", scales, (zero,))


INT8_WEIGHTS = constant(np.ones((4, 3), np.int8), 0.1)
HALVES = [int16(0.5), int16(0.25)]


@pytest.mark.parametrize(
    ("code", "inputs", "output", "why"),
    [
        ("HARD_SWISH", [int16(0.3)], int16(0.1), "the operator has no form on int16"),
        ("RELU", [int16(0.3, zero=4)], int16(0.1), "one scale and zero point 0"),
        ("LOGISTIC", [int16(0.3)], int16(0.1), "the output must be int16 of scale 1/32768"),
        ("MAXIMUM", [int16(0.3), int16(0.1)], int16(0.1), "must have the same scale"),
        ("MUL", [int16(0.3), T((2, 3), "int8", (0.1,))], int16(0.1), "int8 beside int16"),
        (
            "FULLY_CONNECTED",
            [int16(0.3), INT8_WEIGHTS, constant(np.ones(4, np.int32), 0.03)],
            T((2, 4), "int16", (0.1,)),
            "a bias of int32 beside int16, expected int64",
        ),
        (
            "FULLY_CONNECTED",
            [int16(0.3), constant(np.ones((4, 3), np.int16), 0.1)],
            T((2, 4), "int16", (0.1,)),
            "weights of int16 beside int16, expected int8",
        ),
    ],
)
def test_int16_without_a_rule_is_refused_in_a_sentence(code, inputs, output, why):
    with pytest.raises(ConvertError, match="operators on tensors quantised to int16") as caught:
        convert(one_op(code, inputs, [output]))
    assert f"{code}#0" in caught.value.facts[0]
    assert why in caught.value.facts[0]


@pytest.mark.parametrize("code", ["ADD", "SUB"])
def test_a_sum_of_int16_by_shifts_is_refused(code):
    with pytest.raises(ConvertError, match="pot_scale_int16"):
        convert(one_op(code, HALVES, [int16(0.5)]))


def convolution(name, dtype, zero_point):
    """A model of one convolution whose weights have a zero point."""
    shape, made = {
        "CONV_2D": ((4, 3, 3, 2), 4),
        "DEPTHWISE_CONV_2D": ((1, 3, 3, 2), 2),
        "TRANSPOSE_CONV": ((4, 3, 3, 2), 4),
    }[name]
    data = np.random.default_rng(3).integers(60, 120, shape).astype(dtype)
    w = T(shape, dtype, (0.05,), (zero_point,), data=data)
    x, y = T((1, 7, 7, 2), dtype, (0.1,), (3,)), T((1, 7, 7, made), dtype, (1.0,), (5,))
    bias = T((made,), "int32", (0.005,), (0,), data=np.zeros(made, np.int32))
    inputs = [x, w, bias]
    if name == "TRANSPOSE_CONV":
        inputs = [constant(np.array(y.shape, np.int32)), w, x]
    options = {"Padding": 0, "StrideH": 1, "StrideW": 1}
    if name == "DEPTHWISE_CONV_2D":
        options["DepthMultiplier"] = 1
    kind = {"CONV_2D": "Conv2D", "DEPTHWISE_CONV_2D": "DepthwiseConv2D"}.get(name, "TransposeConv")
    return one_op(name, inputs, [y], f"{kind}Options", **options)


@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"])
def test_int8_weights_have_no_zero_point(name):
    """LiteRT refuses the first, its fast kernels the second; the others read a zero point as 0."""
    data = convolution(name, "int8", 7)
    with pytest.raises(ConvertError, match="int8 weights with zero point 7, expected 0"):
        convert(data)
    convert(convolution(name, "int8", 0))
    convert(convolution(name, "uint8", 7))
    if name != "TRANSPOSE_CONV":
        with pytest.raises(RuntimeError, match="failed to prepare"):
            interpreter(data, reference=name == "CONV_2D")


def test_shapes_of_inputs_can_be_replaced():
    data = one_op("TANH", [T((1, 3))], [T((1, 3))])
    graph = convert(data, shapes={"t0": (5, 3)})
    assert graph.type(graph.outputs[0]).shape == (5, 3)
    with pytest.raises(ConvertError, match="no input is called 'x'"):
        convert(data, shapes={"x": (5, 3)})


@pytest.mark.parametrize("use_mmap", [False, True])
def test_constants_are_views_of_the_file(tmp_path, use_mmap):
    path = tmp_path / "tiny.tflite"
    path.write_bytes(one_op("ADD", [T((4,)), constant(np.arange(4, dtype=np.float32))], [T((4,))]))
    graph = convert(path, use_mmap=use_mmap)
    (held,) = [v for v in graph.values.values() if v.is_constant]
    assert graph.name == "tiny"
    assert not held.data.flags.owndata
    assert not held.data.flags.writeable
    out = run_reference(graph, {"t0": np.ones(4, np.float32)})
    assert out["t2"].tolist() == [1, 2, 3, 4]


def test_inputs_and_outputs_of_one_name_stay_apart():
    data = model([T((4,)), T((4,))], [Op("TANH", [0], [1])], [0], [0, 1])
    graph = convert(data)
    assert len({graph.values[i].name for i in graph.outputs}) == 2


def test_options_of_another_operator_are_not_read():
    """As LiteRT has it: a sum with the options of a product has no activation."""
    data = one_op(
        "ADD",
        [T((2, 3)), T((2, 3))],
        [T((2, 3))],
        "MulOptions",
        FusedActivationFunction=tflite.ActivationFunctionType.RELU6,
    )
    given = {name: np.full((2, 3), 5, np.float32) for name in ("t0", "t1")}
    (found,) = run_reference(convert(data), given).values()
    (wanted,) = litert_run(data, given).values()
    np.testing.assert_array_equal(found, wanted)
    assert (found == 10).all()
