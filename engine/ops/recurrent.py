"""Recurrent layers: rnn, gru and lstm, in either direction, with sequence lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Dim, TensorType, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.bounds import check_range
from trireme.ops.movement import draw
from trireme.ops.recurrent_cells import GRU, LSTM, RNN, Function, Kind, State, functions_of
from trireme.ops.shapes import Types, expect, expect_dims, expect_rank
from trireme.support.dtypes import FLOATING, INDICES, Array
from trireme.support.errors import ShapeError


def _direction(
    kind: Kind,
    x: Array,
    w: Array,
    r: Array,
    bias: Array,
    states: State,
    lengths: Array,
    backward: bool,
    f: list[Function],
    **options: Any,
) -> tuple[Array, State]:
    """Run one direction over x [S,B,I]; past its length a sequence's outputs are 0."""
    steps, batch, _ = x.shape
    time, column = np.arange(steps)[:, None], np.arange(batch)
    live = time < lengths
    order = np.where(live, lengths - 1 - time, time) if backward else time + 0 * column
    size = r.shape[0]
    gates = x[order, column] @ w.T + bias[:size]
    outputs = np.zeros((steps, batch, r.shape[1]))
    for t in range(steps):
        made = kind.step(gates[t], *states, r, bias[size:], f, **options)
        on = live[t][:, None]
        states = tuple(np.where(on, new, old) for new, old in zip(made, states, strict=True))
        outputs[t] = np.where(on, states[0], 0)
    return outputs[order, column], states


def _run(
    kind: Kind,
    x: Array,
    w: Array,
    r: Array,
    bias: Array | None,
    lengths: Array | None,
    states: Sequence[Array | None],
    peepholes: Array | None,
    attrs: Mapping[str, Any],
    **options: Any,
) -> tuple[Array, ...]:
    turned, layout = (x, *states), attrs["layout"]
    if layout:
        turned = tuple(None if a is None else np.swapaxes(a, 0, 1) for a in turned)
    wide = turned[0].astype(np.float64) if turned[0] is not None else x
    (steps, batch, _), (count, rows, hidden) = wide.shape, r.shape
    functions, each = functions_of(kind, count, attrs), len(kind.activations)
    whole = np.zeros((count, 2 * rows)) if bias is None else bias.astype(np.float64)
    peep = [None] * count if peepholes is None else peepholes.astype(np.float64)
    begin = [np.zeros((count, batch, hidden)) if a is None else a for a in turned[1:]]
    until = np.full(batch, steps) if lengths is None else lengths.astype(np.int64)
    check_range("sequence length", until, 0, steps)
    results = [
        _direction(
            kind,
            wide,
            w[d].astype(np.float64),
            r[d].astype(np.float64),
            whole[d],
            tuple(a[d].astype(np.float64) for a in begin),
            until,
            attrs["direction"] == "reverse" or d == 1,
            functions[d * each : (d + 1) * each],
            peepholes=peep[d],
            **options,
        )
        for d in range(count)
    ]
    y = np.stack([made for made, _ in results], axis=1)
    last = [np.stack(parts) for parts in zip(*(states for _, states in results), strict=True)]
    if layout:
        y, last = y.transpose(2, 0, 1, 3), [np.swapaxes(a, 0, 1) for a in last]
    return tuple(a.astype(x.dtype) for a in (y, *last))


def _expect_rest(
    kind: Kind, rest: Sequence[Value | None], batch: Dim, directions: Dim, state: Sequence[Dim]
) -> None:
    """Check bias, lengths, initial states and peepholes, as far as they are given."""
    bias, lengths, *others = (*rest, None, None)[: max(len(rest), 2)]
    states, hidden = others[: kind.states], state[-1]
    if isinstance(hidden, int):
        expect_dims("bias", bias, directions, 2 * kind.gates * hidden)
        for peepholes in others[kind.states :]:
            expect_dims("peepholes", peepholes, directions, 3 * hidden)
    expect_dims("lengths", lengths, batch)
    for initial in states:
        expect_dims("an initial state", initial, *state)


def _infer(kind: Kind) -> Callable[..., Types]:
    def infer(
        x: Value,
        w: Value,
        r: Value,
        *rest: Value | None,
        layout: int,
        direction: str,
        hidden_size: int | None,
        **attrs: object,
    ) -> Types:
        for name, value in (("x", x), ("w", w), ("r", r)):
            expect_rank(name, value, 3)
        directions = expect("directions of w", w.shape[0], 2 if direction == "bidirectional" else 1)
        expect("directions of r", r.shape[0], directions)
        expect("x's last dimension", x.shape[2], w.shape[2], "columns of w")
        hidden = r.shape[2]
        if isinstance(hidden, int):
            if hidden_size is not None and hidden_size != hidden:
                raise ShapeError(f"hidden_size is {hidden_size}, r has {hidden} columns")
            expect("rows of w", w.shape[1], kind.gates * hidden, f"{kind.gates} gates")
            expect("rows of r", r.shape[1], kind.gates * hidden, f"{kind.gates} gates")
        steps, batch = reversed(x.shape[:2]) if layout else x.shape[:2]
        whole = (batch, steps, directions) if layout else (steps, directions, batch)
        last = (batch, directions) if layout else (directions, batch)
        _expect_rest(kind, rest, batch, directions, (*last, hidden))
        state = TensorType((*last, hidden), x.dtype)
        return (TensorType((*whole, hidden), x.dtype), *[state] * kind.states)

    return infer


def _flops(call: Call) -> int:
    steps_batch = call.type(0).elements // max(call.type(0).dims[2], 1)
    return 2 * steps_batch * (call.type(1).elements + call.type(2).elements)


_ATTRS = {
    "activations": Attr("strs", None),
    "activation_alpha": Attr("floats", None),
    "activation_beta": Attr("floats", None),
    "clip": Attr("float", None),
    "direction": Attr("str", "forward", ("forward", "reverse", "bidirectional")),
    "hidden_size": Attr("int", None),
    "layout": Attr("int", 0),
}


def _samples(kind: Kind) -> Callable[[np.random.Generator], Iterable[Sample]]:
    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        fixed = frozenset({1, 2, 3})
        for direction, count in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            rows = 5 * kind.gates
            inputs = [
                draw(rng, 4, 3, 7),
                draw(rng, count, rows, 7) / 3,
                draw(rng, count, rows, 5) / 3,
                draw(rng, count, 2 * rows),
            ]
            attrs = {"direction": direction, "hidden_size": 5}
            yield Sample(tuple(inputs), attrs, fixed, note=direction)
            inputs.append(np.array([4, 1, 2], np.int32))
            inputs += [draw(rng, count, 3, 5) for _ in range(kind.states)]
            yield Sample(tuple(inputs), attrs, fixed, note=f"{direction}, lengths and states")

    return samples


def _reference(kind: Kind, option: str = "", name: str = "") -> Callable[..., tuple[Array, ...]]:
    """Return the reference of a kind of layer; its attribute `option` is `name` to its cells."""

    def reference(
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        *rest: Array | None,
        **attrs: Any,
    ) -> tuple[Array, ...]:
        *states, peepholes = (*rest, *[None] * (kind.states + 1))[: kind.states + 1]
        options = {name: bool(attrs[option])} if option else {}
        return _run(kind, x, w, r, bias, lengths, states, peepholes, attrs, **options)

    return reference


_DTYPES = (FLOATING, Like("x"), Like("x"), Like("x"), INDICES, Like("x"))
_SHAPES = (
    "Shapes: x [S,B,I] ([B,S,I] with layout 1), w [D,G*H,I], r [D,G*H,H], bias [D,2*G*H], lengths "
    "[B], states [D,B,H] -> y [S,D,B,H]; D is 2 when bidirectional. "
)
define(
    "rnn",
    "x w r bias? sequence_lens? initial_h?",
    f"h = f(x W' + h R' + b) at each step. {_SHAPES}Source: ONNX RNN-22",
    _infer(RNN),
    _reference(RNN),
    outputs="y y_h?",
    attrs=_ATTRS,
    flops=_flops,
    samples=_samples(RNN),
    family="matmul",
    rtol=1e-5,
    dtypes=_DTYPES,
)
define(
    "gru",
    "x w r bias? sequence_lens? initial_h?",
    f"z, r = f(gates); h = (1 - z) g(x W' + (r h) R' + b) + z h, gates z, r, h. {_SHAPES}"
    "Source: ONNX GRU-22",
    _infer(GRU),
    _reference(GRU, "linear_before_reset", "linear"),
    outputs="y y_h?",
    flops=_flops,
    samples=_samples(GRU),
    attrs={**_ATTRS, "linear_before_reset": Attr("int", 0)},
    family="matmul",
    rtol=1e-5,
    dtypes=_DTYPES,
)
define(
    "lstm",
    "x w r bias? sequence_lens? initial_h? initial_c? peepholes?",
    f"i, o, f = f(gates); c = f c + i g(x W' + h R' + b); h = o h(c), gates i, o, f, c. "
    f"{_SHAPES}Source: ONNX LSTM-22",
    _infer(LSTM),
    _reference(LSTM, "input_forget", "coupled"),
    outputs="y y_h? y_c?",
    flops=_flops,
    samples=_samples(LSTM),
    attrs={**_ATTRS, "input_forget": Attr("int", 0)},
    family="matmul",
    rtol=1e-5,
    dtypes=_DTYPES + (Like("x"),) * 2,
)
