"""Whole ONNX models end to end on the interpreter, against ONNX Runtime on the same inputs."""

import numpy as np
import pytest
from onnx_peers import DATA, LIGHT, assert_agrees, assert_reproduces, lively
from sweep import sweep

SEED = 20261121
NAMES = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
] + ["squeezenet", "vgg19", "zfnet512"]
SLOW = {"bvlc_alexnet", "vgg19", "zfnet512"}
"""Models with hundreds of megabytes of weights."""
MADE = ["bert_mini", "mobilenet_v1", "mobilenet_v2", "mobilevit_s", "resnet18", "resnet50"] + [
    "vit_tiny"
]


@pytest.mark.parametrize("name", sweep([n for n in NAMES if n not in SLOW], ["squeezenet"]))
def test_light_model(name):
    print("seed", SEED)
    assert_agrees(LIGHT / f"light_{name}.onnx", np.random.default_rng(SEED))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_large_light_model(name):
    print("seed", SEED)
    assert_agrees(LIGHT / f"light_{name}.onnx", np.random.default_rng(SEED))


@pytest.mark.parametrize(
    "name", sweep([n for n in NAMES if n not in SLOW], ["shufflenet", "squeezenet"])
)
def test_light_model_with_weights_of_its_own(name):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    assert_agrees(lively(LIGHT / f"light_{name}.onnx", rng), rng)


STORED = ["pytorch-converted", "pytorch-operator", "simple"]
NOT_STORED = {
    "test_gradient": "training",
    "test_sequence_model8": "a sequence of as many tensors as an open dimension says",
    "test_strnorm": "text",
}
"""Stored models that need not pass, by the start of their names, with the reason."""


@pytest.mark.parametrize("group", STORED)
def test_small_stored_models(group):
    folders = sorted((DATA / group).iterdir())
    wrong = []
    for folder in folders:
        if folder.name.startswith(tuple(NOT_STORED)):
            continue
        try:
            assert_reproduces(folder)
        except Exception as error:
            wrong.append(f"{folder.name}: {type(error).__name__}: {error}")
    assert folders and not wrong, f"{len(wrong)} models fail\n" + "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_made_model(name, made_models):
    print("seed", SEED)
    assert_agrees(made_models / f"{name}.onnx", np.random.default_rng(SEED))
