"""Seeded random graphs of the core ops, float32 or int8, for the tests of every stage.

`random_graph(seed, size)` has about `size` nodes over small NHWC pictures and rows: chains, forks,
joins and nodes with two outputs, with nothing that is not used. The same arguments give the same
graph. A maker is one line in MAKERS and one function that picks live values and adds a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

import trireme.ops  # noqa: F401  fills the registry
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.support.dtypes import INTS, Array, numpy_dtype
from trireme.support.errors import InternalError

One = TypeVar("One")

CLAMPS = ("", "", "relu", "relu6")
SOFTMAX_QUANT = Quant((1 / 256,), (-128,))
TANH_QUANT = Quant((1 / 128,), (0,))


class RandomGraphMaker:
    """A graph that grows: what may be used next, and where random choices come from."""

    def __init__(self, seed: int, quantised: bool, pins: Sequence[str]) -> None:
        self.b = GraphBuilder(f"random_{seed}")
        self.rng = np.random.default_rng(seed)
        self.quantised = quantised
        self.pins = pins
        self.live: list[int] = []
        for name, shape in (("x", (1, 8, 8, 3)), ("y", (2, 5, 7, 4)), ("r", (3, 10))):
            dtype = "int8" if quantised else "float32"
            self.live.append(self.b.input(name, TensorType(shape, dtype, self.quant())))

    def one_of(self, options: Sequence[One]) -> One:
        """Return one of some options."""
        return options[int(self.rng.integers(len(options)))]

    def below(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, rank: int | None = None, shape: tuple[int, ...] | None = None) -> int | None:
        """A live value, a recent one more often than not; None when none fits."""
        fits = [
            value
            for value in self.live
            if (rank is None or len(self.dims(value)) == rank)
            and (shape is None or self.dims(value) == shape)
        ]
        if not fits:
            return None
        return self.one_of(fits[-4:] if self.rng.random() < 0.7 else fits)

    def some(self, shape: tuple[int, ...] | None = None) -> int:
        """Return a live value, of a shape that some live value has."""
        value = self.pick(shape=shape)
        if value is None:
            raise InternalError(f"no live value has the shape {shape}")
        return value

    def dims(self, value: int) -> tuple[int, ...]:
        """Return the extents of a value."""
        return self.b.type(value).dims

    def quant(self) -> Quant | None:
        """A quantisation of activations; None in a float graph."""
        if not self.quantised:
            return None
        return Quant((float(np.float32(self.rng.uniform(0.01, 0.1))),), (self.below(-128, 127),))

    def same(self, value: int) -> Quant | None:
        """Return the quantisation of a value."""
        return self.b.type(value).quant

    def weights(self, *shape: int) -> int:
        """Weights [O,...], int8 with a scale a channel in a quantised graph."""
        if not self.quantised:
            fan_in = np.prod(shape[1:])
            data = self.rng.standard_normal(shape) / np.sqrt(fan_in)
            return self.b.constant("w", data.astype(np.float32))
        scales = tuple(float(np.float32(s)) for s in self.rng.uniform(0.002, 0.02, shape[0]))
        data = self.rng.integers(-127, 128, shape).astype(np.int8)
        return self.b.constant("w", data, Quant(scales, (0,) * shape[0], 0))

    def bias(self, x: int, w: int) -> int | None:
        """Return a bias that fits input and weights; none now and then."""
        if self.rng.random() < 0.3:
            return None
        channels = self.dims(w)[0]
        if not self.quantised:
            return self.b.constant("b", self.rng.standard_normal(channels).astype(np.float32))
        of_x, of_w = self.same(x), self.same(w)
        scales = tuple(of_x.scale * s for s in of_w.scales) if of_x and of_w else ()
        data = self.rng.integers(-2000, 2000, channels).astype(np.int32)
        return self.b.constant("b", data, Quant(scales, (0,) * channels, 0))

    def ints(self, *values: int) -> int:
        """Return a constant of integers."""
        return self.b.constant("i", np.array(values, np.int64))

    def add(
        self,
        op: str,
        *inputs: int | None,
        quant: Quant | None = None,
        outputs: int = 1,
        **attrs: Any,
    ) -> None:
        """Add a node; its outputs are live from now on."""
        pin = self.one_of(self.pins) if self.pins and self.rng.random() < 0.5 else None
        self.live += self.b.add_node(
            op,
            inputs,
            attrs,
            outputs=outputs,
            quants=[quant] * outputs,
            pin=pin,
            source=f"random:{len(self.b.nodes)}",
        )


def _window(g: RandomGraphMaker, x: int) -> dict[str, Any]:
    """A kernel that fits the picture, with strides and uneven pads below the kernel."""
    kernel = tuple(g.below(1, min(3, side)) for side in g.dims(x)[1:3])
    pads = tuple(g.below(0, size - 1) for size in kernel * 2)
    return {"kernel": kernel, "strides": (g.below(1, 2), g.below(1, 2)), "pads": pads}


def _convolve(g: RandomGraphMaker, depthwise: bool) -> bool:
    x = g.pick(rank=4)
    if x is None:
        return False
    window, channels = _window(g, x), g.dims(x)[3]
    kernel = window.pop("kernel")
    roomy = all(2 * (k - 1) < side for k, side in zip(kernel, g.dims(x)[1:3], strict=True))
    dilations = (2, 2) if roomy and g.rng.random() < 0.2 else (1, 1)
    shape = (channels, *kernel, 1) if depthwise else (g.below(1, 9), *kernel, channels)
    w = g.weights(*shape)
    g.add(
        "conv",
        x,
        w,
        g.bias(x, w),
        quant=g.quant(),
        activation=g.one_of(CLAMPS),
        groups=channels if depthwise else 1,
        dilations=dilations,
        **window,
    )
    return True


def _fully_connected(g: RandomGraphMaker) -> bool:
    x = g.pick(rank=2)
    if x is None:
        return False
    w = g.weights(g.below(1, 12), g.dims(x)[1])
    g.add("fully_connected", x, w, g.bias(x, w), quant=g.quant(), activation=g.one_of(CLAMPS))
    return True


def _binary(op: str) -> Callable[[RandomGraphMaker], bool]:
    def make(g: RandomGraphMaker) -> bool:
        a = g.some()
        b = g.some(shape=g.dims(a))
        if g.rng.random() < 0.3:
            b = _row(g, g.dims(a)[-1])
        quant = g.quant()
        g.add(op, a, b, quant=quant, activation=g.one_of(CLAMPS))
        return True

    return make


def _row(g: RandomGraphMaker, channels: int) -> int:
    """A constant of one number a channel."""
    if g.quantised:
        return g.b.constant("c", g.rng.integers(-128, 128, channels).astype(np.int8), g.quant())
    return g.b.constant("c", g.rng.standard_normal(channels).astype(np.float32))


def _unary(op: str, quant: Quant | None = None) -> Callable[[RandomGraphMaker], bool]:
    """An op of one input; `quant` is the only quantisation that its output may have."""

    def make(g: RandomGraphMaker) -> bool:
        g.add(op, g.some(), quant=(quant or g.quant()) if g.quantised else None)
        return True

    return make


def _pool(op: str) -> Callable[[RandomGraphMaker], bool]:
    def make(g: RandomGraphMaker) -> bool:
        x = g.pick(rank=4)
        if x is None:
            return False
        g.add(op, x, quant=g.same(x), dilations=(1, 1), **_window(g, x))
        return True

    return make


def _concat(g: RandomGraphMaker) -> bool:
    x = g.some()
    xs = [x] + [g.some(shape=g.dims(x)) for _ in range(g.below(1, 2))]
    if sum(g.dims(value)[-1] for value in xs) > 24:
        return False
    g.add("concat", *xs, axis=g.below(1, len(g.dims(x)) - 1), quant=g.quant())
    return True


def _reshape(g: RandomGraphMaker) -> bool:
    x = g.pick(rank=4)
    if x is None or np.prod(g.dims(x)[1:]) > 300:
        return False
    g.add("reshape", x, g.ints(g.dims(x)[0], -1), quant=g.same(x))
    return True


def _transpose(g: RandomGraphMaker) -> bool:
    x = g.some()
    perm = (0, 2, 1, 3) if len(g.dims(x)) == 4 else (1, 0)
    g.add("transpose", x, perm=perm, quant=g.same(x))
    return True


def _slice(g: RandomGraphMaker) -> bool:
    x = g.some()
    axis = g.below(1, len(g.dims(x)) - 1)
    start = g.below(0, g.dims(x)[axis] - 1)
    stop = g.below(start + 1, g.dims(x)[axis])
    g.add("slice", x, g.ints(start), g.ints(stop), g.ints(axis), quant=g.same(x))
    return True


def _pad(g: RandomGraphMaker) -> bool:
    x = g.pick(rank=4)
    if x is None or max(g.dims(x)) > 12:
        return False
    edges = (0, *(g.below(0, 1) for _ in range(3)), 0, *(g.below(0, 1) for _ in range(3)))
    g.add("pad", x, g.ints(*edges), quant=g.same(x))
    return True


def _split(g: RandomGraphMaker) -> bool:
    x = g.some()
    size = g.dims(x)[-1]
    if size < 2:
        return False
    first = g.below(1, size - 1)
    g.add("split", x, g.ints(first, size - first), axis=-1, outputs=2, quant=g.same(x))
    return True


def _reduce_mean(g: RandomGraphMaker) -> bool:
    x = g.pick(rank=4)
    if x is None:
        return False
    g.add("reduce_mean", x, g.ints(1, 2), keepdims=g.below(0, 1), quant=g.quant())
    return True


def _layer_normalization(g: RandomGraphMaker) -> bool:
    x = g.some()
    g.add("layer_normalization", x, _row(g, g.dims(x)[-1]), _row(g, g.dims(x)[-1]))
    return True


def _quantize(g: RandomGraphMaker) -> bool:
    g.add("quantize", g.some(), dtype="int8", quant=g.quant())
    return True


MAKERS: dict[str, Callable[[RandomGraphMaker], bool]] = {
    "conv": lambda g: _convolve(g, depthwise=False),
    "depthwise": lambda g: _convolve(g, depthwise=True),
    "fully_connected": _fully_connected,
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "relu": _unary("relu"),
    "tanh": _unary("tanh", TANH_QUANT),
    "sigmoid": _unary("sigmoid", SOFTMAX_QUANT),
    "hard_swish": _unary("hard_swish"),
    "softmax": _unary("softmax", SOFTMAX_QUANT),
    "max_pool": _pool("max_pool"),
    "average_pool": _pool("average_pool"),
    "concat": _concat,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "split": _split,
    "reduce_mean": _reduce_mean,
    "layer_normalization": _layer_normalization,
    "quantize": _quantize,
}
"""What a node can be, by the name that `ops` selects it with; False is "nothing fits now"."""

FLOAT_ONLY = frozenset({"layer_normalization"})
QUANTISED_ONLY = frozenset({"quantize"})


def random_graph(
    seed: int,
    size: int,
    ops: Iterable[str] = (),
    quantised: bool = False,
    pins: Sequence[str] = (),
) -> Graph:
    """Return a checked graph of `size` nodes; all that nothing reads is an output.

    ops: names of MAKERS to choose from, all that fit the mode by default
    quantised: int8 with scales and zero points throughout, else float32
    pins: devices that half of the nodes are pinned to, at random
    """
    wrong = FLOAT_ONLY if quantised else QUANTISED_ONLY
    names = [name for name in MAKERS if name not in wrong and (not ops or name in set(ops))]
    g = RandomGraphMaker(seed, quantised, pins)
    tries = 0
    while len(g.b.nodes) < size:
        MAKERS[g.one_of(names)](g)
        tries += 1
        if tries > 100 * (size + 1):
            raise ValueError(f"no graph of {size} nodes of {names} with seed {seed}")
    read = {value for node in g.b.nodes for value in node.used}
    made = [value for node in g.b.nodes for value in node.outputs]
    return g.b.finish(*[value for value in made if value not in read] or g.live[:1])


def random_feeds(graph: Graph, seed: int) -> dict[str, Array]:
    """Return an array for each input: normal floats, or integers of the dtype's whole range."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in graph.input_values():
        dtype = numpy_dtype(value.dtype)
        array: Array
        if value.dtype in INTS:
            info = np.iinfo(dtype)
            array = rng.integers(info.min, info.max, value.type.dims, endpoint=True)
        else:
            array = rng.standard_normal(value.type.dims)
        feeds[value.name] = array.astype(dtype)
    return feeds
