"""The networks that `calibrate` measures: small ones of the blocks that real models are made of.

Kernels are measured inside them, where weights and values lie in the caches and the memory that
they would lie in within a model. None is a model that anybody uses. Values are random, seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.builder import GraphBuilder
from trireme.graph import Graph, Quant, TensorType

_WINDOW = {"layout": "NHWC", "dilations": (1, 1)}
_SCALE, _ZERO = 0.05, -3


@dataclass(frozen=True)
class Net:
    """A network: its name, the dtype and shape of its input, and its layers as (name, *sizes)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layers: Sequence[tuple[Any, ...]]


class NetBuilder:
    """Builds a network layer upon layer; images are [1,H,W,C], sequences [T,C].

    Errors: GraphError, ShapeError: a layer that does not fit what is below it
    """

    def __init__(self, net: Net) -> None:
        self.b, self.dtype = GraphBuilder(net.name), net.dtype
        self.rng = np.random.default_rng(len(net.layers))
        self.x = self.b.input("x", TensorType(net.shape, net.dtype, self._quant()))

    def _quant(self) -> Quant | None:
        if self.dtype == "float32":
            return None
        return Quant((_SCALE,), (_ZERO + 128 * (self.dtype == "uint8"),))

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape that the network has reached."""
        return self.b.type(self.x).dims

    def add(self, op: str, *inputs: int | None, **attrs: Any) -> int:
        """Add a node whose output is quantised as all values are; it becomes the current one."""
        self.x = self.b.add(op, *inputs, quants=[self._quant()], source="calibrate", **attrs)
        return self.x

    def _weights(self, *shape: int) -> tuple[int, int]:
        if self.dtype == "float32":
            data = self.rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]))
            return self._constant(data.astype(np.float32)), self._constant(
                np.zeros(shape[0], np.float32)
            )
        info = np.iinfo(self.dtype)
        each = shape[0] if self.dtype == "int8" else 1
        scales, zeros = (0.01,) * each, (0 if self.dtype == "int8" else 120,) * each
        axis = 0 if self.dtype == "int8" else None
        data = self.rng.integers(info.min + 1, info.max + 1, shape).astype(self.dtype)
        product = Quant(tuple(_SCALE * s for s in scales), (0,) * each, axis)
        bias = np.zeros(shape[0], np.int32)
        return self._constant(data, Quant(scales, zeros, axis)), self._constant(bias, product)

    def _constant(self, data: Any, quant: Quant | None = None) -> int:
        return self.b.constant(f"c{len(self.b.values)}", data, quant)

    def conv(
        self, out: int, kernel: int = 1, stride: int = 1, act: str = "relu", groups: int = 1,
        residual: int | None = None,
    ) -> int:  # fmt: skip
        """Add a convolution that pads to the same size."""
        w, bias = self._weights(out, kernel, kernel, self.dims[-1] // groups)
        more = () if residual is None or self.dtype != "float32" else (residual,)
        act = act if self.dtype == "float32" or act in ("", "relu", "relu6") else "relu"
        y = self.add(
            "conv", self.x, w, bias, *more, strides=(stride, stride), pads=(kernel // 2,) * 4,
            groups=groups, activation=act, **_WINDOW,
        )  # fmt: skip
        return y if residual is None or more else self.add("add", y, residual)

    def depthwise(self, kernel: int = 3, stride: int = 1, act: str = "relu") -> int:
        """Add a depthwise convolution."""
        channels = self.dims[-1]
        return self.conv(channels, kernel, stride, act, channels)

    def pool(self, op: str, kernel: int, stride: int) -> int:
        """Add a pool of the same size but for its stride."""
        pads = ((kernel - 1) // 2,) * 4
        sizes = {"kernel": (kernel, kernel), "strides": (stride, stride), "pads": pads}
        return self.add(op, self.x, dilations=(1, 1), layout="NHWC", **sizes)

    def inverted(self, out: int, stride: int = 1, act: str = "relu6", kernel: int = 3) -> int:
        """Add MobileNetV2's block: six times the channels, depthwise, and back."""
        below, channels = self.x, self.dims[-1]
        self.conv(6 * channels, act=act)
        self.depthwise(kernel, stride, act)
        return self.conv(out, act="", residual=below if (out, stride) == (channels, 1) else None)

    def separable(self, out: int, stride: int = 1) -> int:
        """Add MobileNetV1's block."""
        self.depthwise(3, stride)
        return self.conv(out)

    def bottleneck(self, inner: int, stride: int = 1) -> int:
        """Add ResNet-50's block, with a shortcut of its own where the size changes."""
        below, out = self.x, 4 * inner
        if stride > 1 or self.dims[-1] != out:
            shortcut = self.conv(out, 1, stride, "")
            self.x = below
            below = shortcut
        self.conv(inner)
        self.conv(inner, 3, stride)
        return self.conv(out, residual=below)

    def basic(self, out: int, stride: int = 1) -> int:
        """Add ResNet-18's block."""
        below = self.x
        if stride > 1 or self.dims[-1] != out:
            shortcut = self.conv(out, 1, stride, "")
            self.x = below
            below = shortcut
        self.conv(out, 3, stride)
        return self.conv(out, 3, residual=below)

    def inception(self, one: int, three: int, five: int) -> int:
        """Add parallel convolutions and a pool, joined along the channels."""
        below = self.x
        parts = [self.conv(one)]
        for kernel, out in ((3, three), (5, five)):
            self.x = below
            self.conv(out // 2)
            parts.append(self.conv(out, kernel))
        self.x = below
        self.pool("max_pool", 3, 1)
        parts.append(self.conv(one // 2))
        return self.add("concat", *parts, axis=-1)

    def dense(self, growth: int, inner: int = 128) -> int:
        """Add DenseNet's layer: normalised, narrowed, convolved, joined to what is below."""
        below = self.x
        self.scaled()
        self.conv(inner)
        self.conv(growth, 3, act="")
        return self.add("concat", below, self.x, axis=-1)

    def scaled(self) -> int:
        """Add what is left of a batch normalisation: a factor, a summand and a relu."""
        channels = self.dims[-1]
        factor, summand = (self._constant(np.ones(channels, np.float32)) for _ in range(2))
        self.add("mul", self.x, factor)
        return self.add("relu", self.add("add", self.x, summand))

    def gated(self) -> int:
        """Add squeeze and excitation."""
        below, channels = self.x, self.dims[-1]
        self.mean(keep=True)
        self.conv(max(channels // 4, 8))
        self.conv(channels, act="sigmoid")
        return self.add("mul", below, self.x)

    def shuffle(self, groups: int) -> int:
        """Mix the channels of groups."""
        n, h, w, c = self.dims
        self.reshape(n, h, w, groups, c // groups)
        self.add("transpose", self.x, perm=(0, 1, 2, 4, 3))
        return self.reshape(n, h, w, c)

    def reshape(self, *dims: int) -> int:
        """Give the same elements another shape."""
        return self.add("reshape", self.x, self._constant(np.array(dims, np.int64)))

    def transpose(self, *perm: int) -> int:
        """Move the axes."""
        return self.add("transpose", self.x, perm=perm)

    def grow(self, factor: int) -> int:
        """Resize an image up, linearly."""
        scales = self._constant(np.array([1, factor, factor, 1], np.float32))
        return self.add("resize", self.x, None, scales, mode="linear")

    def mean(self, keep: bool = False) -> int:
        """Average over the image."""
        axes = self._constant(np.array([1, 2], np.int64))
        return self.add("reduce_mean", self.x, axes, keepdims=int(keep))

    def map(self, op: str, **attrs: Any) -> int:
        """Add an op of one input."""
        return self.add(op, self.x, **attrs)

    def dense_to(self, out: int, act: str = "", residual: int | None = None) -> int:
        """Add a fully connected layer."""
        w, bias = self._weights(out, self.dims[-1])
        more = () if residual is None else (residual,)
        return self.add("fully_connected", self.x, w, bias, *more, activation=act)

    def normalise(self) -> int:
        """Add a layer normalisation."""
        ones = [self._constant(np.ones(self.dims[-1], np.float32)) for _ in range(2)]
        return self.add("layer_normalization", self.x, *ones, axis=-1)

    def encoder(self, heads: int, inner: int, act: str = "gelu") -> int:
        """Add a transformer's layer on [T,C]: attention, then two products."""
        below, (rows, width) = self.x, self.dims
        turned = []
        normal = self.normalise()
        for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)):
            self.x = normal
            self.dense_to(width)
            self.reshape(rows, heads, width // heads)
            turned.append(self.transpose(*perm))
        q, k, v = turned
        scale = self._constant(np.float32((width // heads) ** -0.5))
        self.add("mul", self.add("matmul", q, k), scale)
        self.map("softmax", axis=-1)
        self.add("matmul", self.x, v)
        self.transpose(1, 0, 2)
        self.reshape(rows, width)
        below = self.dense_to(width, residual=below)
        self.normalise()
        self.dense_to(inner, act)
        return self.dense_to(width, residual=below)

    def transposed(self, out: int, kernel: int, stride: int) -> int:
        """Add a transposed convolution that grows the image by its stride."""
        depth = self.dims[-1]
        data = self.rng.standard_normal((depth, kernel, kernel, out), np.float32) / depth
        w, pad = self._constant(data.astype(np.float32)), (kernel - stride + 1) // 2
        extra = stride - kernel + 2 * pad
        return self.add(
            "conv_transpose", self.x, w, strides=(stride, stride), pads=(pad,) * 4,
            output_padding=(extra, extra), **_WINDOW,
        )  # fmt: skip

    def group_norm(self, groups: int) -> int:
        """Add a group normalisation."""
        ones = [self._constant(np.ones(self.dims[-1], np.float32)) for _ in range(2)]
        return self.add("group_normalization", self.x, *ones, num_groups=groups, layout="NHWC")

    def recurrent(self, op: str, hidden: int) -> int:
        """Add a recurrent layer on [S,B,C]."""
        steps, batch, depth = self.dims
        gates = {"rnn": 1, "gru": 3, "lstm": 4}[op] * hidden
        w, r = (
            self._constant(self.rng.standard_normal((1, gates, n), np.float32) / np.float32(n))
            for n in (depth, hidden)
        )
        self.add(op, self.x, w, r, hidden_size=hidden)
        return self.reshape(steps, batch, hidden)

    def spectrum(self) -> int:
        """Add the magnitudes of the spectra of rows."""
        rows, length = self.dims
        self.reshape(rows, 1, length)
        self.map("rfft2d", fft_length=(1, length))
        self.map("complex_abs")
        return self.reshape(rows, length // 2 + 1)

    def again(self, op: str) -> int:
        """Combine what is there with the network's input, of the same shape."""
        return self.add(op, self.x, self.b.inputs[0])


def build(net: Net) -> Graph:
    """Return a net as a graph with one output."""
    builder = NetBuilder(net)
    for name, *sizes in net.layers:
        layer: Callable[..., int] = getattr(builder, name)
        layer(*sizes)
    return builder.b.finish(builder.x)


def _mobile(width: int, last: int, act: str = "relu6") -> list[tuple[Any, ...]]:
    w = width
    return [
        ("conv", 4 * w, 3, 2, act), ("separable", 2 * w), ("inverted", 3 * w, 2, act),
        ("inverted", 3 * w, 1, act), ("inverted", 5 * w, 2, act), ("inverted", 5 * w, 1, act, 5),
        ("inverted", 9 * w, 2, act), ("inverted", 9 * w, 1, act), ("inverted", 17 * w, 2, act),
        ("inverted", 17 * w, 1, act), ("conv", last, 1, 1, act), ("mean",), ("dense_to", 1000),
    ]  # fmt: skip


_POINTWISE = [("conv", 48, 3, 2), ("separable", 96), ("separable", 112, 2), ("separable", 160),
              ("separable", 224, 2), ("separable", 224), ("separable", 448, 2), ("separable", 448),
              ("separable", 896, 2), ("separable", 896), ("mean",), ("dense_to", 600)]  # fmt: skip
_SMALL = [("conv", 16, 3), ("basic", 16), ("basic", 24, 2), ("basic", 48, 2), ("separable", 96),
          ("mean",), ("dense_to", 12), ("map", "softmax")]  # fmt: skip
_TINY = [("separable", 24), ("separable", 56), ("separable", 56, 2), ("separable", 72),
         ("separable", 72), ("separable", 136, 2), ("separable", 136), ("conv", 48), ("mean",),
         ("dense_to", 12)]  # fmt: skip
_MLP = [("dense_to", 144, "relu"), ("dense_to", 144, "relu"), ("dense_to", 112, "relu"),
        ("dense_to", 16, "relu"), ("dense_to", 96, "relu"), ("dense_to", 256, "relu"),
        ("dense_to", 640)]  # fmt: skip
_POOLS = [("pool", op, kernel, stride) for op in ("max_pool", "average_pool")
          for kernel, stride in ((3, 1), (2, 2), (3, 2))]  # fmt: skip

_MAPS = [
    ("map", "sigmoid"),
    ("again", "add"),
    ("map", "softmax"),
    ("again", "mul"),
    ("transpose", 0, 2, 1, 3),
    ("map", "tanh"),
    ("transpose", 0, 3, 1, 2),
    ("scaled",),
]
_FIRST = [("conv", 16, 3, 2), ("conv", 3), ("conv", 40, 5), ("conv", 4), ("conv", 24, 3, 2),
          ("conv", 3), ("conv", 56, 3), ("conv", 1), ("conv", 16, 3)]  # fmt: skip

NETS: tuple[Net, ...] = (
    Net("inverted", "float32", (1, 240, 240, 3), _mobile(8, 1024)),
    Net("elementwise", "float32", (1, 48, 48, 96),
        [("again", op) for op in ("add", "mul", "sub")] + [("map", "sigmoid"), ("again", "add"),
         ("map", "softmax"), ("again", "mul"), ("map", "tanh"), ("transpose", 0, 3, 1, 2)]),
    Net("bottleneck", "float32", (1, 200, 200, 3),
        [("conv", 48, 7, 2), ("pool", "max_pool", 3, 2), ("bottleneck", 48), ("bottleneck", 48),
         ("bottleneck", 96, 2), ("bottleneck", 96), ("bottleneck", 192, 2), ("bottleneck", 192),
         ("bottleneck", 448, 2), ("bottleneck", 448), ("mean",), ("dense_to", 800)]),
    Net("basic", "float32", (1, 208, 208, 3),
        [("conv", 40, 7, 2), ("pool", "max_pool", 3, 2), ("basic", 64), ("basic", 160, 2),
         ("basic", 128), ("basic", 256, 2), ("basic", 320), ("basic", 384, 2), ("basic", 512),
         ("mean",), ("dense_to", 1200)]),
    Net("encoder", "float32", (160, 224), [("encoder", 4, 896), ("encoder", 7, 640, "relu"),
                                           ("dense_to", 320), ("encoder", 5, 1280)]),
    Net("separable", "float32", (1, 192, 192, 3), _POINTWISE),
    Net("small", "float32", (1, 28, 28, 4), _SMALL),
    Net("tiny", "float32", (1, 20, 20, 16), _TINY),
    Net("layers", "float32", (1, 512), _MLP),
    Net("inverted int8", "int8", (1, 240, 240, 3), _mobile(8, 1024)),
    Net("inverted uint8", "uint8", (1, 208, 208, 3), _mobile(8, 1152)),
    Net("small int8", "int8", (1, 28, 28, 4), _SMALL),
    Net("tiny int8", "int8", (1, 20, 20, 16), _TINY),
    Net("layers int8", "int8", (1, 512), _MLP),
    Net("inception", "float32", (1, 44, 44, 96),
        [("inception", 64, 96, 32), ("pool", "max_pool", 3, 2), ("inception", 96, 192, 64),
         ("pool", "max_pool", 3, 2), ("inception", 160, 288, 96), ("inception", 160, 320, 128)]),
    Net("dense", "float32", (1, 104, 104, 32),
        [("dense", 32), ("dense", 32), ("conv", 80), ("pool", "average_pool", 2, 2), ("dense", 32),
         ("dense", 40), ("conv", 192), ("pool", "average_pool", 2, 2), ("dense", 32), ("dense", 32),
         ("conv", 320), ("pool", "average_pool", 2, 2), ("dense", 32), ("dense", 24)]),
    Net("shuffle", "float32", (1, 60, 60, 24),
        [("conv", 120, 1, 1, "relu", 3), ("shuffle", 3), ("depthwise", 3, 2), ("conv", 120, 1, 1,
          "", 3), ("gated",), ("conv", 240, 1, 1, "relu", 3), ("shuffle", 3), ("depthwise", 5, 2),
         ("conv", 240, 1, 1, "", 3), ("gated",), ("grow", 2), ("map", "softmax")]),
    Net("swish", "float32", (1, 256, 256, 3),
        [("conv", 24, 3, 2, "swish"), ("inverted", 40, 1, "swish"), ("inverted", 40, 2, "swish"),
         ("inverted", 72, 1, "hard_swish"), ("inverted", 88, 2, "swish"),
         ("conv", 88, 3, 1, "swish"),
         ("inverted", 88, 1, "swish"), ("inverted", 144, 2, "swish"),
         ("conv", 480, 1, 1, "swish")]),
    Net("sequence", "float32", (72, 320), [("encoder", 5, 1280), ("encoder", 5, 1280)]),
    Net("pools", "float32", (1, 88, 88, 48), _POOLS),
    Net("pools int8", "int8", (1, 88, 88, 48), [*_POOLS, ("mean",)]),
    Net("maps int8", "int8", (1, 40, 40, 64), [("again", "add"), ("again", "mul"),
        ("map", "sigmoid"), ("transpose", 0, 3, 1, 2)]),
    Net("small maps", "float32", (1, 12, 12, 40), _MAPS),
    Net("large maps", "float32", (1, 96, 96, 96), _MAPS),
    Net("small maps int8", "int8", (1, 10, 10, 48), [("again", "add"), ("map", "tanh"),
        ("transpose", 0, 3, 1, 2)]),
    Net("small pools", "float32", (1, 16, 16, 32), _POOLS),
    Net("large pools", "float32", (1, 120, 120, 56), [("pool", "max_pool", 3, 2),
        ("pool", "max_pool", 2, 1), ("pool", "average_pool", 3, 2), ("mean",)]),
    Net("first", "float32", (1, 120, 120, 3), _FIRST),
    Net("small first", "float32", (1, 44, 44, 1), _FIRST),
    Net("middle", "float32", (1, 80, 80, 3), [("conv", 12, 3, 2), ("separable", 24),
        ("separable", 56, 2), ("basic", 56), ("separable", 104, 2), ("separable", 104),
        ("separable", 216, 2), ("separable", 216), ("mean",), ("dense_to", 20)]),
    Net("wide middle", "float32", (1, 144, 144, 3), [("conv", 20, 3, 2), ("separable", 40),
        ("separable", 88, 2), ("separable", 88), ("separable", 168, 2), ("separable", 168),
        ("separable", 168), ("separable", 328, 2), ("separable", 328), ("mean",),
        ("dense_to", 400)]),
    Net("tiny uint8", "uint8", (1, 20, 20, 16), _TINY),
    Net("small uint8", "uint8", (1, 56, 56, 16), _SMALL),
    Net("generator", "float32", (1, 12, 12, 96),
        [("transposed", 64, 4, 2), ("group_norm", 8), ("transposed", 40, 3, 2), ("group_norm", 40),
         ("transposed", 24, 2, 2), ("group_norm", 1), ("transposed", 16, 4, 2), ("group_norm", 4)]),
    Net("recurrent", "float32", (24, 1, 80),
        [("recurrent", "lstm", 144), ("recurrent", "gru", 112), ("recurrent", "rnn", 96),
         ("recurrent", "gru", 64), ("recurrent", "lstm", 48)]),
    Net("spectra", "float32", (64, 400), [("spectrum",), ("dense_to", 256), ("spectrum",),
                                          ("dense_to", 60), ("spectrum",)]),
)  # fmt: skip
"""In the order of their worth, should the time not suffice for all."""
