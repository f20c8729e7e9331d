"""Bad input has a sentence: an error, or a warning in the report."""

from dataclasses import replace

import numpy as np
import pytest
from float_graphs import CONV, conv_net, samples_of, weights

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

SEED = 4


def image_net(scale=None, dead=()):
    """A conv on an image, which a first node may divide, with rows of weights that are 0."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("image")
    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    if scale:
        x = b.add("div", x, b.constant("scale", np.float32(scale)), names=["scaled"])
    w = weights(rng, 8, 3, 3, 3)
    w[list(dead)] = 0
    first = b.add("relu", b.add("conv", x, b.constant("w", w), names=["first"], **CONV))
    last = b.constant("v", weights(rng, 4, 3, 3, 8))
    return b.finish(b.add("conv", first, last, names=["last"], **CONV))


def images(count=12, top=1.0):
    rng = np.random.default_rng(SEED)
    return {"x": (rng.random((count, 1, 8, 8, 3)) * top).astype(np.float32)}


def warnings_of(graph, data):
    report = trireme.quantize(graph, data, ranges="min_max", repairs="none").quantization
    for warning in report.warnings:
        assert f"warning: {warning}" in str(report)
    return report.warnings


def test_good_samples_have_no_warning():
    assert warnings_of(image_net(), images()) == ()
    assert warnings_of(image_net(255.0), images(top=255)) == ()
    assert warnings_of(conv_net(), samples_of(conv_net(), 12, SEED)) == ()


@pytest.mark.parametrize(
    ("scale", "data", "sentence"),
    [
        (255.0, images(top=1), "expects values about 255: is it preprocessed twice?"),
        (0.25, images(top=255), "expects values about 0.25: is its preprocessing left out?"),
        (None, {"x": np.rint(images(top=255)["x"])}, "holds whole numbers up to 255, and the"),
        (
            None,
            {"x": np.repeat(images(1)["x"], 12, axis=0)},
            "12 measured samples are all the same",
        ),
        (None, images(count=3), "3 samples are few: 32 to 512 are usual"),
        (None, {"x": np.full((12, 1, 8, 8, 3), 0.5, np.float32)}, "'x' is 0.5 everywhere in all"),
    ],
)
def test_doubtful_samples_have_a_warning(scale, data, sentence):
    found = warnings_of(image_net(scale), data)
    assert any(sentence in warning for warning in found), found


def test_a_channel_that_is_always_zero_is_named():
    found = warnings_of(image_net(dead=(2, 5)), images())
    assert len(found) == 1
    assert "2 of 8 channels of" in found[0] and found[0].endswith("measured samples: 2, 5")


def test_the_values_with_most_zero_channels_are_named_and_hide_nothing():
    b = GraphBuilder("deep")
    rng = np.random.default_rng(SEED)
    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    inside = 3
    for layer, dead in enumerate((1, 5, 2, 4, 3)):
        w = weights(rng, 8, 3, 3, inside)
        w[:dead] = 0
        x = b.add("relu", b.add("conv", x, b.constant("w", w), **CONV), names=[f"relu{layer}"])
        inside = 8
    found = warnings_of(b.finish(x), {"x": np.rint(images(top=255)["x"])})
    assert "is its preprocessing left out?" in found[0]
    for sentence, layer, dead in zip(found[1:4], (1, 3, 4), (5, 4, 3), strict=True):
        assert sentence.startswith(f"{dead} of 8 channels of 'relu{layer}' are 0")
    assert found[4:] == ("2 more values have channels that are 0 in all measured samples",)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_without_a_range_names_its_sample(number):
    data = images()
    data["x"][7, 0, 1, 2, 0] = number
    with pytest.raises(trireme.RunError, match="sample 7 of input 'x' holds"):
        trireme.quantize(image_net(), data)


def test_damaged_weights_are_named():
    net = image_net()
    (w,) = (i for i, value in net.values.items() if value.name == "w")
    broken = net.values[w].data.copy()
    broken[0, 0, 0, 0] = np.nan
    net = replace(net, values={**net.values, w: replace(net.values[w], data=broken)})
    with pytest.raises(trireme.RunError, match="reads the constant 'w', which is not finite"):
        trireme.quantize(net, images())


def test_channels_in_another_place_have_a_way_out():
    with pytest.raises(trireme.RunError, match=r"numpy.moveaxis\(x, -3, -1\)"):
        trireme.quantize(image_net(), np.moveaxis(images()["x"], -1, -3))


def test_a_model_that_is_quantised_already_says_so():
    made = trireme.quantize(image_net(), images(), repairs="none", ranges="min_max")
    with pytest.raises(trireme.GraphError, match="the model is quantised already"):
        trireme.quantize(made, images())
    with pytest.raises(trireme.GraphError, match="it is quantised already"):
        trireme.quantize(made, scheme="dynamic")


def test_open_shapes_and_bodies_say_what_to_do():
    b = GraphBuilder("open")
    x = b.input("x", TensorType(("n", 8), "float32"))
    open_net = b.finish(b.add("fully_connected", x, b.constant("w", np.ones((4, 8), np.float32))))
    with pytest.raises(trireme.GraphError, match="input 'x' .* has an open shape"):
        trireme.quantize(open_net, {"x": np.ones((9, 2, 8), np.float32)})

    @trireme.capture
    def loop(x):
        while x.sum() < 10:
            x = x + 1
        return x

    graph = loop.graph(np.ones(2, np.float32))
    with pytest.raises(trireme.GraphError, match="has a body, whose values have no ranges"):
        trireme.quantize(graph, {"x": np.ones((9, 2), np.float32)})
