"""Recurrent layers of int8 values: UNIDIRECTIONAL_SEQUENCE_LSTM, LSTM and SVDF.

The zero points of the inputs go into the biases, and the scales between values become multipliers
and shifts, in float32 as in LiteRT.

Source: TensorFlow Lite, lstm.cc: PopulateQuantizedLstmParams8x8_16; svdf.cc: Prepare
"""

from __future__ import annotations

import math

import numpy as np

from trireme.converters.tflite.file import NO_TENSOR, FileTensor
from trireme.converters.tflite.use import OperatorUse
from trireme.ir.graph import Quant
from trireme.ops.integer import quantize_multiplier
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError

_PARTS = 5
"""The intermediate tensors of an lstm: the sums of four gates, and the hidden value."""


def _scaled(use: OperatorUse, tensor: FileTensor, *dtypes: str) -> Quant:
    """Return the quantisation of a tensor that has one scale and one of the dtypes."""
    if tensor.quant is None or tensor.quant.axis is not None or tensor.dtype not in dtypes:
        raise use.fail(f"'{tensor.name}' is {tensor.dtype}, expected {dtypes[0]} with one scale")
    return tensor.quant


def _stored(use: OperatorUse, position: int, dtype: str) -> tuple[Array, np.float32]:
    """Return a constant's integers and their scale.

    Errors: ConvertError, if it is no constant of the dtype without zero point
    """
    tensor = use.tensor(position)
    quant = _scaled(use, tensor, dtype)
    if tensor.data is None or any(quant.zero_points):
        raise use.fail(f"input {position} '{tensor.name}' must be constant, with zero point 0")
    return tensor.data, np.float32(quant.scale)


def _bias(use: OperatorUse, position: int) -> Array:
    tensor = use.tensor(position)
    if tensor.data is None or tensor.dtype != "int32":
        raise use.fail(f"input {position} '{tensor.name}' must be constant int32")
    return tensor.data


def _corrected(weights: Array, zero: int, bias: Array | int) -> Array:
    """Return the bias of a product of values that are stored with a zero point."""
    rows = weights.astype(np.int64).sum(axis=1)
    return np.asarray(bias - zero * rows).astype(np.int32)


def integer_lstm(use: OperatorUse, time_axis: int | None) -> None:
    """Add an lstm of int8 values; without a time axis, one step.

    Errors: ConvertError, if it is not LiteRT's form of int8 values with an int16 cell
    """
    x, h, c = use.quant(0), use.tensor(18), use.tensor(19)
    if x is None or len(use.operator.intermediates) != _PARTS:
        count = len(use.operator.intermediates)
        raise use.fail(f"an int8 LSTM with {count} intermediates is not supported, expected 5")
    h_quant, c_quant = _scaled(use, h, "int8"), _scaled(use, c, "int16")
    cell_scale = round(math.log2(c_quant.scale))
    if abs(c_quant.scale / 2.0**cell_scale - 1) > 1e-3 or not -15 <= cell_scale <= -9:
        raise use.fail(f"the cell's scale is {c_quant.scale}, expected 2**-15 to 2**-9")
    gates = range(4) if use.has(1) else range(1, 4)
    has_norms = use.has(21)
    between = [_intermediate(use, k) for k in range(_PARTS)]
    steps = [np.float32(_scale_of(use, between[k]) if has_norms else 2.0**-12) for k in range(4)]
    hidden = _quant_of(use, between[4])
    w, w_scales = zip(*(_stored(use, 1 + k, "int8") for k in gates), strict=True)
    r, r_scales = zip(*(_stored(use, 5 + k, "int8") for k in gates), strict=True)
    x_scale, h_scale = np.float32(x.scale), np.float32(h_quant.scale)
    reals = [s * x_scale / steps[k] for s, k in zip(w_scales, gates, strict=True)]
    reals += [s * h_scale / steps[k] for s, k in zip(r_scales, gates, strict=True)]
    biases = [_bias(use, 12 + k) for k in gates]
    inputs: list[Array | None] = [
        np.concatenate(w),
        np.concatenate(r),
        np.concatenate(
            [
                _corrected(one, x.zero_point, 0 if has_norms else bias)
                for one, bias in zip(w, biases, strict=True)
            ]
        ),
        np.concatenate([_corrected(one, h_quant.zero_point, 0) for one in r]),
    ]
    tail: list[Array | None] = [None] * 5
    guards = [1] * len(gates)
    if has_norms:
        norms, scales = zip(*(_stored(use, 20 + k, "int16") for k in gates), strict=True)
        tail[1], tail[2] = np.stack(norms), np.stack(biases)
        guards = [max(1, int(np.float32(10000) * scale)) for scale in scales]
        reals += scales
    else:
        reals += [np.float32(0)] * len(gates)
    tail[0], seen = _peepholes(use, gates, steps, cell_scale)
    reals += [*seen, np.float32(2.0**-15 / hidden.scale * 2.0**-15)]
    clips = [float(use.option("CellClip", 0.0)), float(use.option("ProjClip", 0.0))]
    limits = [_limit(clips[0], c_quant.scale, 32767), 0]
    # Measured: before a projection LiteRT takes the hidden value's zero point with the other sign.
    zero = -hidden.zero_point if use.has(16) else hidden.zero_point
    if use.has(16):
        data, scale = _stored(use, 16, "int8")
        bias = _bias(use, 17) if use.has(17) else 0
        tail[3], tail[4] = data, _corrected(data, zero, bias)
        reals.append(scale * np.float32(hidden.scale) / h_scale)
        limits[1] = _limit(clips[1], _scaled(use, use.output(), "int8").scale, 127)
    else:
        reals.append(np.float32(0))
    pairs = [quantize_multiplier(float(real)) for real in reals]
    _add_lstm(
        use,
        time_axis,
        inputs,
        tail,
        multipliers=tuple(m for m, _ in pairs),
        shifts=tuple(s for _, s in pairs),
        guards=tuple(guards),
        cell_scale=cell_scale,
        hidden_zero=zero,
        output_zero=h_quant.zero_point,
        cell_clip=limits[0],
        projection_clip=limits[1],
    )


def _add_lstm(
    use: OperatorUse,
    time_axis: int | None,
    inputs: list[Array | None],
    tail: list[Array | None],
    **attrs: object,
) -> None:
    x, quants = use.value(0), (use.output().quant, use.tensor(18).quant)
    axis = use.int_constant([0])
    if time_axis is None:
        x = use.add("unsqueeze", x, axis, quant=use.quant(0))
    states = [use.value(18), use.value(19)]

    def constants(arrays: list[Array | None]) -> list[int | None]:
        return [None if a is None else use.builder.constant("lstm", a) for a in arrays]

    y, h, c = use.builder.add_node(
        "integer_lstm",
        [x, *constants(inputs), *states, *constants(tail)],
        {**attrs, "time_axis": time_axis or 0},
        outputs=3,
        quants=[*quants, None],
        source=use.source,
    )
    use.write(18, h)
    use.write(19, c)
    use.give(0, use.add("squeeze", y, axis, quant=quants[0]) if time_axis is None else y)


def _intermediate(use: OperatorUse, k: int) -> FileTensor | None:
    index = use.operator.intermediates[k]
    return None if index == NO_TENSOR else use.state.tensors[index]


def _quant_of(use: OperatorUse, tensor: FileTensor | None) -> Quant:
    if tensor is None or tensor.quant is None or tensor.quant.axis is not None:
        raise ModelFileError(f"{use.source}: an intermediate tensor has no scale")
    return tensor.quant


def _scale_of(use: OperatorUse, tensor: FileTensor | None) -> float:
    return _quant_of(use, tensor).scale


def _peepholes(
    use: OperatorUse, gates: range, steps: list[np.float32], cell_scale: int
) -> tuple[Array | None, list[np.float32]]:
    """Return the peepholes of the input, forget and output gate, and their scales."""
    if not use.has(10):
        return None, [np.float32(0)] * 3
    rows, scales = [], []
    for position, gate in ((9, 0), (10, 1), (11, 3)):
        if gate not in gates:
            rows.append(np.zeros_like(_stored(use, 10, "int16")[0]))
            scales.append(np.float32(0))
            continue
        data, scale = _stored(use, position, "int16")
        rows.append(data)
        scales.append(np.float32(2.0**cell_scale * float(scale) / float(steps[gate])))
    return np.stack(rows), scales


def _limit(clip: float, scale: float, most: int) -> int:
    """Return a clip in steps of a scale, cut to an integer; 0 is none."""
    return int(min(float(np.float32(clip) / np.float32(scale)), most)) if clip > 0 else 0


def integer_svdf(use: OperatorUse) -> None:
    """Add an SVDF of int8 values with an int16 state.

    Errors: ConvertError, if the weights by time are not int16
    """
    x, state, y = use.quant(0), _scaled(use, use.tensor(4), "int16"), use.output()
    features, feature_scale = _stored(use, 1, "int8")
    time, time_scale = _stored(use, 2, "int16")
    y_quant = _scaled(use, y, "int8")
    if x is None or use.activation() not in ("", "relu"):
        raise use.fail(f"int8 SVDF with activation {use.activation()} is not supported")
    state_scale = np.float32(state.scale)
    reals = (
        np.float32(x.scale) * feature_scale / state_scale,
        state_scale * time_scale / np.float32(y_quant.scale),
    )
    pairs = [quantize_multiplier(float(real)) for real in reals]
    made, new = use.builder.add_node(
        "integer_svdf",
        [
            use.value(0),
            use.builder.constant("features", features),
            use.builder.constant("time", time),
            use.value(4),
            use.builder.constant("bias", _bias(use, 3)) if use.has(3) else None,
        ],
        {
            "rank": use.option("Rank"),
            "multipliers": [m for m, _ in pairs],
            "shifts": [s for _, s in pairs],
            "x_zero": x.zero_point,
            "y_zero": y_quant.zero_point,
        },
        outputs=2,
        quants=[y_quant, None],
        source=use.source,
    )
    use.write(4, new)
    use.give(0, made)
