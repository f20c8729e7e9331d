"""How pools are written; an average whose border does not count is corrected in floats."""

from __future__ import annotations

import numpy as np

from trireme.converters.tflite.write.activations import fused
from trireme.converters.tflite.write.use import NodeWriter, WriteRule
from trireme.converters.tflite.write.windows import (
    VALID,
    WrittenWindow,
    padded,
    steps_of,
    window_of,
)
from trireme.ir.dims import add
from trireme.ir.graph import TensorType
from trireme.support.dtypes import Array


def pool(code: str) -> WriteRule:
    """Return the rule of a pool."""

    def rule(use: NodeWriter) -> None:
        if len(use.node.outputs) > 1:
            raise use.error("the places of the maxima have no form in TensorFlow Lite")
        use.check_dtype(0, "float32 qint8 quint8 qint16")
        use.check_one_quant(0)
        kernel = use.attrs["kernel"]
        if len(kernel) != 2 or any(d != 1 for d in use.attrs["dilations"]):
            raise use.error("a pool over two axes without dilations is needed")
        window = window_of(use, kernel)
        if code == "MAX_POOL_2D":
            _pooled(use, code, *padded(use, use.x(0), window, _least(use.type(0))), window)
        else:
            _average(use, window)

    return rule


def _least(type: TensorType) -> float:
    return float("-inf") if type.dtype == "float32" else int(np.iinfo(type.dtype).min)


def _options(padding: int, window: WrittenWindow) -> dict[str, int]:
    size = {"FilterHeight": window.kernel[0], "FilterWidth": window.kernel[1]}
    return {"Padding": padding, **steps_of(window), **size}


def _pooled(use: NodeWriter, code: str, x: int, padding: int, window: WrittenWindow) -> None:
    fused(use, code, [x], "Pool2DOptions", **_options(padding, window))


def _average(use: NodeWriter, window: WrittenWindow) -> None:
    """Write AVERAGE_POOL_2D, whose border does not count; else floats are corrected."""
    code, attrs = "AVERAGE_POOL_2D", use.attrs
    beyond = attrs["ceil_mode"] and window.pads != _given_pads(use)
    if window.is_valid or (window.is_same and not attrs["count_include_pad"]):
        _pooled(use, code, *padded(use, use.x(0), window), window)
        return
    x, padding = _padded_zero(use, window)
    if attrs["count_include_pad"] and not beyond:
        _pooled(use, code, x, padding, window)
        return
    y = use.output()
    if use.is_quantised or beyond or not y.is_static:
        raise use.error("an average whose border does not count is written with SAME pads only")
    means = use.add(code, [x], None, "Pool2DOptions", **_options(padding, window))
    fused(use, "MUL", [means, use.array(_shares(use, window))], "MulOptions")


def _given_pads(use: NodeWriter) -> tuple[tuple[int, int], ...]:
    pads = use.attrs["pads"]
    return ((pads[0], pads[2]), (pads[1], pads[3]))


def _padded_zero(use: NodeWriter, window: WrittenWindow) -> tuple[int, int]:
    """Return x padded with zeros, also where SAME has these pads."""
    type = use.type(0)
    pairs = [(0, 0), *window.pads, (0, 0)]
    shape = tuple(add(dim, sum(pair)) for dim, pair in zip(type.shape, pairs, strict=True))
    to = TensorType(shape, type.dtype, type.quant)
    return use.add("PAD", [use.x(0), use.ints(pairs)], to, "PadOptions"), VALID


def _shares(use: NodeWriter, window: WrittenWindow) -> Array:
    """Return [1,OH,OW,1] of a window's elements over those of them that are no border."""
    counts = []
    for axis in range(2):
        (first, _), size = window.pads[axis], window.sizes[axis]
        starts = np.arange(use.output().dims[1 + axis]) * window.strides[axis] - first
        ends = np.minimum(starts + window.kernel[axis], int(size))
        counts.append(ends - np.maximum(starts, 0))
    inside = counts[0][:, None] * counts[1][None, :]
    share = window.kernel[0] * window.kernel[1] / inside
    return np.asarray(share, np.float32)[None, :, :, None]


POOLS: dict[str, WriteRule] = {
    "average_pool": pool("AVERAGE_POOL_2D"),
    "max_pool": pool("MAX_POOL_2D"),
}
"""The rules of pools."""
