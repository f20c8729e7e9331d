"""Build networks layer upon layer, from the blocks of real models.

Values are random and seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.ir.op import get_op
from trireme.ops.recurrent_cells import KINDS

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

    Errors: GraphError, ShapeError: a layer does not fit the one below
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
        """The shape of the newest layer's output."""
        return self.b.type(self.x).dims

    def add(self, op: str, *inputs: int | None, **attrs: Any) -> int:
        """Add a node with the common output quantisation; its output becomes the current value."""
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
        self,
        out: int,
        kernel: int = 1,
        stride: int = 1,
        act: str = "relu",
        groups: int = 1,
        residual: int | None = None,
    ) -> int:
        """Add a convolution with padding to the same size."""
        w, bias = self._weights(out, kernel, kernel, self.dims[-1] // groups)
        more = () if residual is None or self.dtype != "float32" else (residual,)
        clamps = not act or get_op(act).clamp is not None
        act = act if self.dtype == "float32" or clamps else "relu"
        y = self.add(
            "conv",
            self.x,
            w,
            bias,
            *more,
            strides=(stride, stride),
            pads=(kernel // 2,) * 4,
            groups=groups,
            activation=act,
            **_WINDOW,
        )
        return y if residual is None or more else self.add("add", y, residual)

    def depthwise(self, kernel: int = 3, stride: int = 1, act: str = "relu") -> int:
        """Add a depthwise convolution."""
        channels = self.dims[-1]
        return self.conv(channels, kernel, stride, act, channels)

    def pool(self, op: str, kernel: int, stride: int) -> int:
        """Add a pool with padding to the same size, divided by the stride."""
        pads = ((kernel - 1) // 2,) * 4
        sizes = {"kernel": (kernel, kernel), "strides": (stride, stride), "pads": pads}
        return self.add(op, self.x, dilations=(1, 1), layout="NHWC", **sizes)

    def inverted(self, out: int, stride: int = 1, act: str = "relu6", kernel: int = 3) -> int:
        """Add MobileNetV2's block: expand the channels six times, depthwise, project."""
        below, channels = self.x, self.dims[-1]
        self.conv(6 * channels, act=act)
        self.depthwise(kernel, stride, act)
        return self.conv(out, act="", residual=below if (out, stride) == (channels, 1) else None)

    def separable(self, out: int, stride: int = 1) -> int:
        """Add MobileNetV1's block."""
        self.depthwise(3, stride)
        return self.conv(out)

    def bottleneck(self, inner: int, stride: int = 1) -> int:
        """Add ResNet-50's block; its shortcut has a convolution where the size changes."""
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
        """Add DenseNet's layer: normalise, narrow, convolve, join to its input."""
        below = self.x
        self.scaled()
        self.conv(inner)
        self.conv(growth, 3, act="")
        return self.add("concat", below, self.x, axis=-1)

    def scaled(self) -> int:
        """Add a folded batch normalisation: a factor, a summand and a relu."""
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
        """Shuffle the channels of groups."""
        n, h, w, c = self.dims
        self.reshape(n, h, w, groups, c // groups)
        self.add("transpose", self.x, perm=(0, 1, 2, 4, 3))
        return self.reshape(n, h, w, c)

    def reshape(self, *dims: int) -> int:
        """Add a reshape."""
        return self.add("reshape", self.x, self._constant(np.array(dims, np.int64)))

    def transpose(self, *perm: int) -> int:
        """Add a transpose."""
        return self.add("transpose", self.x, perm=perm)

    def grow(self, factor: int) -> int:
        """Add a linear resize to a larger image."""
        scales = self._constant(np.array([1, factor, factor, 1], np.float32))
        return self.add("resize", self.x, None, scales, mode="linear")

    def mean(self, keep: bool = False) -> int:
        """Add the mean over the image."""
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
        """Add a transformer's layer on [T,C]: attention, then two matrix products."""
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
            "conv_transpose",
            self.x,
            w,
            strides=(stride, stride),
            pads=(pad,) * 4,
            output_padding=(extra, extra),
            **_WINDOW,
        )

    def group_norm(self, groups: int) -> int:
        """Add a group normalisation."""
        ones = [self._constant(np.ones(self.dims[-1], np.float32)) for _ in range(2)]
        return self.add("group_normalization", self.x, *ones, num_groups=groups, layout="NHWC")

    def recurrent(self, op: str, hidden: int) -> int:
        """Add a recurrent layer on [S,B,C]."""
        steps, batch, depth = self.dims
        gates = KINDS[op].gates * hidden
        w, r = (
            self._constant(self.rng.standard_normal((1, gates, n), np.float32) / np.float32(n))
            for n in (depth, hidden)
        )
        self.add(op, self.x, w, r, hidden_size=hidden)
        return self.reshape(steps, batch, hidden)

    def spectrum(self) -> int:
        """Add the magnitudes of the spectrum of each row."""
        rows, length = self.dims
        self.reshape(rows, 1, length)
        self.map("rfft2d", fft_length=(1, length))
        self.map("complex_abs")
        return self.reshape(rows, length // 2 + 1)

    def lookup(self, width: int) -> int:
        """Gather rows of a table; the index is the arg_max of each row."""
        depth = self.dims[-1]
        table = self._constant(self.rng.standard_normal((depth, width), np.float32))
        return self.add("gather", table, self.map("arg_max", axis=-1, keepdims=0), axis=0)

    def frames(self, length: int, step: int) -> int:
        """Cut a sequence into overlapping windows."""
        rows, width = self.dims
        starts = np.arange(0, rows - length + 1, step)
        places = self._constant((starts[:, None] + np.arange(length)).astype(np.int64))
        self.add("gather", self.x, places, axis=0)
        return self.reshape(len(starts) * length, width)

    def scattered(self) -> int:
        """Scatter the rows in another order, into zeros."""
        rows, _ = self.dims
        zeros = self._constant(np.zeros(self.dims, np.float32))
        order = self._constant(self.rng.permutation(rows).astype(np.int64).reshape(rows, 1))
        return self.add("scatter_nd", zeros, order, self.x)

    def summed(self, axis: int) -> int:
        """Add the cumulative sum along an axis."""
        return self.add("cum_sum", self.x, self._constant(np.array(axis, np.int64)))

    def best(self, count: int) -> int:
        """Add the largest elements of each row."""
        return self.add("top_k", self.x, self._constant(np.array([count], np.int64)))

    def again(self, op: str) -> int:
        """Combine the current value with the network's input, of the same shape."""
        return self.add(op, self.x, self.b.inputs[0])


def build(net: Net) -> Graph:
    """Return a net as a graph with one output."""
    builder = NetBuilder(net)
    for name, *sizes in net.layers:
        layer: Callable[..., int] = getattr(builder, name)
        layer(*sizes)
    return builder.b.finish(builder.x)
