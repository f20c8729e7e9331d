"""Accuracy on handwritten digits with labels: int8 beside the float model that it was made from.

The network of `tools/train_demo.py` is trained here with numpy on half of scikit-learn's digits.
"""

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

SEED = 26
TRAINED, EPOCHS, SAMPLES = 897, 6, 96
ALLOWED = 0.003
"""The share of right answers that may be lost."""
WINDOW = {"dilations": (1, 1), "layout": "NHWC"}


def network(weights):
    b = GraphBuilder("digits")
    x = b.input("image", TensorType((1, 8, 8, 1), "float32"))
    for layer, depth in (("1", 1), ("2", 16)):
        kernel = weights[f"w{layer}"].reshape(3, 3, depth, -1).transpose(3, 0, 1, 2)
        constants = b.constant(f"w{layer}", kernel), b.constant(f"b{layer}", weights[f"b{layer}"])
        x = b.add("conv", x, *constants, strides=(1, 1), pads=(1, 1, 1, 1), **WINDOW)
        x = b.add("relu", x)
        if layer == "1":
            x = b.add("max_pool", x, kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), **WINDOW)
    x = b.add("transpose", x, perm=(0, 3, 1, 2))
    x = b.add("reshape", x, b.constant("flat", np.array([1, 512])))
    head = b.constant("w3", np.ascontiguousarray(weights["w3"].T)), b.constant("b3", weights["b3"])
    return b.finish(b.add("fully_connected", x, *head, names=["scores"]))


@pytest.fixture(scope="module")
def trained():
    """The float network, images and digits that it has not seen, and images that it has."""
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    train_demo = pytest.importorskip("trireme.tools.train_demo")
    digits, rng = load_digits(), np.random.default_rng(SEED)
    order = rng.permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_demo, "EPOCHS", EPOCHS)
        weights = train_demo.train(images[:TRAINED], labels[:TRAINED], rng)
    return network(weights), images[TRAINED:], labels[TRAINED:], images[:TRAINED]


def accuracy(graph, images, labels):
    with trireme.Session(graph, devices=["cpu"], threads=1) as session:
        made = [session.run({"image": x[None]})["scores"].argmax() for x in images]
    return float((np.array(made) == labels).mean())


@pytest.mark.parametrize("scheme", ["int8", "uint8", "dynamic"])
def test_int8_answers_as_often_right_as_float(trained, scheme):
    graph, images, labels, seen = trained
    data = None if scheme == "dynamic" else seen[:SAMPLES, None]
    made = trireme.quantize(graph, data, scheme=scheme)
    real, found = (accuracy(one, images, labels) for one in (graph, made))
    print(f"seed {SEED}: {real:.2%} float32, {found:.2%} {scheme}, of {len(labels)} digits")
    assert real > 0.93
    assert found >= real - ALLOWED
