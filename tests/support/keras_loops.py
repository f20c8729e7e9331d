"""TFLite files whose WHILE is a recurrent layer of Keras, as TensorFlow's converter writes them.

The layer is not fused: a turn gathers a row of the input, computes a cell and sets a row of the
list of its results. The carried values are the counter, the time, the list, the states, the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tflite_builder import Op, Sub, T, constant, model_of

CELLS = ("gru", "lstm")
LISTS = ("last", "rows", "update")
"""How a turn sets a row: of a list of one at 0; between two slices of the list; by an update."""


@dataclass(frozen=True)
class Layer:
    """A recurrent layer on [batch, steps, inputs] that returns all rows, or the last.

    turns: the number of turns; None for one a step
    hybrid: whether the weights are int8, quantised for a dynamic range
    masked: whether a step of zeros keeps the states
    """

    cell: str = "gru"
    lists: str = "last"
    batch: int = 1
    steps: int = 29
    inputs: int = 13
    units: int = 20
    seed: int = 0
    turns: int | None = None
    hybrid: bool = False
    masked: bool = False

    @property
    def listed(self) -> int:
        """Rows of the list."""
        return 1 if self.lists == "last" else self.steps

    @property
    def states(self) -> int:
        """States of the cell."""
        return 1 if self.cell == "gru" else 2


class Body:
    """The tensors and operators of a subgraph, one call an operator."""

    def __init__(self, inputs: list[T]) -> None:
        self.tensors, self.operators = list(inputs), list[Op]()

    def constant(self, data: object, dtype: type = np.int32) -> int:
        self.tensors.append(constant(np.asarray(data, dtype)))
        return len(self.tensors) - 1

    def add(
        self, code: str, inputs: list[int], *types: T, kind: str = "", **options: object
    ) -> int:
        """Add an operator; return its first output."""
        outputs = list(range(len(self.tensors), len(self.tensors) + len(types)))
        self.tensors += types
        self.operators.append(Op(code, inputs, outputs, kind, options))
        return outputs[0]

    def sub(self, inputs: int, outputs: list[int], name: str = "") -> Sub:
        return Sub(self.tensors, self.operators, list(range(inputs)), outputs, name)


def keras_loop(layer: Layer) -> bytes:
    """The bytes of the file."""
    return model_of([_main(layer), _condition(layer), _body(layer)])


def _carried(layer: Layer) -> list[T]:
    b, n = layer.batch, layer.units
    states = [T((b, n)) for _ in range(layer.states)]
    return [
        T((), "int32"),
        T((), "int32"),
        T((layer.listed, b, n)),
        *states,
        T((layer.steps, b, layer.inputs)),
        *([T((layer.steps, b, 1), "bool")] if layer.masked else []),
    ]


def _main(layer: Layer) -> Sub:
    b, t, n = layer.batch, layer.steps, layer.units
    body = Body([T((b, t, layer.inputs))])
    rows = body.add("TRANSPOSE", [0, body.constant([1, 0, 2])], T((t, b, layer.inputs)))
    zero, empty = body.constant(0), body.constant(np.zeros((layer.listed, b, n)), np.float32)
    states = [body.constant(np.zeros((b, n)), np.float32) for _ in range(layer.states)]
    first = body.add(
        "WHILE",
        [zero, zero, empty, *states, rows, *_mask(layer, body, rows)],
        *_carried(layer),
        kind="WhileOptions",
        CondSubgraphIndex=1,
        BodySubgraphIndex=2,
    )
    made = first + 2
    if layer.lists != "last":
        made = body.add("TRANSPOSE", [made, body.constant([1, 0, 2])], T((b, t, n)))
    return body.sub(1, [made, first + 3], "main")


def _mask(layer: Layer, body: Body, rows: int) -> list[int]:
    """Add what finds steps with a number that is not 0, where the layer is masked."""
    if not layer.masked:
        return []
    shape = layer.steps, layer.batch
    zero, axis = body.constant(0, np.float32), body.constant([2])
    found = body.add("NOT_EQUAL", [rows, zero], T((*shape, layer.inputs), "bool"))
    made = T((*shape, 1), "bool")
    return [body.add("REDUCE_ANY", [found, axis], made, kind="ReducerOptions", KeepDims=True)]


def _condition(layer: Layer) -> Sub:
    """time < turns and counter < turns."""
    body = Body(_carried(layer))
    count = len(body.tensors)
    most = body.constant(layer.steps if layer.turns is None else layer.turns)
    ends = [body.add("LESS", [k, most], T((), "bool")) for k in (1, 0)]
    return body.sub(count, [body.add("LOGICAL_AND", ends, T((), "bool"))], "cond")


def _body(layer: Layer) -> Sub:
    body = Body(_carried(layer))
    count, one = len(body.tensors), body.constant(1)
    counter = body.add("ADD", [0, one], T((), "int32"), kind="AddOptions")
    given = list(range(3 + layer.states, count))
    x = body.add("GATHER", [given[0], 1], T((layer.batch, layer.inputs)), kind="GatherOptions")
    made = (_gru if layer.cell == "gru" else _lstm)(layer, body, x)
    if layer.masked:
        now = body.add("GATHER", [given[1], 1], T((layer.batch, 1), "bool"), kind="GatherOptions")
        times = body.constant([1, layer.units])
        wide = body.add("TILE", [now, times], T((layer.batch, layer.units), "bool"))
        made = [
            body.add("SELECT_V2", [wide, new, 3 + k], T((layer.batch, layer.units)))
            for k, new in enumerate(made)
        ]
    listed = _set_row(layer, body, made[0], one)
    time = body.add("ADD", [1, one], T((), "int32"), kind="AddOptions")
    return body.sub(count, [counter, time, listed, *made, *given], "body")


def _product(layer: Layer, body: Body, x: int, size: int, gates: int, bias: bool) -> int:
    rng = np.random.default_rng((layer.seed, len(body.tensors)))
    outs = gates * layer.units
    weights = rng.standard_normal((outs, size)) / size**0.5
    operands = [x, body.constant(weights, np.float32)]
    if layer.hybrid:
        scale = float(np.abs(weights).max() / 127)
        levels = np.round(weights / scale).astype(np.int8)
        body.tensors[-1] = constant(levels, scale)
    operands.append(body.constant(rng.standard_normal(outs) / 4, np.float32) if bias else -1)
    made = T((layer.batch, outs))
    options = {"AsymmetricQuantizeInputs": True} if layer.hybrid else {}
    return body.add("FULLY_CONNECTED", operands, made, kind="FullyConnectedOptions", **options)


def _split(layer: Layer, body: Body, x: int, gates: int) -> list[int]:
    parts = [T((layer.batch, layer.units)) for _ in range(gates)]
    axis = body.constant(1)
    first = body.add("SPLIT", [axis, x], *parts, kind="SplitOptions", NumSplits=gates)
    return list(range(first, first + gates))


def _binary(layer: Layer, body: Body, code: str, a: int, b: int) -> int:
    kind = f"{code.capitalize()}Options"
    return body.add(code, [a, b], T((layer.batch, layer.units)), kind=kind)


def _unary(layer: Layer, body: Body, code: str, x: int) -> int:
    return body.add(code, [x], T((layer.batch, layer.units)))


def _gru(layer: Layer, body: Body, x: int) -> list[int]:
    """Add a GRU whose reset comes after the product; return the new state."""
    h = 3
    xs = _split(layer, body, _product(layer, body, x, layer.inputs, 3, True), 3)
    hs = _split(layer, body, _product(layer, body, h, layer.units, 3, True), 3)
    z, r = (
        _unary(layer, body, "LOGISTIC", _binary(layer, body, "ADD", a, b))
        for a, b in zip(xs[:2], hs[:2], strict=True)
    )
    inner = _binary(layer, body, "ADD", xs[2], _binary(layer, body, "MUL", r, hs[2]))
    new = _unary(layer, body, "TANH", inner)
    ones = body.constant(1, np.float32)
    kept = _binary(layer, body, "MUL", z, h)
    left = body.add("SUB", [ones, z], T((layer.batch, layer.units)), kind="SubOptions")
    return [_binary(layer, body, "ADD", kept, _binary(layer, body, "MUL", left, new))]


def _lstm(layer: Layer, body: Body, x: int) -> list[int]:
    """Add an LSTM; return the new states."""
    h, c = 3, 4
    one = _product(layer, body, x, layer.inputs, 4, False)
    other = _product(layer, body, h, layer.units, 4, True)
    total = body.add("ADD", [one, other], T((layer.batch, 4 * layer.units)), kind="AddOptions")
    i, f, g, o = _split(layer, body, total, 4)
    i, f, o = (_unary(layer, body, "LOGISTIC", gate) for gate in (i, f, o))
    kept = _binary(layer, body, "MUL", f, c)
    new = _binary(layer, body, "MUL", i, _unary(layer, body, "TANH", g))
    cell = _binary(layer, body, "ADD", kept, new)
    return [_binary(layer, body, "MUL", o, _unary(layer, body, "TANH", cell)), cell]


def _set_row(layer: Layer, body: Body, row: int, one: int) -> int:
    """Add what sets a row of the list, at the time; return the list."""
    shape, axis = (layer.listed, layer.batch, layer.units), body.constant(0)
    part = body.add("EXPAND_DIMS", [row, axis], T((1, *shape[1:])), kind="ExpandDimsOptions")
    if layer.lists == "last":
        kind, none = "ConcatenationOptions", body.constant([0, -1, -1])
        before = body.add("SLICE", [2, body.constant([0] * 3), none], T((0, *shape[1:])))
        end = body.constant([1, 0, 0])
        after = body.add("SLICE", [2, end, body.constant([-1] * 3)], T((0, *shape[1:])))
        return body.add("CONCATENATION", [before, part, after], T(shape), kind=kind)
    if layer.lists == "update":
        at = body.add("PACK", [1, axis, axis], T((3,), "int32"), kind="PackOptions", ValuesCount=3)
        kind = "DynamicUpdateSliceOptions"
        return body.add("DYNAMIC_UPDATE_SLICE", [2, part, at], T(shape), kind=kind)
    return _between(body, part, one, shape)


def _between(body: Body, part: int, one: int, shape: tuple[int, ...]) -> int:
    """Add a concat of the rows before the time, a row and the rows after it."""
    flat, kind = body.constant([1]), "ConcatenationOptions"
    some = T((1, *shape[1:]), signature=(-1, *shape[1:]))

    def listed(number: int, rest: int) -> int:
        """Add [number, rest, rest]."""
        types, given = T((1,), "int32"), body.constant([rest, rest])
        first = body.add("RESHAPE", [number, flat], types, kind="ReshapeOptions", NewShape=[1])
        return body.add("CONCATENATION", [first, given], T((3,), "int32"), kind=kind)

    before = body.add("SLICE", [2, body.constant([0] * 3), listed(1, -1)], some)
    next_ = body.add("ADD", [1, one], T((), "int32"), kind="AddOptions")
    after = body.add("SLICE", [2, listed(next_, 0), body.constant([-1] * 3)], some)
    return body.add("CONCATENATION", [before, part, after], T(shape), kind=kind)
