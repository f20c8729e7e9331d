"""Pictures become inputs and scores become class names."""

import numpy as np
import pytest
from PIL import Image

from trireme.ir.graph import Quant, TensorType
from trireme.support.errors import RunError
from trireme.tools.image import load_image, load_labels, top_k


@pytest.fixture
def picture(tmp_path):
    """Two by two: black, red / green, white."""
    pixels = np.array([[[0, 0, 0], [255, 0, 0]], [[0, 255, 0], [255, 255, 255]]], np.uint8)
    path = tmp_path / "p.png"
    Image.fromarray(pixels).save(path)
    return path


def image_type(dtype="float32", shape=(1, 2, 2, 3), quant=None):
    return TensorType(shape, dtype, quant)


@pytest.mark.parametrize(
    ("normalise", "black", "white"),
    [("signed", -1, 1), ("unit", 0, 1), ("none", 0, 255), ("imagenet", -2.1179, 2.2489)],
)
def test_floats_are_normalised(picture, normalise, black, white):
    x = load_image(picture, image_type(), normalise=normalise)
    assert x.dtype == np.float32 and x.shape == (1, 2, 2, 3)
    assert x[0, 0, 0, 0] == pytest.approx(black, abs=1e-4)
    assert x[0, 1, 1, 0] == pytest.approx(white, abs=1e-4)


def test_integers_take_pixels(picture):
    quant = Quant((1 / 128,), (0,))
    assert load_image(picture, image_type("uint8"))[0, 0, 1].tolist() == [255, 0, 0]
    assert load_image(picture, image_type("int8", quant=quant))[0, 0, 1].tolist() == [
        127,
        -128,
        -128,
    ]
    fine = image_type("int8", quant=Quant((0.02,), (3,)))
    x = load_image(picture, fine, normalise="imagenet")
    assert x[0, 0, 0, 0] == np.round(-2.1179 / 0.02) + 3


def test_layouts_and_sizes_follow_the_shape(picture):
    nhwc = load_image(picture, image_type(shape=(2, 5, 4, 3)))
    nchw = load_image(picture, image_type(shape=("n", 3, 5, 4)))
    assert nhwc.shape == (2, 5, 4, 3) and nchw.shape == (1, 3, 5, 4)
    assert np.array_equal(nhwc[1].transpose(2, 0, 1), nchw[0])
    assert load_image(picture, image_type(shape=(5, 4, 1))).shape == (5, 4, 1)
    assert load_image(picture, image_type(shape=(1, "h", "w", 4))).shape == (1, 2, 2, 4)
    for array in (nhwc, nchw):
        assert array.flags.c_contiguous


def test_what_is_no_picture_is_an_error(picture, tmp_path):
    text = tmp_path / "t.png"
    text.write_text("no picture")
    for path in (text, tmp_path / "none.png", tmp_path):
        with pytest.raises(RunError, match="not a picture"):
            load_image(path, image_type())
    noise = np.random.default_rng(3).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(picture)
    picture.write_bytes(picture.read_bytes()[:6000])
    with pytest.raises(RunError, match="not a picture"):
        load_image(picture, image_type())
    with pytest.raises(RunError, match="does not take a picture"):
        load_image(picture, image_type(shape=(1, 10)))
    with pytest.raises(RunError, match="unknown normalisation"):
        load_image(picture, image_type(), normalise="odd")


def test_labels_in_both_styles(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("\ufeffbackground\n tench, Tinca\n\ngoldfish\n\n", encoding="utf-8")
    assert load_labels(path) == ["background", "tench, Tinca", "", "goldfish"]
    path.write_text("3  cat\n0 background\n1: two words\n")
    assert load_labels(path) == ["background", "two words", "2", "cat"]
    path.write_text("1 a\n1 b\n")
    with pytest.raises(RunError, match="twice"):
        load_labels(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="cannot be read"):
        load_labels(path)


def test_top_k_orders_and_names():
    scores = np.array([[3, 200, 5, np.nan]], np.float32)
    assert top_k(scores, ["a", "b", "c", "d"], 2) == [("b", 200.0), ("c", 5.0)]
    assert top_k(scores, ["b", "c", "d"], 1) == [("b", 200.0)]
    assert top_k(scores, ["background", "a", "b", "c", "d"], 1) == [("b", 200.0)]
    for wrong in (["a"], ["a", "b"], ["x", "a", "b", "c", "d"], list("abcdefgh")):
        with pytest.raises(RunError, match=f"there are {len(wrong)} labels for 4 classes"):
            top_k(scores, wrong)
    assert top_k(scores, [], 2) == [("1", 200.0), ("2", 5.0)]
    stored = np.array([[0, 255]], np.uint8)
    quantised = TensorType((1, 2), "uint8", Quant((1 / 256,), (0,)))
    assert top_k(stored, ["a", "b"], 9, quantised) == [("b", 255 / 256), ("a", 0.0)]
    with pytest.raises(RunError, match="not of classes"):
        top_k(np.zeros(()), [])
