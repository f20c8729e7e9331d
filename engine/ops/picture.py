"""The op that decodes a picture: the bytes of a file come in, its pixels go out."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np

from trireme.ir.graph import UNKNOWN, Value
from trireme.ir.op import Attr, Sample, define
from trireme.ops.shapes import Types, expect_rank, one
from trireme.support.dtypes import Array

_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}
"""Pillow's mode by ONNX's pixel_format."""


def _infer(encoded: Value, *, pixel_format: str) -> Types:
    expect_rank("encoded", encoded, 1)
    return one((UNKNOWN, UNKNOWN, len(_MODES[pixel_format])), "uint8")


def _decode(encoded: Array, *, pixel_format: str) -> Array:
    """Return the pixels; none where the bytes are no picture that Pillow reads."""
    from PIL import Image

    mode = _MODES[pixel_format]
    try:
        with Image.open(io.BytesIO(encoded.tobytes())) as picture:
            pixels = np.asarray(picture.convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return np.zeros((0, 0, len(mode)), np.uint8)
    pixels = pixels.reshape(*pixels.shape[:2], len(mode))
    return np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    from PIL import Image

    pixels = np.arange(5 * 9 * 3, dtype=np.uint8).reshape(5, 9, 3) + np.uint8(rng.integers(99))
    for pixel_format in _MODES:
        with io.BytesIO() as file:
            Image.fromarray(pixels).save(file, "PNG")
            encoded = np.frombuffer(file.getvalue(), np.uint8)
        yield Sample((encoded,), {"pixel_format": pixel_format}, note=pixel_format)


define(
    "image_decoder",
    "encoded",
    "y = the pixels of an encoded picture, [H, W, C]; [0, 0, C] where it cannot be decoded. "
    "Shapes: encoded uint8[bytes]. Source: ONNX ImageDecoder-20, read by Pillow",
    _infer,
    _decode,
    attrs={"pixel_format": Attr("str", "RGB", choices=tuple(_MODES))},
    flops=lambda call: 20 * call.type(0).elements,
    bounded=False,
    samples=_samples,
    dtypes=(frozenset({"uint8"}),),
)
