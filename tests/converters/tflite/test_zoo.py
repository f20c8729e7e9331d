"""Trained .tflite models, interpreted, against LiteRT's reference kernels in the same test."""

import numpy as np
import pytest
from litert import litert_run, litert_tensors, random_inputs
from PIL import Image
from sweep import sweep
from zoo import zoo_path

from trireme.converters.tflite.walk import convert
from trireme.ir.interpreter import interpret, run_reference

SEED = 7
QUANTIZED = [
    "ad01_int8",
    "kws_dscnn_int8",
    "resnet8_cifar10_int8",
    "vww_96_int8",
    "yamnet",
    "mobilenet_v2_1.0_224_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
    "ssd_mobilenet_v1_quant",
]
FLOAT = [
    "ad01_fp32",
    "resnet8_cifar10_f32",
    "vww_96_float",
    "mobilenet_v1_0.25_224_f32",
    "deeplabv3_f32",
    "kws_dscnn_f32",
]
CLASSIFIERS = [
    "mobilenet_v1_0.25_224_f32",
    "mobilenet_v2_1.0_224_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
]
PHOTOGRAPHS = [
    ("grace_hopper.bmp", "military uniform"),
    ("parrot.jpg", "macaw"),
    ("cat.bmp", "cat"),
]


def both(name):
    """Outputs of the interpreter and of LiteRT's reference kernels on the same seeded inputs."""
    path = zoo_path(f"{name}.tflite")
    inputs = random_inputs(path, SEED)
    return run_reference(convert(path), inputs), litert_run(path, inputs)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantised_models_agree_bit_for_bit(name):
    ours, theirs = both(name)
    assert list(ours) == list(theirs), f"seed {SEED}"
    for output, want in theirs.items():
        got = ours[output].reshape(want.shape)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=f"{output}, seed {SEED}")


@pytest.mark.parametrize("name", sweep(FLOAT, always=[n for n in FLOAT if n != "deeplabv3_f32"]))
def test_float_models_agree(name):
    ours, theirs = both(name)
    assert list(ours) == list(theirs), f"seed {SEED}"
    for output, want in theirs.items():
        assert ours[output].dtype == want.dtype
        limit = 1e-4 * np.abs(want).max()
        np.testing.assert_allclose(ours[output], want, atol=limit, rtol=0, err_msg=output)


def test_every_tensor_of_a_quantised_model_agrees():
    path = zoo_path("tf2_mobilenet_v2_1.0_224_ptq.tflite")
    graph, inputs = convert(path), random_inputs(path, SEED)
    theirs = litert_tensors(path, inputs)
    compared = []

    def watch(node, results):
        name = graph.values[node.outputs[0]].name
        if name in theirs:
            compared.append(name)
            want = theirs[name].reshape(results[0].shape)
            np.testing.assert_array_equal(results[0], want, err_msg=node.label)

    by_id = {value.id: inputs[value.name] for value in graph.input_values()}
    interpret(graph, by_id, watch)
    assert len(compared) >= 60


def classified(path, picture, label_at):
    """(our label, LiteRT's label from its default kernels) of a photograph."""
    graph = convert(path)
    (value,) = graph.input_values()
    image = Image.open(picture).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)[None]
    if value.dtype == "float32":
        pixels = (pixels.astype(np.float32) - 127.5) / 127.5
    (ours,) = run_reference(graph, {value.name: pixels}).values()
    (theirs,) = litert_run(path, {value.name: pixels}, reference=False).values()
    return label_at[int(ours.argmax())], label_at[int(theirs.argmax())]


@pytest.mark.parametrize(
    "name, photograph, label",
    sweep(
        [(name, *one) for name in CLASSIFIERS for one in PHOTOGRAPHS],
        lambda name, photograph, _: photograph == PHOTOGRAPHS[CLASSIFIERS.index(name)][0],
    ),
)
def test_photographs_are_what_they_are(name, photograph, label):
    labels = zoo_path("images/imagenet_labels.txt").read_text().splitlines()
    path, picture = zoo_path(f"{name}.tflite"), zoo_path(f"images/{photograph}")
    ours, theirs = classified(path, picture, labels)
    assert ours == theirs
    if name != "mobilenet_v1_0.25_224_f32":
        assert label in ours
