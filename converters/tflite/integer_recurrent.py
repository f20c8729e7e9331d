"""Recurrent layers of int8 values: UNIDIRECTIONAL_SEQUENCE_LSTM, LSTM and SVDF.

The zero points of the inputs go into the biases, and the scales between values become multipliers
and shifts, in float32 as in LiteRT.

Source: TensorFlow Lite, lstm.cc: PopulateQuantizedLstmParams8x8_16; svdf.cc: Prepare
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class _IntegerLstm:
    """An int8 LSTM of a file: its scales, and which of its parts it has.

    steps: of the sums of the input, forget, cell and output gate
    gates: the gates that have weights; the input gate may be left out
    """

    use: OperatorUse
    x: Quant
    h: Quant
    c: Quant
    hidden: Quant
    steps: tuple[np.float32, ...]
    gates: range
    has_norms: bool

    @property
    def cell_scale(self) -> int:
        """The power of two that is a step of the cell."""
        return round(math.log2(self.c.scale))

    @property
    def hidden_zero(self) -> int:
        """The zero point of the hidden value.

        Measured: before a projection LiteRT takes it with the other sign.
        """
        return -self.hidden.zero_point if self.use.has(16) else self.hidden.zero_point


def _read_lstm(use: OperatorUse) -> _IntegerLstm:
    """Return the scales of an LSTM, checked."""
    x, h, c = use.quant(0), use.tensor(18), use.tensor(19)
    if x is None or len(use.operator.intermediates) != _PARTS:
        count = len(use.operator.intermediates)
        raise use.fail(f"an int8 LSTM with {count} intermediates is not supported, expected 5")
    h_quant, c_quant = _scaled(use, h, "int8"), _scaled(use, c, "int16")
    between = [_intermediate(use, k) for k in range(_PARTS)]
    has_norms = use.has(21)
    steps = (np.float32(_scale_of(use, one) if has_norms else 2.0**-12) for one in between[:4])
    lstm = _IntegerLstm(
        use,
        x,
        h_quant,
        c_quant,
        _quant_of(use, between[4]),
        tuple(steps),
        range(4) if use.has(1) else range(1, 4),
        has_norms,
    )
    if abs(c_quant.scale / 2.0**lstm.cell_scale - 1) > 1e-3 or not -15 <= lstm.cell_scale <= -9:
        raise use.fail(f"the cell's scale is {c_quant.scale}, expected 2**-15 to 2**-9")
    return lstm


def integer_lstm(use: OperatorUse, time_axis: int | None) -> None:
    """Add an lstm of int8 values; without a time axis, one step.

    Errors: ConvertError, if it is not LiteRT's form of int8 values with an int16 cell
    """
    lstm = _read_lstm(use)
    products, product_scales = _products(lstm)
    norms, norm_scales = _norms(lstm)
    peepholes, peephole_scales = _peepholes(lstm)
    projection, projection_scale, projection_clip = _projection(lstm)
    hidden_scale = np.float32(2.0**-15 / lstm.hidden.scale * 2.0**-15)
    scales = [*product_scales, *norm_scales, *peephole_scales, hidden_scale, projection_scale]
    pairs = [quantize_multiplier(float(scale)) for scale in scales]
    guards = [max(1, int(np.float32(10000) * s)) if lstm.has_norms else 1 for s in norm_scales]
    _add_lstm(
        use,
        time_axis,
        products,
        [peepholes, *norms, *projection],
        multipliers=tuple(m for m, _ in pairs),
        shifts=tuple(s for _, s in pairs),
        guards=tuple(guards),
        cell_scale=lstm.cell_scale,
        hidden_zero=lstm.hidden_zero,
        output_zero=lstm.h.zero_point,
        cell_clip=_limit(float(use.option("CellClip", 0.0)), lstm.c.scale, 32767),
        projection_clip=projection_clip,
    )


def _products(lstm: _IntegerLstm) -> tuple[list[Array | None], list[np.float32]]:
    """Return the gates' weights and biases for x and h, and the scales of their products."""
    use, gates = lstm.use, lstm.gates
    w, w_scales = zip(*(_stored(use, 1 + k, "int8") for k in gates), strict=True)
    r, r_scales = zip(*(_stored(use, 5 + k, "int8") for k in gates), strict=True)
    x_scale, h_scale = np.float32(lstm.x.scale), np.float32(lstm.h.scale)
    scales = [s * x_scale / lstm.steps[k] for s, k in zip(w_scales, gates, strict=True)]
    scales += [s * h_scale / lstm.steps[k] for s, k in zip(r_scales, gates, strict=True)]
    added = [0 if lstm.has_norms else _bias(use, 12 + k) for k in gates]
    x_biases = [_corrected(one, lstm.x.zero_point, b) for one, b in zip(w, added, strict=True)]
    h_biases = [_corrected(one, lstm.h.zero_point, 0) for one in r]
    return [np.concatenate(part) for part in (w, r, x_biases, h_biases)], scales


def _norms(lstm: _IntegerLstm) -> tuple[list[Array | None], list[np.float32]]:
    """Return the gates' norms and their biases, and the scales of the norms."""
    use, gates = lstm.use, lstm.gates
    if not lstm.has_norms:
        return [None, None], [np.float32(0)] * len(gates)
    norms, scales = zip(*(_stored(use, 20 + k, "int16") for k in gates), strict=True)
    return [np.stack(norms), np.stack([_bias(use, 12 + k) for k in gates])], list(scales)


def _projection(lstm: _IntegerLstm) -> tuple[list[Array | None], np.float32, int]:
    """Return the projection's weights and bias, its scale, and its clip in steps."""
    use = lstm.use
    if not use.has(16):
        return [None, None], np.float32(0), 0
    data, scale = _stored(use, 16, "int8")
    bias = _corrected(data, lstm.hidden_zero, _bias(use, 17) if use.has(17) else 0)
    clip = float(use.option("ProjClip", 0.0))
    most = _limit(clip, _scaled(use, use.output(), "int8").scale, 127)
    return [data, bias], scale * np.float32(lstm.hidden.scale) / np.float32(lstm.h.scale), most


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


def _peepholes(lstm: _IntegerLstm) -> tuple[Array | None, list[np.float32]]:
    """Return the peepholes of the input, forget and output gate, and their scales."""
    use = lstm.use
    if not use.has(10):
        return None, [np.float32(0)] * 3
    rows, scales = [], []
    for position, gate in ((9, 0), (10, 1), (11, 3)):
        if gate not in lstm.gates:
            rows.append(np.zeros_like(_stored(use, 10, "int16")[0]))
            scales.append(np.float32(0))
            continue
        data, scale = _stored(use, position, "int16")
        rows.append(data)
        scales.append(np.float32(2.0**lstm.cell_scale * float(scale) / float(lstm.steps[gate])))
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
