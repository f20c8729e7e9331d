"""Damaged, hostile and unsupported .tflite files: a typed error that names the field, at once."""

import time

import numpy as np
import pytest
from flatbuffers import flexbuffers
from tflite_builder import Op, T, constant, model, one_op

from trireme.converters.tflite import convert
from trireme.errors import ConvertError, ModelFileError, TriremeError
from trireme.interpret import run_reference

SEED = 5
MUTANTS = 2000


def small_model():
    """A few operators of each kind of field: quantisation, options, lists, a custom flexbuffer."""
    x = T((1, 6, 6, 2), "int8", (0.1,), (3,))
    w = constant(np.ones((4, 3, 3, 2), np.int8), 0.1, 0.2, 0.3, 0.4)
    b = constant(np.zeros(4, np.int32), 0.01, 0.02, 0.03, 0.04)
    y = T((1, 6, 6, 4), "int8", (0.2,), (-5,))
    tensors = [
        x, w, b, y, constant(np.array([1, 36, 4], np.int32)), T((1, 36, 4), "int8", (0.2,), (-5,)),
        T((1, 36, 4)), constant(np.ones((36, 4), np.float32)), T((1, 3, 4)), T((1, 3)), T((1, 3)),
        T((1,)),
    ]  # fmt: skip
    options = {"max_detections": 3, "max_classes_per_detection": 1, "num_classes": 3,
               "nms_iou_threshold": 0.5, "y_scale": 1.0, "x_scale": 1.0, "h_scale": 1.0,
               "w_scale": 1.0}  # fmt: skip
    operators = [
        Op("CONV_2D", [0, 1, 2], [3], "Conv2DOptions",
           {"StrideH": 1, "StrideW": 1, "Padding": 0, "DilationHFactor": 1, "DilationWFactor": 1}),
        Op("RESHAPE", [3, 4], [5], "ReshapeOptions", {"NewShape": (1, 36, 4)}),
        Op("DEQUANTIZE", [5], [6]),
        Op("TFLite_Detection_PostProcess", [6, 6, 7], [8, 9, 10, 11],
           custom=bytes(flexbuffers.Dumps(options))),
    ]  # fmt: skip
    return model(tensors, operators, [0], [8, 9, 10, 11])


def mutant(data: bytes, rng: np.random.Generator) -> bytes:
    """The file cut short, or with bits, bytes, words or stretches of it changed."""
    out, kind = bytearray(data), int(rng.integers(6))
    if kind == 0:
        return bytes(out[: int(rng.integers(len(out)))])
    for _ in range(int(rng.integers(1, 6))):
        at, other = (int(v) for v in rng.integers(0, len(out) - 16, 2))
        if kind == 1:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            out[at] = int(rng.integers(256))
        elif kind == 3:
            words = [0, 1, 2**31 - 1, 2**32 - 1, 2**31, len(out), 1 << 20]
            out[at & ~3 : (at & ~3) + 4] = int(rng.choice(words)).to_bytes(4, "little")
        elif kind == 4:
            out[at : at + 4] = out[other : other + 4]
        else:
            del out[at : at + int(rng.integers(1, 8))]
    return bytes(out)


def test_the_small_model_is_sound():
    graph = convert(small_model())
    assert [node.op for node in graph.nodes] == [
        "conv", "reshape", "dequantize", "detection_post_process",
    ]  # fmt: skip


def test_mutants_are_refused_or_read_but_never_crash():
    rng, data = np.random.default_rng(SEED), small_model()
    refused = 0
    for number in range(MUTANTS):
        start = time.perf_counter()
        try:
            convert(mutant(data, rng))
        except TriremeError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"mutant {number} of seed {SEED}") from error
        assert time.perf_counter() - start < 20, f"mutant {number} of seed {SEED} took too long"
    assert refused > MUTANTS // 2


def test_every_cut_is_refused():
    data = small_model()
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
    operators = [Op("LSTM", [0], [1]), Op("SVDF", [1], [2]), Op("LSTM", [2], [3])]
    with pytest.raises(ConvertError) as caught:
        convert(model(tensors, operators, [0], [3]))
    assert "3 of 3 operators" in caught.value.summary
    assert caught.value.facts == (
        "2 x LSTM (first tflite:LSTM#0)", "1 x SVDF (first tflite:SVDF#1)",
    )  # fmt: skip


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


def test_int16_activations_are_refused_in_a_sentence():
    data = one_op("RELU", [T((2, 3), "int16", (1.0,))], [T((2, 3), "int16", (1.0,))])
    with pytest.raises(ConvertError, match="quantised to int16") as caught:
        convert(data)
    assert caught.value.facts == ("t0", "t1")


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
