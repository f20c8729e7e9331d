"""DynamicQuantizeLSTM of ONNX Runtime: an LSTM whose products are of 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trireme.converters.onnx.integer_products import dynamic_quantize_linear
from trireme.converters.onnx.microsoft_quantized import scaled_product
from trireme.converters.onnx.scope import NodeUse
from trireme.support.dtypes import Array

_DEFAULT = ("Sigmoid", "Tanh", "Tanh")
_WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_REFUSED = {4: "sequence_lens", 7: "peepholes"}
W, R = 8, 10
"""Where the scales of the weights are; their zero points follow."""


def dynamic_quantize_lstm(use: NodeUse) -> Sequence[int]:
    """DynamicQuantizeLSTM(x, w, r, bias?, lengths?, h?, c?, peepholes?, w scale, zero, r ..).

    The whole input has one range, and the hidden values of each step have one.
    """
    ways = _checked(use)
    codes = dynamic_quantize_linear(use)
    results = [_direction(use, codes, number, back) for number, back in enumerate(ways)]
    rows, hidden, cells = zip(*results, strict=True)
    one = use.constant((1,), "int64")
    zero = use.constant((0,), "int64")
    parts = [[use.add("unsqueeze", row, one) for row in rows]]
    parts += [[use.add("unsqueeze", last, zero) for last in each] for each in (hidden, cells)]
    made = [
        group[0] if len(group) == 1 else use.add("concat", *group, axis=axis)
        for axis, group in zip((1, 0, 0), parts, strict=True)
    ]
    return made[: len(use.outputs)]


def _checked(use: NodeUse) -> tuple[bool, ...]:
    """Return which directions go backward.

    Errors: ConvertError, for what no file of the quantiser has
    """
    direction = use.attrs.get("direction", "forward")
    if direction not in _WAYS:
        raise use.error(f"direction {direction!r} is unknown")
    ways = _WAYS[direction]
    given = tuple(use.attrs.get("activations") or _DEFAULT * len(ways))
    if given != _DEFAULT * len(ways):
        raise use.error(f"activations {list(given)} are not supported, Sigmoid, Tanh, Tanh are")
    if use.attrs.get("clip") or use.attrs.get("input_forget"):
        raise use.error("clip and input_forget are not supported")
    for position, what in _REFUSED.items():
        if use.input(position) is not None:
            raise use.error(f"{what} are not supported")
    for position in (1, 2, W, W + 1, R, R + 1):
        array = use.array(position)
        if array is None or len(array) != len(ways):
            raise use.error(f"input {position} is no constant of {len(ways)} directions")
    return ways


def _direction(use: NodeUse, codes: Sequence[int], number: int, back: bool) -> tuple[int, int, int]:
    """Return the hidden values [T,B,H] of a direction, and its last hidden and cell values."""
    gates = _product(use, codes, number)
    bias = use.array(3)
    if bias is not None:
        half = bias.shape[1] // 2
        gates = use.add("add", gates, use.constant(bias[number, :half] + bias[number, half:]))
    states = [_first(use, position, number, gates) for position in (5, 6)]
    weights, scale, point = (_own(use, position, number) for position in (2, R, R + 1))
    inputs = [gates, *map(use.constant, (weights, scale.reshape(-1), point.reshape(-1))), *states]
    rows, h, c = use.add_node("dynamic_range_lstm", inputs, {"reverse": back}, 3)
    return rows, h, c


def _own(use: NodeUse, position: int, number: int) -> Array:
    """Return the constant of a direction."""
    array = use.array(position)
    if array is None:
        raise use.error(f"input {position} is no constant")
    return np.ascontiguousarray(array[number])


def _product(use: NodeUse, codes: Sequence[int], number: int) -> int:
    """Return the product of codes (values, step, zero point) by the weights of a direction."""
    values, step, zero = codes
    weights, scale, point = (
        use.constant(_own(use, position, number)) for position in (1, W, W + 1)
    )
    return scaled_product(use, [values, weights, zero, point], use.add("mul", step, scale), None)


def _first(use: NodeUse, position: int, number: int, gates: int) -> int:
    """Return the first hidden or cell values [B,H] of a direction; zeros where none are given."""
    place = use.constant(np.array(number, np.int64))
    if use.input(position) is not None:
        return use.add("gather", use.need(position), place, axis=0)
    batch = use.add("shape", gates, start=1, end=2)
    size = use.constant((_hidden(use),), "int64")
    zero = use.constant(np.zeros((), np.float32))
    return use.add("expand", zero, use.add("concat", batch, size, axis=0))


def _hidden(use: NodeUse) -> int:
    weights = use.array(2)
    return 0 if weights is None else int(weights.shape[1])
