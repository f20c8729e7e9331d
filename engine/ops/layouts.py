"""The order of an image's axes: NHWC or NCHW, for ops with the attribute `layout`."""

from __future__ import annotations

import numpy as np

from trireme.ir.graph import Dim
from trireme.ir.op import Attr
from trireme.ops.shapes import Shape
from trireme.support.dtypes import Array

LAYOUT = Attr("str", "NHWC", ("NHWC", "NCHW"))


def spatial(shape: Shape, layout: str) -> Shape:
    """Return the spatial dimensions of an image or weight shape."""
    return shape[1:-1] if layout == "NHWC" else shape[2:]


def channels(shape: Shape, layout: str) -> Dim:
    """Return the channel dimension of an image or weight shape."""
    return shape[-1] if layout == "NHWC" else shape[1]


def image_shape(batch: Dim, space: Shape, depth: Dim, layout: str) -> Shape:
    """Return an image's shape in a layout."""
    return (batch, *space, depth) if layout == "NHWC" else (batch, depth, *space)


def channels_last(x: Array, layout: str) -> Array:
    """Return an image or weight array with its channels last."""
    return x if layout == "NHWC" else np.moveaxis(x, 1, -1)


def from_channels_last(y: Array, layout: str) -> Array:
    """Return an image with its channels last in a layout."""
    return y if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(y, -1, 1))
