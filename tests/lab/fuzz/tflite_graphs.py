"""Random .tflite models of one element type, with LiteRT's answers.

A row of the table draws one operator on a value of the graph: its other inputs, its output's shape
and whether the output keeps the input's quantisation. Integer models run on LiteRT's reference
kernels, whose arithmetic ours is, and must agree to the bit; float ones within a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tflite_builder import Op, T, constant, model

from lab.fuzz.grower import Refused
from lab.fuzz.oracle import Answer
from lab.fuzz.peer import quiet_litert

FLOAT_TOLERANCE = 2e-5
"""Of the largest value of an output; LiteRT's float kernels sum in another order."""
SAME, VALID = 0, 1
ACTIVATIONS = (0, 0, 0, 1, 3)
"""None, Relu and Relu6."""
MOST_ELEMENTS = 1500


@dataclass
class TfliteGrower:
    """A .tflite model under construction: tensors, operators and the values to go on from."""

    dtype: str
    rng: np.random.Generator
    tensors: list[T] = field(default_factory=list)
    operators: list[Op] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    loose: set[int] = field(default_factory=set)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def choose(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def tensor(self, made: T) -> int:
        self.tensors.append(made)
        return len(self.tensors) - 1

    def typed(self, shape: tuple[int, ...], scale: float = 0.0, zero: int | None = None) -> T:
        """A tensor of the graph's element type, quantised at random unless told."""
        if self.dtype == "float32":
            return T(shape)
        low = np.iinfo(self.dtype).min
        scale = scale or float(np.float32(self.rng.uniform(0.005, 0.05)))
        zero = int(self.rng.integers(low + 90, low + 166)) if zero is None else zero
        return T(shape, self.dtype, (scale,), (zero,))

    def input(self, shape: tuple[int, ...]) -> int:
        made = self.tensor(self.typed(shape))
        self.inputs.append(made)
        self.values.append(made)
        return made

    def ints(self, *values: int) -> int:
        return self.tensor(constant(np.array(values, np.int32)))

    def data(self, shape: tuple[int, ...], like: int | None = None) -> int:
        """A constant of the element type, quantised as `like` is, or at random."""
        if self.dtype == "float32":
            return self.tensor(constant(self.rng.uniform(-1, 1, shape).astype(np.float32)))
        kind = self.typed(shape) if like is None else self.tensors[like]
        info = np.iinfo(self.dtype)
        stored = self.rng.integers(info.min, info.max + 1, shape).astype(self.dtype)
        return self.tensor(T(shape, self.dtype, kind.scales, kind.zeros, data=stored))

    def weights(self, shape: tuple[int, ...], axis: int, channels: bool = True) -> int:
        """Weights: per channel at times in int8, float or with one scale else."""
        if self.dtype == "float32":
            fan = math.sqrt(math.prod(shape) / shape[axis])
            return self.tensor(constant((self.rng.uniform(-1, 1, shape) / fan).astype(np.float32)))
        info = np.iinfo(self.dtype)
        stored = self.rng.integers(info.min + 1, info.max + 1, shape).astype(self.dtype)
        if self.dtype == "uint8":
            return self.tensor(T(shape, "uint8", (0.011,), (121,), data=stored))
        count = shape[axis] if channels and self.chance(0.6) else 1
        scales = tuple(float(s) for s in self.rng.uniform(0.004, 0.02, count).astype(np.float32))
        return self.tensor(T(shape, "int8", scales, (0,), axis, stored))

    def bias(self, x: int, w: int, count: int) -> list[int]:
        """A bias of the products' scale."""
        if self.dtype == "float32":
            return [self.data((count,))]
        scales = tuple(
            float(np.float32(self.tensors[x].scales[0]) * np.float32(s))
            for s in self.tensors[w].scales
        )
        stored = self.rng.integers(-900, 900, count).astype(np.int32)
        return [self.tensor(T((count,), "int32", scales, (0,), 0, stored))]

    def add(
        self,
        code: str,
        inputs: list[int],
        out: T,
        kind: str = "",
        *,
        loose: bool = False,
        **options: Any,
    ) -> None:
        """Add an operator; a `loose` result may be off by one unit, and nothing reads it."""
        if math.prod(out.shape) > MOST_ELEMENTS:
            raise Refused("too many elements")
        made = self.tensor(out)
        self.operators.append(Op(code, inputs, [made], kind, options))
        if loose and self.dtype != "float32":
            self.loose.add(made)
        else:
            self.values.append(made)

    def kept(self, x: int, shape: tuple[int, ...]) -> T:
        """A tensor with x's quantisation."""
        old = self.tensors[x]
        return T(shape, old.dtype, old.scales, old.zeros)

    def shape(self, x: int) -> tuple[int, ...]:
        return self.tensors[x].shape

    def pick(self, rank: int | None = None) -> int:
        fit = [v for v in self.values if rank is None or len(self.shape(v)) == rank]
        if not fit:
            raise Refused("no value of that rank")
        return fit[-1 - min(int(self.rng.exponential(2)), len(fit) - 1)]


def unary(code: str, kind: str = "", scale: float = 0.0, low: int | None = None) -> Any:
    """A row of an operator on each element; some have a scale and zero point of their own."""

    def build(g: TfliteGrower) -> None:
        if code == "ABS" and g.dtype == "uint8":
            raise Refused("LiteRT has no such kernel")
        x = g.pick()
        zero = None
        if low is not None and g.dtype != "float32":
            zero = np.iinfo(g.dtype).min if low else (0 if g.dtype == "int8" else 128)
        options = {"Alpha": 0.25} if code == "LEAKY_RELU" else {}
        options |= {"Beta": 1.0} if code == "SOFTMAX" else {}
        made = g.typed(g.shape(x), scale, zero)
        if code == "ABS":  # LiteRT's rescaling of negative numbers is not to the nearest integer
            made = g.kept(x, g.shape(x))
        g.add(code, [x], made, kind, loose=code == "LOGISTIC", **options)

    return build


def binary(code: str, kind: str) -> Any:
    """A row of two operands that broadcast: another value, or a constant."""

    def build(g: TfliteGrower) -> None:
        x = g.pick()
        same = [v for v in g.values if g.shape(v) == g.shape(x)]
        if g.chance(0.5):
            y = g.choose(same)
        else:
            y = g.data(tuple(1 if g.chance(0.3) else n for n in g.shape(x)))
            if g.chance(0.3):
                y = g.data((g.shape(x)[-1],) if g.shape(x) else ())
        options = (
            {}
            if code in ("MAXIMUM", "MINIMUM")
            else {"FusedActivationFunction": g.choose(ACTIVATIONS)}
        )
        out = g.typed(g.shape(x))
        if code in ("MAXIMUM", "MINIMUM"):
            if g.dtype != "float32" and g.tensors[y].scales != g.tensors[x].scales:
                y = g.data(g.shape(x), x)
            out = g.kept(x, g.shape(x))
        g.add(code, [x, y] if g.chance(0.7) else [y, x], out, kind, **options)

    return build


def window(g: TfliteGrower, shape: tuple[int, ...], kernel: tuple[int, int]) -> Any:
    """Padding, strides and the output's height and width."""
    strides = tuple(int(v) for v in g.rng.integers(1, 3, 2))
    padding = SAME if g.chance(0.5) else VALID
    sizes = shape[1:3]
    if padding == SAME:
        out = tuple(-(-n // s) for n, s in zip(sizes, strides, strict=True))
    else:
        out = tuple((n - k) // s + 1 for n, k, s in zip(sizes, kernel, strides, strict=True))
    if min(out) < 1:
        raise Refused("the window does not fit")
    options = {"Padding": padding, "StrideH": strides[0], "StrideW": strides[1]}
    return out, options


def conv(g: TfliteGrower) -> None:
    """CONV_2D."""
    x = g.pick(4)
    n, _, _, c = g.shape(x)
    kernel = (int(g.choose([1, 3, 2])), int(g.choose([1, 3])))
    count = int(g.rng.integers(1, 9))
    out, options = window(g, g.shape(x), kernel)
    w = g.weights((count, *kernel, c), 0)
    options |= {"DilationHFactor": 1, "DilationWFactor": 1}
    options["FusedActivationFunction"] = g.choose(ACTIVATIONS)
    b = g.bias(x, w, count)
    g.add("CONV_2D", [x, w, *b], g.typed((n, *out, count)), "Conv2DOptions", **options)


def depthwise(g: TfliteGrower) -> None:
    """DEPTHWISE_CONV_2D."""
    x = g.pick(4)
    n, _, _, c = g.shape(x)
    kernel, times = (3, 3) if g.chance(0.6) else (1, 2), int(g.choose([1, 1, 2]))
    out, options = window(g, g.shape(x), kernel)
    w = g.weights((1, *kernel, c * times), 3)
    options |= {"DepthMultiplier": times, "DilationHFactor": 1, "DilationWFactor": 1}
    options["FusedActivationFunction"] = g.choose(ACTIVATIONS)
    made = g.typed((n, *out, c * times))
    b = g.bias(x, w, c * times)
    g.add("DEPTHWISE_CONV_2D", [x, w, *b], made, "DepthwiseConv2DOptions", **options)


def fully_connected(g: TfliteGrower) -> None:
    """FULLY_CONNECTED of a matrix."""
    x = g.pick(2)
    rows, inner = g.shape(x)
    count = int(g.rng.integers(1, 9))
    w = g.weights((count, inner), 0, False)
    act = g.choose(ACTIVATIONS)
    g.add(
        "FULLY_CONNECTED",
        [x, w, *g.bias(x, w, count)],
        g.typed((rows, count)),
        "FullyConnectedOptions",
        FusedActivationFunction=act,
    )


def pool(code: str) -> Any:
    """A pool, which keeps the quantisation."""

    def build(g: TfliteGrower) -> None:
        x = g.pick(4)
        kernel = (int(g.rng.integers(1, 4)), int(g.rng.integers(1, 4)))
        out, options = window(g, g.shape(x), kernel)
        options |= {"FilterHeight": kernel[0], "FilterWidth": kernel[1]}
        options["FusedActivationFunction"] = g.choose(ACTIVATIONS)
        made = g.kept(x, (g.shape(x)[0], *out, g.shape(x)[3]))
        g.add(code, [x], made, "Pool2DOptions", **options)

    return build


def reshape(g: TfliteGrower) -> None:
    """RESHAPE to a matrix, a row, or with two axes made one."""
    x = g.pick()
    dims = g.shape(x)
    total = math.prod(dims)
    options = [(total,), (1, total), (dims[0], total // dims[0])]
    if len(dims) == 2:
        options.append((dims[0], 1, 1, dims[1]))
    shape = g.choose(options)
    g.add("RESHAPE", [x, g.ints(*shape)], g.kept(x, shape), "ReshapeOptions")


def concat(g: TfliteGrower) -> None:
    """CONCATENATION of x and others of its shape, in int8 of its quantisation."""
    x = g.pick()
    rank = len(g.shape(x))
    axis = int(g.rng.integers(-rank, rank))
    parts = [x, g.data(g.shape(x), None if g.dtype == "float32" else x)]
    shape = list(g.shape(x))
    shape[axis] *= 2
    made = g.kept(x, tuple(shape))
    g.add(
        "CONCATENATION", parts, made, "ConcatenationOptions", Axis=axis, FusedActivationFunction=0
    )


def pad(g: TfliteGrower) -> None:
    """PAD by zero."""
    x = g.pick(4)
    edges = np.array([[0, 0], *g.rng.integers(0, 3, (2, 2)).tolist(), [0, 0]], np.int32)
    shape = tuple(int(n + sum(e)) for n, e in zip(g.shape(x), edges.tolist(), strict=True))
    g.add("PAD", [x, g.tensor(constant(edges))], g.kept(x, shape), "PadOptions")


def mean(g: TfliteGrower) -> None:
    """MEAN over the image, kept or not."""
    x = g.pick(4)
    n, _, _, c = g.shape(x)
    keep = g.chance(0.5)
    shape = (n, 1, 1, c) if keep else (n, c)
    g.add("MEAN", [x, g.ints(1, 2)], g.typed(shape), "ReducerOptions", KeepDims=keep)


def resize(code: str, kind: str) -> Any:
    """A resize to other sizes, in each of TFLite's conventions."""

    def build(g: TfliteGrower) -> None:
        x = g.pick(4)
        sizes = tuple(int(v) for v in g.rng.integers(1, 11, 2))
        how = g.choose([(0, 0), (1, 0), (0, 1)])
        shape = (g.shape(x)[0], *sizes, g.shape(x)[3])
        loose = g.dtype == "uint8" and code == "RESIZE_BILINEAR"  # in floats there
        g.add(
            code,
            [x, g.ints(*sizes)],
            g.kept(x, shape),
            kind,
            loose=loose,
            AlignCorners=how[0],
            HalfPixelCenters=how[1],
        )

    return build


def transpose(g: TfliteGrower) -> None:
    """TRANSPOSE."""
    x = g.pick()
    perm = [int(a) for a in g.rng.permutation(len(g.shape(x)))]
    shape = tuple(g.shape(x)[a] for a in perm)
    g.add("TRANSPOSE", [x, g.ints(*perm)], g.kept(x, shape), "TransposeOptions")


def strided_slice(g: TfliteGrower) -> None:
    """STRIDED_SLICE inside the first axis that has elements to leave out."""
    x = g.pick()
    begin, end, steps = [], [], []
    for n in g.shape(x):
        first = int(g.rng.integers(0, n))
        begin.append(first)
        end.append(int(g.rng.integers(first + 1, n + 1)))
        steps.append(int(g.choose([1, 1, 2])))
    shape = tuple(-(-(e - b) // s) for b, e, s in zip(begin, end, steps, strict=True))
    given = [x, g.ints(*begin), g.ints(*end), g.ints(*steps)]
    g.add("STRIDED_SLICE", given, g.kept(x, shape), "StridedSliceOptions")


def requantize(g: TfliteGrower) -> None:
    """QUANTIZE to another scale."""
    if g.dtype == "float32":
        raise Refused("floats")
    x = g.pick()
    g.add("QUANTIZE", [x], g.typed(g.shape(x)), "QuantizeOptions")


ROWS: tuple[tuple[float, Callable[[TfliteGrower], None]], ...] = (
    (3, conv),
    (2, depthwise),
    (2, fully_connected),
    (1, pool("MAX_POOL_2D")),
    (1, pool("AVERAGE_POOL_2D")),
    (2, reshape),
    (1, concat),
    (1, pad),
    (1, mean),
    (1, transpose),
    (1, strided_slice),
    (1, requantize),
    (2, binary("ADD", "AddOptions")),
    (2, binary("MUL", "MulOptions")),
    (1, binary("SUB", "SubOptions")),
    (0.5, binary("MAXIMUM", "MaximumMinimumOptions")),
    (0.5, binary("MINIMUM", "MaximumMinimumOptions")),
    (1, resize("RESIZE_BILINEAR", "ResizeBilinearOptions")),
    (1, resize("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions")),
    (0.7, unary("RELU")),
    (0.7, unary("RELU6")),
    (0.7, unary("HARD_SWISH")),
    (0.7, unary("LEAKY_RELU", "LeakyReluOptions")),
    (0.7, unary("LOGISTIC", "", 1 / 256, 1)),
    (0.7, unary("TANH", "", 1 / 128, 0)),
    (0.7, unary("SOFTMAX", "SoftmaxOptions", 1 / 256, 1)),
    (0.4, unary("ABS", "AbsOptions")),
)


@dataclass(frozen=True)
class Grown:
    """A random .tflite model, taken apart, and what to feed it.

    arrays: every value by name as LiteRT computes it, once it has
    """

    tensors: list[T]
    operators: list[Op]
    inputs: list[int]
    outputs: list[int]
    feeds: dict[str, Any]
    loose: set[int]
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The file's bytes."""
        return model(self.tensors, self.operators, self.inputs, self.outputs)

    @property
    def parts(self) -> list[Op]:
        """The operators."""
        return self.operators


def grow_tflite(seed: int, least: int = 3, most: int = 20) -> Grown:
    """Return the random model of a seed."""
    rng = np.random.default_rng(seed)
    g = TfliteGrower(str(rng.choice(["int8", "int8", "int8", "uint8", "float32"])), rng)
    g.input((int(g.choose([1, 1, 2])), *(int(v) for v in rng.integers(3, 9, 3))))
    if g.chance(0.4):
        g.input((int(rng.integers(1, 4)), int(rng.integers(2, 17))))
    weights = np.array([weight for weight, _ in ROWS])
    chosen = rng.choice(len(ROWS), 4 * most, p=weights / weights.sum())
    steps = int(rng.integers(least, most + 1))
    for index in chosen:
        if len(g.operators) >= steps:
            break
        try:
            ROWS[index][1](g)
        except Refused:
            continue
    read = {value for op in g.operators for value in op.inputs}
    made = [op.outputs[0] for op in g.operators]
    outputs = [value for value in made if value not in read or g.chance(0.1)]
    return Grown(g.tensors, g.operators, g.inputs, outputs, _feeds(g, g.inputs), g.loose)


def tflite_and_answered(seed: int, kind: str) -> tuple[Grown, dict[str, Answer]]:
    """Return the random model of a seed with every value, and what each output must be.

    Errors: Refused, if LiteRT does not take the model
    """
    grown = grow_tflite(seed)
    known = [op.outputs[0] for op in grown.operators]
    values = quiet_litert(replace(grown, outputs=known).content, grown.feeds)
    return replace(grown, arrays={**grown.feeds, **values}), litert_answer(grown, seed)


def part_of_tflite(grown: Grown, operators: Sequence[Op]) -> Grown:
    """Return the model of some operators, its outputs what they make and none of them reads."""
    read = dict.fromkeys(i for op in operators for i in op.inputs if grown.tensors[i].data is None)
    made = [op.outputs[0] for op in operators]
    inputs = [i for i in read if i not in made]
    outputs = [i for i in made if i not in read or i in grown.outputs]
    feeds = {f"t{i}": grown.arrays[f"t{i}"] for i in inputs}
    parts = list(operators)
    return replace(grown, operators=parts, inputs=inputs, outputs=outputs, feeds=feeds)


def as_text(grown: Grown) -> str:
    """Return a model as lines, one an operator."""
    lines = []
    for op in grown.operators:
        inputs, (made,) = ", ".join(map(str, map(_shown(grown), op.inputs))), op.outputs
        lines.append(f"{_shown(grown)(made)} = {op.code}({inputs}) {op.options}")
    return "\n".join(lines)


def _shown(grown: Grown) -> Callable[[int], str]:
    def text(index: int) -> str:
        t = grown.tensors[index]
        quant = f" q({t.scales[0]:.4g}, {t.zeros[0]})" if t.scales else ""
        return f"t{index} {t.dtype}{list(t.shape)}{quant}{'' if t.data is None else ' constant'}"

    return text


def _feeds(g: TfliteGrower, inputs: list[int]) -> dict[str, Any]:
    return {f"t{index}": _fed(g, index) for index in inputs}


def _fed(g: TfliteGrower, index: int) -> Any:
    shape = g.shape(index)
    if g.dtype == "float32":
        return g.rng.uniform(-2, 2, shape).astype(np.float32)
    info = np.iinfo(g.dtype)
    return g.rng.integers(info.min, info.max + 1, shape).astype(g.dtype)


def litert_answer(grown: Grown, seed: int) -> dict[str, Answer]:
    """Return what each output must be: to the bit where integers come out.

    Errors: Refused, if LiteRT does not take the model
    """
    found = quiet_litert(grown.content, grown.feeds)
    loose = {f"t{index}" for index in grown.loose}
    return {
        name: Answer(array, np.full(array.shape, _allowed(array, name in loose)))
        for name, array in found.items()
    }


def _allowed(array: Any, loose: bool) -> float:
    if array.dtype.kind != "f" or not array.size:
        return float(loose)
    return FLOAT_TOLERANCE * max(float(np.abs(array).max()), 1e-3)
