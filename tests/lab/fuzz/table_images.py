"""Rows of convolutions, pools, resizes and what else works on images."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from lab.fuzz.grower import INTS, Grower, Refused, Tensor
from lab.fuzz.rows import FLOAT32, Row, row, value


def image(g: Grower, dtypes: Any = FLOAT32) -> Tensor:
    """An image: batch, channels, one to three spatial axes."""
    return g.pick(dtypes, g.choose([(4,), (4,), (3, 4, 5)]), lambda t: t.array.size > 0)


def window(g: Grower, x: Tensor, kernel: list[int], *, dilated: bool = True) -> dict[str, Any]:
    """Strides, pads and dilations, each spelled out or left to their defaults."""
    rank = x.rank - 2
    attrs: dict[str, Any] = {}
    if g.chance(0.6):
        attrs["strides"] = [int(v) for v in g.rng.integers(1, 4, rank)]
    if dilated and g.chance(0.25):
        attrs["dilations"] = [int(v) for v in g.rng.integers(1, 3, rank)]
    way = g.rng.random()
    if way < 0.5:
        dilations = attrs.get("dilations", [1] * rank)
        most = [min(2, (k - 1) * d) for k, d in zip(kernel, dilations, strict=True)] * 2
        attrs["pads"] = [int(g.rng.integers(0, m + 1)) for m in most]
    elif way < 0.7:
        attrs["auto_pad"] = g.choose(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    return attrs


def conv(g: Grower) -> None:
    """Conv in one to three dimensions, grouped and depthwise, with a bias or without."""
    x = image(g, ("float32", "float32", "float32", "float64"))
    channels, rank = x.shape[1], x.rank - 2
    groups = int(g.choose([k for k in (1, 1, 2, 3, channels) if channels % k == 0]))
    out = groups * int(g.rng.integers(1, 5))
    kernel = [int(g.choose([1, 1, 2, 3, 3, 5])) for _ in range(rank)]
    per = channels // groups
    w = g.random(x.dtype, (out, per, *kernel)) / math.sqrt(per * math.prod(kernel))
    bias = g.operand(g.random(x.dtype, (out,))) if g.chance(0.6) else None
    attrs = window(g, x, kernel) | ({"group": groups} if groups > 1 or g.chance(0.3) else {})
    if g.chance(0.7):
        attrs["kernel_shape"] = kernel
    g.node("Conv", [x, g.operand(w.astype(x.dtype), 0.9), bias], attrs)


def conv_transpose(g: Grower) -> None:
    """ConvTranspose, its output's shape given or not."""
    x = image(g)
    channels, rank = x.shape[1], x.rank - 2
    groups = int(g.choose([k for k in (1, 1, 2, channels) if channels % k == 0]))
    per = int(g.rng.integers(1, 4))
    kernel = [int(g.rng.integers(1, 4)) for _ in range(rank)]
    w = g.random(x.dtype, (channels, per, *kernel), -0.7, 0.7)
    bias = g.operand(g.random(x.dtype, (groups * per,))) if g.chance(0.5) else None
    attrs = window(g, x, kernel) | {"group": groups, "kernel_shape": kernel}
    strides = attrs.get("strides", [1] * rank)
    if max(strides) > min(kernel):
        attrs.pop("auto_pad", None)  # ONNX Runtime's output is not stride times the input then
    if g.chance(0.3):
        attrs["output_padding"] = [int(g.rng.integers(0, s)) for s in strides]
    g.node("ConvTranspose", [x, g.operand(w), bias], attrs)


def pool(op: str) -> Any:
    """A pool with windows inside and outside, ceil_mode, indices."""

    def build(g: Grower) -> None:
        x = image(
            g, ("float32", "float32", "float64", "int8", "uint8") if op == "MaxPool" else FLOAT32
        )
        kernel = [int(g.rng.integers(1, 5)) for _ in range(x.rank - 2)]
        attrs = window(g, x, kernel, dilated=op == "MaxPool" or g.opset >= 19) | {
            "kernel_shape": kernel
        }
        if op == "LpPool":
            attrs["p"] = g.choose([1, 2, None])
        elif g.opset >= 10:
            attrs["ceil_mode"] = g.choose([0, 0, 1, None])
        if op == "AveragePool":
            attrs["count_include_pad"] = g.choose([0, 1, None])
        if "dilations" in attrs:
            attrs.pop("auto_pad", None)  # ONNX Runtime pads as if there were none
        if not inside(x, kernel, attrs):
            raise Refused("ONNX Runtime has rules of its own where the window does not fit")
        outputs = 2 if op == "MaxPool" and g.chance(0.15) else 1
        found = outputs == 2  # where a maximum is may be decided by rounding, what it is may not
        g.node(op, [x], attrs, outputs, rounds=found or op != "MaxPool")

    return build


def inside(x: Tensor, kernel: list[int], attrs: dict[str, Any]) -> bool:
    """Whether the window fits into the image and its pads along every axis, and no pad is negative.

    ONNX Runtime cuts the output's size toward zero where it does not fit. Where SAME comes to less
    than no pad, it refuses MaxPool and AveragePool, and LpPool skips elements; its Conv pads none.
    """
    rank = x.rank - 2
    if attrs.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
        strides = attrs.get("strides", [1] * rank)
        return all((n - 1) % s < k for n, s, k in zip(x.shape[2:], strides, kernel, strict=True))
    pads, dilations = attrs.get("pads", [0, 0] * rank), attrs.get("dilations", [1] * rank)
    return all(
        x.shape[2 + a] + pads[a] + pads[a + rank] > (kernel[a] - 1) * dilations[a]
        for a in range(rank)
    )


COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel",
    None,
)


def resize(g: Grower) -> None:
    """Resize by scales or sizes, in every mode and way to place pixels."""
    x = image(g, ("float32", "float32", "float32", "uint8", "int8", "int32"))
    if g.opset < 11:
        old_resize(g, x)
        return
    rank = x.rank
    mode = g.choose(["nearest", "linear", "cubic" if x.dtype == "float32" else "linear", None])
    chosen = [
        n if a < 2 and g.chance(0.9) else int(g.rng.integers(1, 9)) for a, n in enumerate(x.shape)
    ]
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": g.choose(COORDINATES)}
    if mode in (None, "nearest"):
        attrs["nearest_mode"] = g.choose(
            [None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
        )
    if mode == "cubic":
        attrs["cubic_coeff_a"] = g.choose([None, -0.5])
        attrs["exclude_outside"] = g.choose([None, 0, 1])
    none = None if g.opset >= 13 else g.constant(np.zeros(0, np.float32))
    if g.chance(0.5):
        how = attrs["coordinate_transformation_mode"]
        if mode in (None, "nearest") and any(map(partial(misses, how), x.shape, chosen)):
            raise Refused("ONNX Runtime's float32 ratio of two sizes misses a place")
        operands = [x, none, none, g.constant(np.array(chosen, np.int64))]
    else:
        scales = [
            c / n if g.chance(0.5) else g.choose([1.0, 2.0, 0.5])
            for c, n in zip(chosen, x.shape, strict=True)
        ]
        scales = [1.0 if a < 2 else s for a, s in enumerate(scales)]
        operands = [x, none, g.constant(np.array(scales, np.float32))]
    smooth = mode in ("linear", "cubic") and x.dtype == "float32"
    if g.opset >= 18 and g.chance(0.15) and rank == 4 and smooth:
        attrs["antialias"] = 1
    g.node("Resize", operands, attrs, loose=float(x.dtype in INTS and mode == "linear"))


def misses(how: str | None, before: int, after: int) -> bool:
    """Whether ONNX Runtime puts a pixel beside the whole or half place where it is.

    The place of a pixel is a fraction of the two sizes; ONNX Runtime divides by their quotient in
    float32, so that (4 + 1/2) * 10 / 6 - 1/2, which is 7, is 6.9999995 there and a floor of 6;
    ONNX's reference evaluator takes pixel 7.
    """
    if how == "align_corners":
        return False
    shift = 0.0 if how == "asymmetric" else 0.5
    scale, half = np.float32(after) / np.float32(before), np.float32(shift)
    for pixel in range(after):
        exact = (pixel + Fraction(shift)) * before / after - Fraction(shift)
        theirs = (np.float32(pixel) + half) / scale - half
        if (2 * exact).denominator == 1 and Fraction(float(theirs)) != exact:
            return True
    return False


def old_resize(g: Grower, x: Tensor) -> None:
    """Resize-10 and Upsample-9: scales alone."""
    scales = np.array([1, 1, *(float(g.choose([1, 2, 3])) for _ in x.shape[2:])], np.float32)
    attrs = {"mode": g.choose(["nearest", "linear", None])}
    op = "Resize" if g.opset == 10 else "Upsample"
    loose = float(x.dtype in INTS and attrs["mode"] == "linear")
    g.node(op, [x, g.constant(scales)], attrs, loose=loose)


def depth(op: str) -> Any:
    """DepthToSpace or SpaceToDepth."""

    def build(g: Grower) -> None:
        block = 2
        ok = (
            (lambda t: t.shape[1] % 4 == 0)
            if op == "DepthToSpace"
            else (lambda t: t.shape[2] % 2 == 0 and t.shape[3] % 2 == 0)
        )
        x = g.pick(("float32",), (4,), lambda t: t.array.size > 0 and ok(t))
        modes = op == "DepthToSpace" and g.opset >= 11
        g.node(
            op,
            [x],
            {"blocksize": block, "mode": g.choose(["DCR", "CRD", None]) if modes else None},
            rounds=False,
        )

    return build


def grid_sample(g: Grower) -> None:
    """GridSample at places inside and outside."""
    x = g.pick(("float32",), (4,), lambda t: t.array.size > 0)
    if g.opset < 16:
        raise Refused("no GridSample")
    grid = g.random(
        "float32", (x.shape[0], int(g.rng.integers(1, 5)), int(g.rng.integers(1, 5)), 2), -1.2, 1.2
    )
    modes = ["bilinear", "nearest", "bicubic"] if g.opset < 20 else ["linear", "nearest", "cubic"]
    attrs = {
        "mode": g.choose([*modes, None]),
        "align_corners": g.choose([0, 1, None]),
        "padding_mode": g.choose(["zeros", "border", "reflection", None]),
    }
    g.node("GridSample", [x, g.operand(grid, 0.5)], attrs)


ROWS: tuple[Row, ...] = (
    Row("Conv", conv, 5),
    Row("ConvTranspose", conv_transpose),
    Row("MaxPool", pool("MaxPool"), 2),
    Row("AveragePool", pool("AveragePool"), 2),
    Row("LpPool", pool("LpPool"), 0.3),
    Row("Resize", resize, 2),
    *(
        row(f"Global{name}Pool", value(FLOAT32, (3, 4, 5)), rounds=name != "Max")
        for name in ("Average", "Max", "Lp")
    ),
    *(Row(op, depth(op), 0.6) for op in ("DepthToSpace", "SpaceToDepth")),
    Row("GridSample", grid_sample, 0.4),
)
