"""TensorFlow Lite's recurrent operators: RNN, LSTM and SVDF, in one direction or both.

Layers of floats are in `recurrent_layers`, those of int8 values in `integer_recurrent`. The states
are variables of the model.

Source: TensorFlow Lite, bidirectional_sequence_lstm.cc, bidirectional_sequence_rnn.cc, reference
        svdf.h
"""

from __future__ import annotations

import numpy as np

from trireme.converters.tflite.integer_recurrent import integer_lstm, integer_svdf
from trireme.converters.tflite.recurrent_layers import (
    RecurrentLayer,
    activated,
    matrix,
    product,
    run,
    step,
    vector,
)
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.support.errors import ModelFileError

Aux = tuple[int, int] | None
"""The auxiliary input of a direction, and the position of its weights."""


def lstm_layer(
    use: OperatorUse,
    x: int,
    first: int,
    states: tuple[int, int],
    *,
    aux: Aux = None,
    norms: int | None = None,
) -> RecurrentLayer:
    """Return an lstm's direction.

    first: the position of the input gate's weights; the others follow
    aux: the auxiliary input and the position of its weights
    norms: the position of the coefficients of layer normalisation
    Errors: ModelFileError, if the inputs that depend on each other are not all there
    """
    gates = range(4) if use.has(first) else range(1, 4)
    weights = [[matrix(use, first + k) for k in gates]]
    if aux is not None:
        weights.append([matrix(use, aux[1] + k) for k in gates])
    peepholes = None
    if use.has(first + 9):
        own = vector(use, first + 8) if len(gates) == 4 else np.zeros(0, np.float32)
        peepholes = [own, vector(use, first + 9), vector(use, first + 10)]
    has_norms = norms is not None and use.has(norms + 1)
    return RecurrentLayer(
        inputs=(x,) if aux is None else (x, aux[0]),
        weights=tuple(weights),
        recurrent=[matrix(use, first + 4 + k) for k in gates],
        biases=[vector(use, first + 11 + k) for k in gates],
        states=states,
        activation=use.activation(),
        peepholes=peepholes,
        norms=[vector(use, norms + k) for k in gates] if norms is not None and has_norms else None,
        projection=matrix(use, first + 15) if use.has(first + 15) else None,
        projection_bias=vector(use, first + 16) if use.has(first + 16) else None,
        clips=(float(use.option("CellClip", 0.0)), float(use.option("ProjClip", 0.0))),
    )


def _time_axis(use: OperatorUse) -> int:
    return 0 if use.option("TimeMajor", False) else 1


def unidirectional_lstm(use: OperatorUse) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM over [T,B,I] (time major) or [B,T,I]."""
    if use.quant(0) is not None:
        integer_lstm(use, _time_axis(use))
        return
    layer = lstm_layer(use, use.value(0), 1, (18, 19), norms=20)
    use.give(0, run(use, layer, time_axis=_time_axis(use)))


def lstm_step(use: OperatorUse) -> None:
    """LSTM over [B,I]: one step."""
    if use.option("KernelType"):
        raise use.fail("the basic kernel of LSTM is not supported")
    if use.quant(0) is not None:
        integer_lstm(use, None)
        return
    layer = lstm_layer(use, use.value(0), 1, (18, 19), norms=20)
    use.give(0, step(use, layer))


def rnn_layer(
    use: OperatorUse,
    x: int,
    positions: tuple[int, int, int],
    state: int,
    aux: Aux = None,
) -> RecurrentLayer:
    """Return an rnn's direction; positions are those of weights, recurrent weights and bias."""
    w, r, bias = positions
    weights = [[matrix(use, w)]]
    if aux is not None:
        weights.append([matrix(use, aux[1])])
    return RecurrentLayer(
        (x,) if aux is None else (x, aux[0]),
        tuple(weights),
        [matrix(use, r)],
        [vector(use, bias)],
        (state,),
        use.activation(),
    )


def rnn_step(use: OperatorUse) -> None:
    """RNN over [B,I]: one step."""
    use.give(0, step(use, rnn_layer(use, use.value(0), (1, 2, 3), 4)))


def unidirectional_rnn(use: OperatorUse) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN over [T,B,I] (time major) or [B,T,I]."""
    layer = rnn_layer(use, use.value(0), (1, 2, 3), 4)
    use.give(0, run(use, layer, time_axis=_time_axis(use)))


def bidirectional_lstm(use: OperatorUse) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: inputs 1-17 forward, 18-34 backward."""
    x, backward_x, auxes = _inputs(use, 39, (40, 44))
    _bidirectional(
        use,
        lstm_layer(use, x, 1, (35, 36), aux=auxes[0]),
        lstm_layer(use, backward_x, 18, (37, 38), aux=auxes[1]),
    )


def bidirectional_rnn(use: OperatorUse) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN: inputs 1-4 forward, 5-8 backward."""
    x, backward_x, auxes = _inputs(use, 9, (10, 11))
    _bidirectional(
        use,
        rnn_layer(use, x, (1, 2, 3), 4, auxes[0]),
        rnn_layer(use, backward_x, (5, 6, 7), 8, auxes[1]),
    )


def _inputs(use: OperatorUse, aux: int, weights: tuple[int, int]) -> tuple[int, int, list[Aux]]:
    """Return x forward and backward, and the auxiliary input of each direction.

    Without weights of its own, the auxiliary input is the backward direction's x.
    """
    x = use.value(0)
    if not use.has(aux):
        return x, x, [None, None]
    other = use.value(aux)
    if any(use.has(weights[0] + k) for k in range(weights[1] - weights[0])):
        return x, x, [(other, weights[0]), (other, weights[1])]
    return x, other, [None, None]


def _bidirectional(use: OperatorUse, forward: RecurrentLayer, backward: RecurrentLayer) -> None:
    """Add both directions, whose outputs may be merged along the last axis."""
    if use.builder.type(forward.inputs[0]).quant is not None:
        raise use.fail("int8 inputs of a bidirectional layer are not supported")
    time_axis = _time_axis(use)
    made = [
        run(use, forward, time_axis=time_axis),
        run(use, backward, time_axis=time_axis, backward=True),
    ]
    if use.option("MergeOutputs", False):
        use.done("concat", *made, axis=-1)
        return
    for position, value in enumerate(made):
        use.give(position, value)


def svdf(use: OperatorUse) -> None:
    """SVDF: the last M products of x with each filter, weighted by time, summed by rank."""
    if use.quant(0) is not None:
        integer_svdf(use)
        return
    features, time = matrix(use, 1), vector(use, 2)
    filters, memory = time.shape
    batch, rank = use.dims(0)[0], use.option("Rank")
    if rank < 1 or filters % rank:
        raise ModelFileError(f"{use.source}: {filters} filters do not divide by rank {rank}")
    three = [batch, filters, memory]
    old = use.add("reshape", use.value(4), use.int_constant(three))
    last = use.add("unsqueeze", product(use, use.value(0), [features]), use.int_constant([2]))
    cut = [use.int_constant([number]) for number in (1, memory, 2)]
    new = use.add("concat", use.add("slice", old, *cut), last, axis=2)
    use.write(4, use.add("reshape", new, use.int_constant([batch, filters * memory])))
    weighted = use.add("mul", new, use.builder.constant(f"{use.source}_time", time))
    total = use.add("reduce_sum", weighted, use.int_constant([2]), keepdims=0)
    total = use.add("reshape", total, use.int_constant([batch, filters // rank, rank]))
    total = use.add("reduce_sum", total, use.int_constant([2]), keepdims=0)
    if use.has(3):
        total = use.add("add", total, use.value(3))
    use.give(0, activated(use, use.activation(), total))


RECURRENT: dict[str, Converter] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": bidirectional_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": bidirectional_rnn,
    "LSTM": lstm_step,
    "RNN": rnn_step,
    "SVDF": svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": unidirectional_lstm,
    "UNIDIRECTIONAL_SEQUENCE_RNN": unidirectional_rnn,
}
