"""Pictures in, class names out: what the command line needs around an image classifier."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from trireme.ir.graph import TensorType, Value
from trireme.quantiser.samples import Feeds, Samples
from trireme.support.dtypes import INTS, Array, numpy_dtype
from trireme.support.errors import RunError

NORMALISATIONS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "signed": ((127.5,), (127.5,)),
    "unit": ((0.0,), (255.0,)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "none": ((0.0,), (1.0,)),
}
"""The subtrahend and the divisor of pixels 0..255: one for all or by channel.

Source of "imagenet": mean and standard deviation of ImageNet's training images, as torchvision
states them, times 255
"""

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""The files of a folder that are taken for pictures."""

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name of a picture with so many channels."""

_NUMBERED = re.compile(r"\s*(\d+)[\s:,]+(\S.*)")


def load_image(
    path: str | os.PathLike[str], type: TensorType, *, normalise: str = "signed"
) -> Array:
    """Return a picture as the array of a model's input, repeated along the batch.

    The picture is turned as its camera says and resized to the input, without keeping its
    proportions, by Pillow's bilinear filter (which averages when it shrinks). Pixels go to floats
    by `normalise`: "signed" -1..1, "unit" 0..1, "imagenet" by channel, "none" 0..255. An integer
    input takes the pixels themselves (int8: pixel - 128), whatever range its quantisation gives
    them; only "imagenet" goes through the quantisation.

    Shapes: type [N,H,W,C] or [N,C,H,W], or without N; C is 1, 3 or 4; an open N is 1, open H and W
        are the picture's
    Errors: RunError, if the file is no picture or the input does not take one
    """
    batch, height, width, channels, channels_first = _layout(type)
    if normalise not in NORMALISATIONS:
        raise RunError(
            f"unknown normalisation {normalise!r}", facts=[f"known: {', '.join(NORMALISATIONS)}"]
        )
    picture = _open(path, _MODES[channels])
    size = (width or picture.width, height or picture.height)
    pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
    values = _values(pixels.reshape(size[1], size[0], channels), type, normalise)
    if channels_first:
        values = values.transpose(2, 0, 1)
    if len(type.shape) == 4:
        values = np.repeat(values[np.newaxis], batch, axis=0)
    return np.ascontiguousarray(values)


@dataclass(frozen=True)
class _Pictures:
    """Feeds of picture files; each pass reads the files again."""

    files: tuple[Path, ...]
    value: Value
    normalise: str

    def __iter__(self) -> Iterator[Feeds]:
        for file in self.files:
            array = load_image(file, self.value.type, normalise=self.normalise)
            yield {self.value.name: array}


def load_images(folder: str | os.PathLike[str], value: Value, normalise: str) -> Samples:
    """Return the pictures of a folder, in the order of their names, as samples of an input.

    Errors: RunError, if the folder holds no picture, or the input takes none
    """
    _layout(value.type)
    files = sorted(file for file in Path(folder).iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        known = ", ".join(SUFFIXES)
        raise RunError(f"{os.fspath(folder)} holds no picture", facts=[f"suffixes: {known}"])
    feeds = _Pictures(tuple(files), value, normalise)
    source = f"{len(files)} pictures of {Path(folder).name}/ by {normalise}"
    return Samples(feeds, len(files), source)


def _layout(type: TensorType) -> tuple[int, int, int, int, bool]:
    """Return batch, height, width (0: open), channels, and whether channels come first."""
    sizes = [dim if isinstance(dim, int) else 0 for dim in type.shape]
    if len(sizes) in (3, 4):
        batch, *rest = sizes if len(sizes) == 4 else [1, *sizes]
        for channels in ((1, 3), (4,)):  # four rows are likelier than an alpha channel
            if rest[2] in channels:
                return batch or 1, rest[0], rest[1], rest[2], False
            if rest[0] in channels:
                return batch or 1, rest[1], rest[2], rest[0], True
    raise RunError(
        f"an input of type {type} does not take a picture",
        facts=["a picture is [N,H,W,C] or [N,C,H,W] with 1, 3 or 4 channels"],
    )


def _open(path: str | os.PathLike[str], mode: str) -> Image.Image:
    try:
        with Image.open(path) as picture:
            return ImageOps.exif_transpose(picture).convert(mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise RunError(f"{os.fspath(path)}: not a picture that can be read: {text}") from error


def _values(pixels: Array, type: TensorType, normalise: str) -> Array:
    """Return pixels 0..255 [H,W,C] as elements of the type."""
    dtype = numpy_dtype(type.dtype)
    if type.dtype in INTS and normalise != "imagenet":
        shifted: Array = pixels.astype(np.int32) - (128 if type.dtype == "int8" else 0)
        return shifted.astype(dtype)
    offset, divisor = (np.asarray(v, np.float32) for v in NORMALISATIONS[normalise])
    if pixels.shape[2] == 1:
        offset, divisor = offset.mean(), divisor.mean()
    elif pixels.shape[2] == 4 and offset.size == 3:
        raise RunError("normalisation 'imagenet' is for 1 or 3 channels, the input has 4")
    real: Array = (pixels.astype(np.float32) - offset) / divisor
    if type.dtype not in INTS:
        return real.astype(dtype)
    if type.quant is None:
        raise RunError(f"normalisation 'imagenet' needs a quantised or float input, not {type}")
    limits = np.iinfo(dtype)
    stored: Array = np.round(real / type.quant.scale) + type.quant.zero_point
    return np.clip(stored, limits.min, limits.max).astype(dtype)


def load_labels(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of classes, by index, from a text file.

    Either each line is a name, in order, or each starts with its index ("17 cat"), in any order;
    an index that is left out gets its number as a name.
    Errors: RunError, if the file is not text or empty, or an index comes twice or is absurd
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise RunError(f"{os.fspath(path)}: labels cannot be read: {text}") from error
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise RunError(f"{os.fspath(path)}: the file holds no labels")
    numbered = [_NUMBERED.fullmatch(line) for line in lines if line.strip()]
    found = [(int(match[1]), match[2].strip()) for match in numbered if match]
    if not found or len(found) < len(numbered):
        return [line.strip() for line in lines]
    names = dict(found)
    if len(names) < len(found) or max(names) > 1_000_000:
        raise RunError(f"{os.fspath(path)}: labels have an index twice, or one over a million")
    return [names.get(index, str(index)) for index in range(max(names) + 1)]


def top_k(
    scores: Array, labels: Sequence[str], count: int = 5, type: TensorType | None = None
) -> list[tuple[str, float]]:
    """Return the best classes and their scores, best first; of the first item of a batch.

    A stored score of a quantised `type` becomes the real number. Lists with and without a leading
    "background" are both in use: one name too few or too many is taken for that one. Without
    labels the classes are numbers.
    Shapes: scores [..., classes]
    Errors: RunError, if the scores are not of classes or there are not as many labels
    """
    if scores.ndim == 0 or scores.size == 0:
        raise RunError(f"scores of shape {list(scores.shape)} are not of classes")
    row = scores.reshape(-1, scores.shape[-1])[0].astype(np.float64)
    if type is not None and type.quant is not None and type.quant.axis is None:
        row = (row - type.quant.zero_point) * type.quant.scale
    names = list(labels)
    if len(names) == row.size - 1:
        names.insert(0, "background")
    elif len(names) == row.size + 1 and names[0].lower() == "background":
        names = names[1:]
    if names and len(names) != row.size:
        raise RunError(f"there are {len(labels)} labels for {row.size} classes")
    order = np.argsort(-row, kind="stable")[:count].tolist()
    return [(names[i] if i < len(names) else str(i), float(row[i])) for i in order]
