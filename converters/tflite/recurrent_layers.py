"""One direction of a recurrent layer of floats: as one node, as a scan over a cell, or one step.

A layer that ONNX can express becomes an `rnn` or an `lstm` node. Any other layer (projection, layer
normalisation, clips, int8 weights under float inputs) becomes a `scan`, whose body is the cell as
ordinary nodes.

Source: TensorFlow Lite, lstm_eval.cc, kernel_utils.cc: RnnBatchStep
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.converters.tflite.dynamic_range import float_levels
from trireme.converters.tflite.use import OperatorUse
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError

_NORM_EPSILON = 1e-8
"""Source: TensorFlow Lite, portable tensor_utils: MeanStddevNormalization"""


@dataclass(frozen=True, eq=False)
class WeightMatrix:
    """Weights of a product: floats, or int8 levels with the scale of all of them."""

    data: Array
    scale: float | None = None


@dataclass(frozen=True, eq=False)
class RecurrentLayer:
    """One direction of a recurrent layer.

    Lists are by gate: input, forget, cell, output; without input where it is coupled (CIFG). An
    rnn has one.

    inputs: x, and the auxiliary input where it has weights
    weights: the weights of each input, by gate
    peepholes: of the input, forget and output gate
    clips: of the cell and of the projection; 0 is none
    states: the positions of the states among the operator's inputs
    """

    inputs: tuple[int, ...]
    weights: tuple[list[WeightMatrix], ...]
    recurrent: list[WeightMatrix]
    biases: list[Array]
    states: tuple[int, ...]
    activation: str
    peepholes: list[Array] | None = None
    norms: list[Array] | None = None
    projection: WeightMatrix | None = None
    projection_bias: Array | None = None
    clips: tuple[float, float] = (0.0, 0.0)

    @property
    def is_coupled(self) -> bool:
        """Whether an lstm lets in what it forgets."""
        return len(self.states) == 2 and len(self.recurrent) == 3

    @property
    def is_plain(self) -> bool:
        """Whether an `rnn` or `lstm` node says all of the layer."""
        matrices = [*self.recurrent, *(m for one in self.weights for m in one)]
        extra = self.norms is not None or self.projection is not None or any(self.clips)
        known = self.activation in _PLAIN_ACTIVATIONS
        return known and not extra and all(matrix.scale is None for matrix in matrices)


_PLAIN_ACTIVATIONS = {"": "Affine", "relu": "Relu", "tanh": "Tanh"}
"""ONNX's names of activations. Affine takes alpha 1 and beta 0 by default."""


def matrix(use: OperatorUse, position: int) -> WeightMatrix:
    """Return constant weights. LiteRT reads the bytes of uint8 weights as int8.

    Errors: ConvertError, if they are neither floats nor int8 of one scale
    """
    data, quant = use.constant(position), use.quant(position)
    if quant is None:
        return WeightMatrix(np.asarray(data, np.float32))
    if quant.axis is not None or data.dtype not in (np.int8, np.uint8):
        raise use.fail(f"input {position}: weights under a float input must be int8 of one scale")
    return WeightMatrix(data.view(np.int8), quant.scale)


def vector(use: OperatorUse, position: int) -> Array:
    """Return a constant of one dimension as floats."""
    one = matrix(use, position)
    data = one.data.astype(np.float32)
    return data if one.scale is None else np.asarray(data * np.float32(one.scale))


def product(use: OperatorUse, x: int, matrices: Sequence[WeightMatrix]) -> int:
    """Return x times the transpose of the matrices, one below the other."""
    rows = np.concatenate([one.data for one in matrices]).astype(np.float32)
    weights = use.builder.constant(f"{use.source}_weights", rows)
    if any((one.scale is None) != (matrices[0].scale is None) for one in matrices):
        raise use.fail("float weights beside int8 weights are not supported")
    if matrices[0].scale is None:
        return use.add("fully_connected", x, weights)
    asymmetric = bool(use.option("AsymmetricQuantizeInputs", False))
    levels, step = float_levels(use, x, use.int_constant([-1]), asymmetric=asymmetric)
    scales = np.concatenate([np.full(len(m.data), m.scale, np.float32) for m in matrices])
    scale = use.add("mul", step, use.builder.constant(f"{use.source}_scales", scales))
    return use.add("mul", use.add("fully_connected", levels, weights), scale)


def gate_inputs(use: OperatorUse, layer: RecurrentLayer) -> int:
    """Return what the inputs give the gates at all steps, the biases included."""
    parts = [product(use, x, w) for x, w in zip(layer.inputs, layer.weights, strict=True)]
    total = parts[0] if len(parts) == 1 else use.add("add", *parts)
    if layer.norms is not None:
        return total
    bias = use.builder.constant(f"{use.source}_bias", np.concatenate(layer.biases))
    return use.add("add", total, bias)


_GATES = ("input", "forget", "cell", "output")
_PEEPHOLES = ("input", "forget", "output")


def cell(use: OperatorUse, layer: RecurrentLayer, gates: int, states: Sequence[int]) -> list[int]:
    """Add one step and return the new states; the first is the output.

    Shapes: gates [B,G*H], from the inputs; states [B,O] and [B,H]
    """
    sums = use.add("add", gates, product(use, states[0], layer.recurrent))
    if len(layer.states) == 1:
        return [activated(use, layer.activation, sums)]
    units = len(layer.recurrent[0].data)
    count = len(layer.recurrent)
    parts = list(
        use.builder.add_node(
            "split",
            [sums, use.int_constant([units] * count)],
            {"axis": -1},
            outputs=count,
            source=use.source,
        )
    )
    old = states[1]
    names = ["forget", "cell", "output"] if layer.is_coupled else [*_GATES]
    by_name = dict(zip(names, range(count), strict=True))

    def gate(name: str, state: int) -> int:
        """Return a gate, whose peephole looks at a state."""
        k, kind = by_name[name], layer.activation if name == "cell" else "sigmoid"
        value = parts[k]
        if layer.peepholes is not None and name != "cell":
            weight = layer.peepholes[_PEEPHOLES.index(name)]
            seen = use.add("mul", state, use.builder.constant(f"{name}_peephole", weight))
            value = use.add("add", value, seen)
        if layer.norms is not None:
            constants = [use.builder.constant(name, a) for a in (layer.norms[k], layer.biases[k])]
            value = use.add(
                "layer_normalization", value, *constants, axis=-1, epsilon=_NORM_EPSILON
            )
        return activated(use, kind, value)

    keep, made = gate("forget", old), gate("cell", old)
    if layer.is_coupled:
        enter = use.add("sub", use.float_constant(1.0), keep)
    else:
        enter = gate("input", old)
    new = use.add("add", use.add("mul", keep, old), use.add("mul", enter, made))
    new = _clipped(use, new, layer.clips[0])
    hidden = use.add("mul", gate("output", new), activated(use, layer.activation, new))
    return [_projected(use, layer, hidden), new]


def activated(use: OperatorUse, activation: str, x: int) -> int:
    """Return x under an activation; nothing is added for an empty name."""
    return use.add(activation, x) if activation else x


def _clipped(use: OperatorUse, x: int, limit: float) -> int:
    if not limit > 0:
        return x
    return use.add("clip", x, use.float_constant(-limit), use.float_constant(limit))


def _projected(use: OperatorUse, layer: RecurrentLayer, hidden: int) -> int:
    if layer.projection is None:
        return hidden
    y = product(use, hidden, [layer.projection])
    if layer.projection_bias is not None:
        bias = use.builder.constant(f"{use.source}_projection_bias", layer.projection_bias)
        y = use.add("add", y, bias)
    return _clipped(use, y, layer.clips[1])


def run(use: OperatorUse, layer: RecurrentLayer, *, time_axis: int, backward: bool = False) -> int:
    """Add a layer over x [T,B,I] or [B,T,I] and return its outputs [T,B,O] or [B,T,O]."""
    if len(use.builder.type(layer.inputs[0]).shape) != 3:
        raise ModelFileError(f"{use.source}: the input is not of rank 3")
    if layer.is_plain:
        return _plain(use, layer, time_axis, backward)
    states = [use.value(position) for position in layer.states]
    gates = gate_inputs(use, layer)
    type = use.builder.type(gates)
    inner = use.into(GraphBuilder("cell"))
    held = [
        inner.builder.input(f"state{k}", use.builder.type(state)) for k, state in enumerate(states)
    ]
    shape = tuple(dim for axis, dim in enumerate(type.shape) if axis != time_axis)
    new = cell(inner, layer, inner.builder.input("gates", TensorType(shape, type.dtype)), held)
    body = inner.builder.finish(*new, inner.add("identity", new[0]))
    *last, y = use.builder.add_node(
        "scan",
        [*states, gates],
        {
            "body": body,
            "carried": len(states),
            "num_scan_inputs": 1,
            "scan_input_axes": (time_axis,),
            "scan_output_axes": (time_axis,),
            "scan_input_directions": (int(backward),),
            "scan_output_directions": (int(backward),),
        },
        outputs=len(states) + 1,
        source=use.source,
    )
    for position, state in zip(layer.states, last, strict=True):
        use.write(position, state)
    return y


def _plain(use: OperatorUse, layer: RecurrentLayer, time_axis: int, backward: bool) -> int:
    """Add a layer as one `rnn` or `lstm` node."""
    x = layer.inputs[0]
    if len(layer.inputs) > 1:
        x = use.add("concat", *layer.inputs, axis=-1)
    by_gate = zip(*([m.data for m in weights] for weights in layer.weights), strict=True)
    weights = [np.concatenate(parts, axis=1) for parts in by_gate]
    is_lstm = len(layer.states) == 2
    stacked = [_stacked(layer, parts) for parts in (weights, [m.data for m in layer.recurrent])]
    bias = _stacked(layer, layer.biases)
    constants = [*stacked, np.concatenate([bias, np.zeros_like(bias)], axis=1)]
    inputs = [x, *(use.builder.constant(f"{use.source}_weights", data) for data in constants), None]
    axis = use.int_constant([time_axis])  # the axis of directions, as the layout puts it
    inputs += [use.add("unsqueeze", use.value(k), axis) for k in layer.states]
    if layer.peepholes is not None:
        i, f, o = layer.peepholes
        data = np.concatenate([-f if layer.is_coupled else i, o, f])[None]
        inputs.append(use.builder.constant(f"{use.source}_peepholes", data))
    activation = _PLAIN_ACTIVATIONS[layer.activation]
    y, *last = use.builder.add_node(
        "lstm" if is_lstm else "rnn",
        inputs,
        {
            "activations": ("Sigmoid", activation, activation) if is_lstm else (activation,),
            "direction": "reverse" if backward else "forward",
            "layout": time_axis,
            **({"input_forget": int(layer.is_coupled)} if is_lstm else {}),
        },
        outputs=1 + len(layer.states),
        source=use.source,
    )
    for position, state in zip(layer.states, last, strict=True):
        use.write(position, use.add("squeeze", state, axis))
    return use.add("squeeze", y, use.int_constant([1 + time_axis]))


def _stacked(layer: RecurrentLayer, parts: Sequence[Array]) -> Array:
    """Return what belongs to the gates in ONNX's order (input, output, forget, cell).

    A coupled layer has no input gate: it is 1 - forget = sigmoid(-sum of forget).
    """
    if len(layer.states) == 1:
        return np.asarray(parts[0][None], np.float32)
    i, f, c, o = (-parts[0], *parts) if layer.is_coupled else parts
    return np.concatenate([i, o, f, c]).astype(np.float32)[None]


def step(use: OperatorUse, layer: RecurrentLayer) -> int:
    """Add one step of a layer over x [B,I] and return its output [B,O]."""
    if layer.is_plain:
        axis = use.int_constant([0])
        inputs = tuple(use.add("unsqueeze", x, axis) for x in layer.inputs)
        return use.add("squeeze", run(use, replace(layer, inputs=inputs), time_axis=0), axis)
    states = [use.value(position) for position in layer.states]
    new = cell(use, layer, gate_inputs(use, layer), states)
    for position, state in zip(layer.states, new, strict=True):
        use.write(position, state)
    return new[0]
