"""Graphs of float ops on int8 weights, as converters/tflite/dynamic_range.py builds them."""

import dataclasses

import numpy as np

from trireme.ir.builder import GraphBuilder, scalar
from trireme.ir.graph import TensorType

SEED = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """A conv (w [O,KH,KW,C/groups]) or fully_connected (w [O,depth]) on levels."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    asymmetric: bool = False
    activation: str = "relu"
    bias: bool = True
    by_channel: bool = False

    @property
    def attrs(self):
        if len(self.w) == 2:
            return {}
        return {
            "strides": self.strides,
            "pads": self.pads,
            "dilations": self.dilations,
            "groups": self.groups,
            "layout": "NHWC",
        }


class Hybrid:
    """A graph of products on int8 weights under construction."""

    def __init__(self, seed=SEED):
        print("seed", seed)
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder("hybrid")

    def number(self, value):
        return self.b.constant(f"c{value}", scalar(value))

    def at(self, *numbers):
        return self.b.constant("at", np.array(numbers, np.int64))

    def levels(self, x, axes, asymmetric):
        """Return (levels, step) of a value, as the converter builds them."""
        add, number = self.b.add, self.number
        axes = self.b.constant("axes", np.array(axes, np.int64))
        if not asymmetric:
            most = add("reduce_max", add("abs", x), axes, keepdims=1)
            most = add("max", most, number(1e-30))
            levels = add("round", add("mul", x, add("div", number(127.0), most)))
            return levels, add("mul", most, number(1 / 127))
        low = add("min", add("reduce_min", x, axes, keepdims=1), number(0.0))
        high = add("max", add("reduce_max", x, axes, keepdims=1), number(0.0))
        step = add("max", add("mul", add("sub", high, low), number(1 / 255)), number(1e-30))
        point = add("round", add("sub", number(-128.0), add("div", low, step)))
        point = add("clip", point, number(-128.0), number(127.0))
        levels = add("round", add("add", add("div", x, step), point))
        return add("sub", add("clip", levels, number(-128.0), number(127.0)), point), step

    def unsigned(self, x):
        """Return (levels, step) of a value, as ONNX's DynamicQuantizeLinear makes them."""
        add, number = self.b.add, self.number
        low = add("min", add("reduce_min", x, keepdims=0), number(0.0))
        high = add("max", add("reduce_max", x, keepdims=0), number(0.0))
        extent = add("sub", high, low)
        none = add("equal", extent, number(0.0))
        step = add("where", none, number(1.0), add("div", extent, number(255.0)))
        point = add("round", add("div", add("sub", number(0.0), low), step))
        point = add("clip", point, number(0.0), number(255.0))
        levels = add("add", add("round", add("div", x, step)), point)
        return add("sub", add("clip", levels, number(0.0), number(255.0)), point), step

    def in_parts(self, levels, w, parts):
        """Return the product of levels by weights [O,depth], added up as int32 from parts."""
        add, total = self.b.add, None
        step = -(-w.shape[1] // parts)
        for start in range(0, w.shape[1], step):
            stop = min(start + step, w.shape[1])
            cut = add("slice", levels, *(self.at(n) for n in (start, stop, -1)))
            weights = self.b.constant("w", w[:, start:stop].astype(np.float32))
            part = add("cast", add("fully_connected", cut, weights), to="int32")
            total = part if total is None else add("add", total, part)
        return add("cast", total, to="float32")

    def scale(self, case, step):
        channels = case.w[0] if case.by_channel else 1
        scales = self.rng.uniform(0.001, 0.02, channels).astype(np.float32)
        return self.b.add("mul", step, self.b.constant("scales", scales))

    def product(self, case, levels, step, scale=None):
        op = "conv" if len(case.w) == 4 else "fully_connected"
        weights = self.rng.integers(-127, 128, case.w).astype(np.float32)
        product = self.b.add(op, levels, self.b.constant("w", weights), **case.attrs)
        scale = self.scale(case, step) if scale is None else scale
        if not case.bias:
            return self.b.add("mul", product, scale, activation=case.activation)
        bias = self.b.constant("b", self.rng.standard_normal(case.w[0]).astype(np.float32))
        return self.b.add(
            "add", self.b.add("mul", product, scale), bias, activation=case.activation
        )


def axes_of(case):
    return [1, 2, 3] if len(case.w) == 4 else [-1]


def graph_of(case, seed=SEED):
    made = Hybrid(seed)
    x = made.b.input("x", TensorType(case.x, "float32"))
    return made.b.finish(made.product(case, *made.levels(x, axes_of(case), case.asymmetric)))


def numbers(case, seed=SEED):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(case.x) * rng.choice([0.01, 1, 30])).astype(np.float32)
