"""Rules of quantised models of torch.export: quantize and dequantize, and integer products.

torch.ao writes `quantized_decomposed` ops around the ops of a network. They become
quantize_linear and dequantize_linear, which the passes fold into quantised types as those of ONNX.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.converters.torch.use import Use, dtype_name
from trireme.support.dtypes import Array

_EXACT = 1 << 24
"""Below it every whole number is a float32."""
_STORED = ("int8", "uint8", "int16", "uint16")


def _parameters(use: Use, dtype: str) -> tuple[int, int | None]:
    """Return the scale in float32 and the zero point in the dtype of the integers."""
    by_channel = "scales" in use.args
    scale, zero = ("scales", "zero_points") if by_channel else ("scale", "zero_point")
    point = use.args[zero]
    scales = use.operand(use.args[scale], "float32")
    points = None if point is None else use.operand(point, dtype)
    if not by_channel:
        scales = use.reshape(scales, [])
        points = None if points is None else use.reshape(points, [])
    return scales, points


def _axis(use: Use) -> int:
    return use.axis("axis", use.rank(use["input"])) if "axis" in use.args else 0


def quantize(use: Use) -> int:
    """quantize_per_tensor or per_channel: round(x / scale) + zero point within the limits."""
    dtype = dtype_name(use.args["dtype"])
    if dtype not in _STORED:
        raise use.error(f"a quantisation to {dtype} is not supported")
    scale, zero = _parameters(use, dtype)
    axis = _axis(use)
    x = use.cast(use["input"], "float32")
    made = use.add("quantize_linear", x, scale, zero, axis=axis, output_dtype=dtype)
    least, most = int(use["quant_min"]), int(use["quant_max"])
    limits = np.iinfo(dtype)
    if (least, most) == (limits.min, limits.max):
        return made
    return use.add("clip", made, use.constant(least, dtype), use.constant(most, dtype))


def dequantize(use: Use) -> int:
    """dequantize_per_tensor or per_channel: (q - zero point) scale."""
    q = use["input"]
    scale, zero = _parameters(use, use.type(q).dtype)
    made = use.add("dequantize_linear", q, scale, zero, axis=_axis(use))
    return use.cast(made, use.dtype)


def integer_product(use: Use) -> int:
    """_int_mm: int8 by int8 to int32; by floats where the weights keep every sum exact."""
    weights = use.data(use["mat2"])
    exact = weights is not None and _largest_sum(weights) < _EXACT
    dtype = "float32" if exact else "int32"
    made = use.add("matmul", use.cast(use["self"], dtype), use.cast(use["mat2"], dtype))
    return use.cast(made, "int32")


def _largest_sum(weights: Array) -> int:
    """Return the most that a row of int8 gives with the columns of some weights."""
    return int(np.abs(weights.astype(np.int64)).sum(0).max(initial=0)) * 128


_OPS: dict[str, Any] = {
    "dequantize_per_channel.default": dequantize,
    "dequantize_per_tensor.default": dequantize,
    "dequantize_per_tensor.tensor": dequantize,
    "quantize_per_channel.default": quantize,
    "quantize_per_tensor.default": quantize,
    "quantize_per_tensor.tensor": quantize,
}
QUANTIZED = {
    **{f"quantized_decomposed.{name}": rule for name, rule in _OPS.items()},
    "aten._int_mm.default": integer_product,
}
"""By op and overload: most are ops of torch.ao, not of ATen."""
