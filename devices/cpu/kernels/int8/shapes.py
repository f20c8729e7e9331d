"""Convolutions and fully connected layers on 8-bit integers, as shapes of products of matrices."""

from __future__ import annotations

import numpy as np

from trireme.devices.cpu.kernels.int8.pack import Int8MatmulShape
from trireme.devices.cpu.kernels.int8.prepare import LineWindow
from trireme.ir.graph import Graph, Node

Shape = tuple[int, int, int, int]


def fully_connected_shape(graph: Graph, node: Node) -> tuple[Int8MatmulShape, LineWindow, Shape]:
    """Return the product, which lines its rows see, and the shape of the image they are of."""
    channels, depth = graph.type(node.used[1]).dims
    return matrix_shape(graph.type(node.used[0]).elements // depth, depth, channels)


def matrix_shape(rows: int, depth: int, channels: int) -> tuple[Int8MatmulShape, LineWindow, Shape]:
    """Return the same of a product of [rows, depth] with weights [channels, depth]."""
    product = Int8MatmulShape(rows, channels, 1, None, depth, 0, ((0, depth),))
    return product, *_matrix(rows, depth)


def _matrix(rows: int, depth: int) -> tuple[LineWindow, Shape]:
    """Return a matrix as an image of one column, with a line for each row."""
    return LineWindow(rows, 1, rows, 1, 1), (1, rows, 1, depth)


def conv_shape(graph: Graph, node: Node) -> tuple[Int8MatmulShape, LineWindow, Shape]:
    """Return the product of a 2-D conv, which lines its rows see, and the shape of its image.

    The offsets of rows are counted with the conv's pads around the image.
    """
    x, w, y = (graph.type(v).dims for v in (node.used[0], node.used[1], node.outputs[0]))
    (top, left, bottom, right) = node.attrs["pads"]
    (sh, sw), (dh, dw) = node.attrs["strides"], node.attrs["dilations"]
    groups = node.attrs["groups"]
    height, width, channels = x[1] + top + bottom, x[2] + left + right, x[3]
    kh, kw, depth = w[1:]
    if (kh, kw, sh, sw) == (1, 1, 1, 1) and not any(node.attrs["pads"]):
        rows = x[0] * x[1] * x[2]
        product = Int8MatmulShape(
            rows, w[0] // groups, groups, None, channels, depth, ((0, depth),)
        )
        return product, *_matrix(rows, channels)
    if dw == 1 and groups == 1:
        spans = tuple((ky * dh * width * channels, kw * depth) for ky in range(kh))
    else:
        spans = tuple(
            ((ky * dh * width + kx * dw) * channels, depth) for ky in range(kh) for kx in range(kw)
        )
    n, oy, ox = np.meshgrid(*map(np.arange, y[:3]), indexing="ij")
    offsets = (((n * height + oy * sh) * width + ox * sw) * channels).astype(np.int32).reshape(-1)
    product = Int8MatmulShape(len(offsets), w[0] // groups, groups, offsets, channels, depth, spans)
    view = LineWindow(y[1], y[2], height, sh, (kh - 1) * dh + 1)
    return product, view, (x[0], x[1], x[2], x[3])
