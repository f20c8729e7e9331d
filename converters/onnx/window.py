"""Convolutions and pools: explicit kernels, strides and pads; auto_pad is resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx.scope import GIVE_SIZES, NodeUse
from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Dim
from trireme.support.dtypes import FLOATS


def conv(use: NodeUse) -> Sequence[int]:
    """Conv, in NCHW with unchanged weights."""
    weight = use.type(1).shape
    x = with_same_pads(use, tuple(d for d in weight[2:] if isinstance(d, int)))
    return (use.add("conv", x, *use.inputs[1:], **conv_attrs(use, 0, weight)),)


def conv_attrs(use: NodeUse, x: int, weight: Sequence[Dim]) -> dict[str, Any]:
    """Return the attributes of a convolution of input `x` by a weight of that shape."""
    kernel = _kernel(use, weight)
    attrs = spatial(use, kernel, use.sizes(x, len(kernel)))
    return {**attrs, "groups": use.take("group", 1), "layout": "NCHW"}


def _kernel(use: NodeUse, weight: Sequence[Dim]) -> tuple[int, ...]:
    """Return the kernel's shape: the weight's, which an attribute may repeat but not change."""
    dims = weight[2:]
    given = use.take("kernel_shape")
    if not all(isinstance(dim, int) for dim in dims):
        raise use.error("the weight's kernel is not of known size", GIVE_SIZES)
    kernel = tuple(int(dim) for dim in dims)
    if given is not None and tuple(given) != kernel:
        raise use.error(f"kernel_shape {tuple(given)} is not the weight's {kernel}")
    return kernel


def pool(op: str) -> Callable[[NodeUse], Sequence[int]]:
    """Return the rule of a pool."""

    def rule(use: NodeUse) -> Sequence[int]:
        kernel = tuple(use.take("kernel_shape", ()))
        sizes = use.sizes(0, len(kernel))
        if len(kernel) != len(sizes):
            raise use.error(f"kernel_shape {kernel} is for rank {len(kernel) + 2}")
        x = use.need(0)
        if op == "max_pool" and len(use.outputs) == 1:
            x = with_same_pads(use, kernel, _least(use.type().dtype))
        elif op == "average_pool" and use.attrs.get("count_include_pad", 0):
            x = with_same_pads(use, kernel)
        attrs = {**spatial(use, kernel, sizes), **use.attrs, "kernel": kernel, "layout": "NCHW"}
        return use.add_node(op, [x], attrs, len(use.outputs))

    return rule


def conv_transpose(use: NodeUse) -> Sequence[int]:
    """ConvTranspose; an output_shape becomes pads and output padding."""
    kernel = _kernel(use, use.type(1).shape)
    sizes = use.sizes(0, len(kernel))
    wanted, extra = use.take("output_shape"), use.take("output_padding")
    auto = use.attrs.get("auto_pad", "NOTSET")
    groups = use.take("group", 1)
    strides = tuple(use.attrs.get("strides", (1,) * len(kernel)))
    if auto in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [n * s for n, s in zip(_known(use, sizes), strides, strict=True)]
    more = tuple(extra) if extra is not None else (0,) * len(kernel)
    if wanted is not None:
        dilations = tuple(use.attrs.get("dilations", (1,) * len(kernel)))
        lists = (_known(use, sizes), strides, kernel, dilations, more, wanted[-len(kernel) :])
        totals = [
            s * (n - 1) + p + (k - 1) * d + 1 - w for n, s, k, d, p, w in zip(*lists, strict=True)
        ]
        use.attrs["pads"] = _pads([max(total, 0) for total in totals], auto != "SAME_UPPER")
        more = tuple(p + max(-total, 0) for p, total in zip(more, totals, strict=True))
        use.attrs.pop("auto_pad", None)
    attrs = {**spatial(use, kernel, sizes), "groups": groups, "output_padding": more}
    return (use.add("conv_transpose", *use.inputs, layout="NCHW", **attrs),)


def with_same_pads(use: NodeUse, kernel: Sequence[int], fill: Any = None) -> int:
    """Return input 0, padded where auto_pad SAME takes pads that an open size decides.

    The window has no auto_pad then. The graph computes the pads of each axis of size n and stride
    s, ((n - 1) // s) s + reach - n, from the shape, so every run has its own. fill: None for 0
    """
    x, sizes = use.need(0), use.sizes(0, len(kernel))
    auto, ones = use.attrs.get("auto_pad", "NOTSET"), (1,) * len(kernel)
    strides, dilations = (tuple(use.attrs.get(key, ones)) for key in ("strides", "dilations"))
    windows = list(zip(sizes, kernel, strides, dilations, strict=False))
    is_open = any(isinstance(size, str) and stride > 1 for size, _, stride, _ in windows)
    if auto not in ("SAME_UPPER", "SAME_LOWER") or not is_open:
        return x
    less, more = [], []
    for axis, (_, side, stride, dilation) in enumerate(windows):
        total = _computed_same(use, x, axis + 2, (side - 1) * dilation + 1, stride)
        half = use.add("div", total, use.constant([2], "int64"))
        less.append(half)
        more.append(use.add("sub", total, half))
    ends = less + more if auto == "SAME_UPPER" else more + less
    axes = use.constant(range(2, 2 + len(kernel)), "int64")
    value = None if fill is None else use.constant(fill, use.type().dtype)
    for name in ("auto_pad", "pads"):
        use.attrs.pop(name, None)
    return use.add("pad", x, use.add("concat", *ends, axis=0), value, axes, mode="constant")


def _computed_same(use: NodeUse, x: int, axis: int, reach: int, stride: int) -> int:
    """Return the padding, computed from the shape of x, that gives ceil(size / stride) windows."""
    if reach == 1:
        return use.constant([0], "int64")
    if stride == 1:
        return use.constant([reach - 1], "int64")
    size = use.add("shape", x, start=axis, end=axis + 1)
    one, step = use.constant([1], "int64"), use.constant([stride], "int64")
    before = use.add("mul", use.add("div", use.add("sub", size, one), step), step)
    total = use.add("sub", use.add("add", before, use.constant([reach], "int64")), size)
    return total if reach >= stride else use.add("max", total, use.constant([0], "int64"))


def _least(dtype: str) -> Any:
    """Return the number that is the largest of no window, unless all are."""
    return -np.inf if dtype in FLOATS else np.iinfo(dtype).min


def spatial(use: NodeUse, kernel: Sequence[int], sizes: Sequence[Dim]) -> dict[str, Any]:
    """Return strides, dilations and pads, one entry (two for pads) for each spatial axis."""
    ones = (1,) * len(kernel)
    strides = tuple(use.take("strides", ones))
    dilations = tuple(use.take("dilations", ones))
    if not len(strides) == len(dilations) == len(kernel):
        raise use.error(f"strides {strides} or dilations {dilations} do not fit kernel {kernel}")
    pads, auto = tuple(use.take("pads", (0, 0) * len(kernel))), use.take("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            _same(use, *window) for window in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        pads = _pads(totals, auto == "SAME_LOWER")
    elif auto == "VALID":
        pads = (0, 0) * len(kernel)
    elif auto not in ("NOTSET", ""):
        raise use.error(f"auto_pad {auto!r} is unknown")
    return {"strides": strides, "dilations": dilations, "pads": pads}


def _same(use: NodeUse, size: Dim, kernel: int, stride: int, dilation: int) -> int:
    """Return the padding that gives ceil(size / stride) windows."""
    reach = (kernel - 1) * dilation + 1
    if stride == 1:
        return reach - 1
    if isinstance(size, str):
        raise use.error(
            f"auto_pad SAME with stride {stride} on the open dimension {size}",
            fix=shape_advice(use.scope.model_inputs()),
        )
    if stride < 1:
        raise use.error(f"stride {stride}")
    return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _pads(totals: Sequence[int], begin_gets_more: bool) -> tuple[int, ...]:
    """Split the padding of each axis between its two ends."""
    less = tuple(total // 2 for total in totals)
    more = tuple(total - total // 2 for total in totals)
    return more + less if begin_gets_more else less + more


def _known(use: NodeUse, sizes: Sequence[Dim]) -> list[int]:
    if not all(isinstance(size, int) for size in sizes):
        raise use.error("the output's size needs an input of known size", GIVE_SIZES)
    return [int(size) for size in sizes]
