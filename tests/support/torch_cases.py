"""Cases of the PyTorch converter: an ATen op, a function that uses it, and its inputs.

Importing this module needs torch. Each case is (op and overload, function, inputs); the op is the
one that the case is there for. Inputs are drawn anew for each case from one seed.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch_complex_cases import COMPLEX

SEED = 20261123


def f(*shape, low=-2.0, high=2.0):
    """Return a maker of floats."""
    return lambda rng: torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))


def i(*shape, low=-5, high=6, dtype=np.int64):
    """Return a maker of integers."""
    return lambda rng: torch.from_numpy(np.asarray(rng.integers(low, high, shape), dtype))


def b(*shape):
    """Return a maker of bools."""
    return lambda rng: torch.from_numpy(np.asarray(rng.integers(0, 2, shape), np.bool_))


def odd(*values, dtype=torch.float32):
    """Return a maker of these very values."""
    return lambda rng: torch.tensor(values, dtype=dtype)


class Layer(nn.Module):
    """A function as a module, with a layer's weights."""

    def __init__(self, function, layer=None):
        super().__init__()
        self.function = function
        self.layer = layer

    def forward(self, *inputs):
        if self.layer is not None:
            return self.function(self.layer, *inputs)
        return self.function(*inputs)


def on(layer):
    """Return a maker of a module: the layer, called with the inputs."""
    return Layer(lambda own, *inputs: own(*inputs), layer)


def made(cell, *inputs):
    """Return a recurrent layer's output and last states, flat."""
    y, last = cell(*inputs)
    return (y, *last) if isinstance(last, tuple) else (y, last)


A = torch.ops.aten
X, P = f(3, 4), f(3, 4, low=0.1, high=3.0)
IMAGE = f(2, 3, 8, 6)
UNIT = f(3, 4, low=-0.9, high=0.9)
ELEMENTWISE = [
    ("abs", torch.abs, X),
    ("acos", torch.acos, UNIT),
    ("acosh", torch.acosh, f(3, 4, low=1.1, high=3.0)),
    ("add.Tensor", lambda x, y: torch.add(x, y, alpha=2.5), X, f(4)),
    ("add.Tensor", lambda x, y: x + y, i(3, 4), X),
    ("add.Tensor", lambda x: x + 1.5, i(3, 4, dtype=np.int32)),
    ("add.Tensor", lambda x, y: x + y, b(5), b(5)),
    ("add.Tensor", lambda x, y: x + y, f(3), lambda rng: torch.tensor(2.0, dtype=torch.float64)),
    ("add.Scalar", lambda x: A.add.Scalar(x, 3), X),
    ("asin", torch.asin, UNIT),
    ("asinh", torch.asinh, X),
    ("atan", torch.atan, X),
    ("atan2", torch.atan2, X, X),
    ("atanh", torch.atanh, UNIT),
    ("bitwise_and.Tensor", lambda x, y: x & y, i(9), i(9)),
    ("bitwise_and.Tensor", lambda x, y: x & y, b(9), b(9)),
    ("bitwise_and.Scalar", lambda x: A.bitwise_and.Scalar(x, 5), i(9)),
    ("bitwise_not", lambda x: ~x, i(9)),
    ("bitwise_not", lambda x: ~x, b(9)),
    ("bitwise_or.Tensor", lambda x, y: x | y, i(9), i(9)),
    ("bitwise_or.Scalar", lambda x: A.bitwise_or.Scalar(x, 5), i(9)),
    ("bitwise_xor.Tensor", lambda x, y: x ^ y, b(9), b(9)),
    ("bitwise_xor.Scalar", lambda x: A.bitwise_xor.Scalar(x, 5), i(9)),
    ("ceil", torch.ceil, X),
    ("celu", lambda x: F.celu(x, 0.7), X),
    ("clamp", lambda x: x.clamp(-0.5, 1), X),
    ("clamp", lambda x: x.clamp(max=1.5), i(9)),
    ("clamp.Tensor", lambda x, low, high: x.clamp(low, high), X, f(4, high=-1), f(3, 1, low=1)),
    ("clone", lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]), X),
    ("alias", lambda x: A.alias(x), X),
    ("clone", lambda x: x.clone(), X),
    ("cos", torch.cos, X),
    ("cosh", torch.cosh, X),
    ("div.Tensor", lambda x, y: x / y, i(3, 4), i(3, 4, low=1)),
    ("div.Tensor", lambda x: x / 3, X),
    ("div.Scalar", lambda x: A.div.Scalar(x, 3), X),
    ("div.Tensor_mode", lambda x, y: torch.div(x, y, rounding_mode="floor"), i(20), i(20, low=1)),
    ("div.Tensor_mode", lambda x, y: torch.div(x, y, rounding_mode="trunc"), i(20), i(20, low=1)),
    ("div.Tensor_mode", lambda x, y: torch.div(x, y, rounding_mode="trunc"), f(20), f(20, low=1)),
    ("div.Tensor_mode", lambda x: x // 2, f(20)),
    ("div.Scalar_mode", lambda x: A.div.Scalar_mode(x, 3, rounding_mode="floor"), X),
    ("elu", lambda x: F.elu(x, 0.8), X),
    ("eq.Tensor", lambda x, y: x == y, i(30, high=0), i(30, high=0)),
    ("eq.Scalar", lambda x: x == 1, i(30)),
    ("erf", torch.erf, X),
    ("exp", torch.exp, X),
    ("exp2", torch.exp2, X),
    ("expm1", torch.expm1, odd(-80.0, -1.0, -1e-6, 0.0, 1e-7, 0.3, 1.0, 2.0, 20.0)),
    ("floor", torch.floor, X),
    ("fmod.Tensor", torch.fmod, f(20), f(20, low=1)),
    ("fmod.Scalar", lambda x: torch.fmod(x, 3), i(20)),
    ("ge.Tensor", lambda x, y: x >= y, i(30), f(30)),
    ("ge.Scalar", lambda x: x >= 1.5, i(30)),
    ("gelu", F.gelu, X),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), X),
    ("gt.Tensor", lambda x, y: x > y, b(30), b(30)),
    ("gt.Scalar", lambda x: x > 0, X),
    ("hardsigmoid", F.hardsigmoid, f(30, low=-5, high=5)),
    ("hardswish", F.hardswish, f(30, low=-5, high=5)),
    ("hardtanh", lambda x: F.hardtanh(x, -0.5, 1.0), X),
    ("hardtanh", F.relu6, f(30, low=-3, high=9)),
    ("isinf", torch.isinf, odd(1.0, float("inf"), float("nan"))),
    ("isinf", torch.isinf, i(3)),
    ("isnan", torch.isnan, odd(1.0, float("inf"), float("nan"))),
    ("le.Tensor", lambda x, y: x <= y, f(30), f(30)),
    ("le.Scalar", lambda x: x <= 2, i(30)),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.1), X),
    ("log", torch.log, P),
    ("log10", torch.log10, P),
    ("log1p", torch.log1p, odd(-0.9, -0.4, -1e-7, 0.0, 1e-7, 0.6, 30.0)),
    ("log2", torch.log2, P),
    ("logical_and", torch.logical_and, i(9, low=0, high=2), b(9)),
    ("logical_not", torch.logical_not, i(9, low=0, high=2)),
    ("logical_or", torch.logical_or, b(9), b(9)),
    ("logical_xor", torch.logical_xor, b(9), b(9)),
    ("lt.Tensor", lambda x, y: x < y, f(30), f(30)),
    ("lt.Scalar", lambda x: x < 1, i(30)),
    ("maximum", torch.maximum, X, X),
    ("minimum", torch.minimum, i(9), i(9)),
    ("mish", F.mish, X),
    ("mul.Tensor", lambda x, y: x * y, i(3, 4), X),
    ("mul.Tensor", lambda x, y: x * y, b(9), b(9)),
    ("mul.Scalar", lambda x: A.mul.Scalar(x, 3), X),
    ("ne.Tensor", lambda x, y: x != y, i(30, high=0), i(30, high=0)),
    ("ne.Scalar", lambda x: x != 2, i(30)),
    ("neg", torch.neg, i(9)),
    ("pow.Tensor_Scalar", lambda x: x**2, X),
    ("pow.Tensor_Scalar", lambda x: x**-0.5, P),
    ("pow.Tensor_Scalar", lambda x: x**3, i(9)),
    ("pow.Tensor_Tensor", torch.pow, P, X),
    ("pow.Scalar", lambda x: 2.5**x, X),
    ("prelu", on(nn.PReLU(3)), IMAGE),
    ("prelu", on(nn.PReLU()), X),
    ("prelu", on(nn.PReLU()), f()),
    ("reciprocal", torch.reciprocal, P),
    ("relu", F.relu, X),
    ("remainder.Scalar_Tensor", lambda x: 1.5 % x, f(20, low=1)),
    ("remainder.Tensor", torch.remainder, f(20), f(20, low=-3, high=-1)),
    ("remainder.Scalar", lambda x: x % 3, i(20)),
    ("round", torch.round, odd(-1.5, -0.5, 0.5, 1.5, 2.5, 2.4)),
    ("round.decimals", lambda x: torch.round(x, decimals=2), X),
    ("rrelu_with_noise_functional", on(nn.RReLU(0.1, 0.4)), X),
    ("rsqrt", torch.rsqrt, P),
    ("selu", F.selu, X),
    (
        "fake_quantize_per_channel_affine_cachemask",
        lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -8, 7),
        X,
        f(4, low=0.1, high=0.4),
        i(4, low=-2, high=3, dtype=np.int32),
    ),
    (
        "fake_quantize_per_tensor_affine_cachemask",
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
        X,
    ),
    ("sigmoid", torch.sigmoid, X),
    ("sign", torch.sign, X),
    ("silu", F.silu, X),
    ("sin", torch.sin, X),
    ("sinh", torch.sinh, X),
    ("softplus", F.softplus, X),
    ("softplus", lambda x: F.softplus(x, 4.0, 3.0), X),
    ("sqrt", torch.sqrt, P),
    ("square", torch.square, X),
    ("sub.Tensor", lambda x, y: torch.sub(x, y, alpha=3), X, f(4)),
    ("sub.Tensor", lambda x: 1.0 - x, i(9)),
    ("sub.Scalar", lambda x: A.sub.Scalar(x, 3), X),
    ("tan", torch.tan, X),
    ("tanh", torch.tanh, X),
    ("trunc", torch.trunc, X),
    ("where.self", lambda c, x, y: torch.where(c, x, y), b(3, 4), X, f(4)),
    ("where.self", lambda c, x: torch.where(c, x, 2.5), b(3, 4), i(3, 4)),
    ("where.self", lambda x, c: x.masked_fill(c, float("-inf")), X, b(3, 4)),
    ("__lshift__.Scalar", lambda x: x << 2, i(9)),
    ("__lshift__.Tensor", lambda x, y: A.__lshift__(x, y), i(9), i(9, low=0)),
    ("__rshift__.Scalar", lambda x: x >> 1, i(9)),
    ("__rshift__.Tensor", lambda x, y: A.__rshift__(x, y), i(9), i(9, low=0)),
    ("erfc", torch.erfc, X),
    ("hypot", torch.hypot, X, X),
    ("bitwise_left_shift.Tensor", torch.bitwise_left_shift, i(3, 4), i(3, 4, low=0)),
    ("bitwise_left_shift.Tensor_Scalar", lambda x: torch.bitwise_left_shift(x, 2), i(3, 4)),
    ("bitwise_right_shift.Tensor", torch.bitwise_right_shift, i(3, 4), i(3, 4, low=0)),
    ("bitwise_right_shift.Tensor_Scalar", lambda x: torch.bitwise_right_shift(x, 1), i(3, 4)),
    ("copysign.Tensor", torch.copysign, X, odd(-0.0, 0.0, -2.0, 3.0)),
    ("copysign.Scalar", lambda x: A.copysign.Scalar(x, -1.5), X),
    ("fmax", torch.fmax, odd(1.0, float("nan"), 3.0), odd(float("nan"), 2.0, 4.0)),
    ("fmax", torch.fmax, i(3, 4), i(3, 4)),
    ("fmin", torch.fmin, odd(1.0, float("nan"), 3.0), odd(float("nan"), 2.0, 4.0)),
    ("ldexp.Tensor", torch.ldexp, X, i(3, 4)),
    ("_to_copy", lambda x: x.to(torch.int32), f(30, low=-9, high=9)),
    ("_to_copy", lambda x: x.double(), X),
    ("_to_copy", lambda x: x.bool(), i(9, low=0, high=2)),
]
MOVEMENT = [
    ("as_strided", lambda x: x.as_strided((3, 4), (2, 1), 1), f(12)),
    ("cat", lambda x, y: torch.cat([x, y], -1), X, f(3, 2)),
    ("cat", lambda x, y: torch.cat([x, y]), f(2, 3), i(1, 3)),
    ("cat", lambda x, y: torch.stack([x, y], 1), X, X),
    ("constant_pad_nd", lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), X),
    ("constant_pad_nd", lambda x: F.pad(x, (-1, 2)), X),
    ("copy", lambda x, y: A.copy(x, y), X, i(4)),
    ("diagonal", lambda x: torch.diagonal(x, 1, 0, 2), f(3, 2, 4)),
    ("diagonal", lambda x: torch.diagonal(x, -1), f(4, 3)),
    ("expand", lambda x: x.expand(2, -1, 4), f(3, 1)),
    ("flip", lambda x: x.flip(0, -1), X),
    ("permute", lambda x: x.permute(2, 0, -2), f(2, 3, 4)),
    ("permute", lambda x: x.transpose(0, 2), f(2, 3, 4)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), f(2, 8, 3, 5)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), f(2, 3, 4, 6)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 3), f(2, 6, 6)),
    ("repeat", lambda x: x.repeat(2, 1, 3), X),
    ("tril_indices", lambda x: x + torch.tril_indices(3, 3)[:, :4], f(2, 4)),
    ("triu_indices", lambda x: x + torch.triu_indices(3, 4, 1)[:, :4], f(2, 4)),
    ("select.int", lambda x: x.select(1, -2), X),
    ("select.int", lambda x: x[2], X),
    ("slice.Tensor", lambda x: x[:, 1:-1], f(3, 6)),
    ("slice.Tensor", lambda x: x[::2, -2:], f(5, 6)),
    ("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 6, 2), f(3, 7), f(3, 3)),
    ("split_with_sizes", lambda x: torch.split(x, [1, 3], 1), X),
    ("split_with_sizes", lambda x: x.chunk(2, -1), X),
    ("squeeze.dims", lambda x: x.squeeze(1), f(3, 1, 4)),
    ("squeeze.dims", lambda x: x.squeeze(0), X),
    ("squeeze.dims", lambda x: x.squeeze(), f(1, 3, 1, 4)),
    ("tril", lambda x: x.tril(-1), f(4, 5)),
    ("triu", lambda x: x.triu(1), f(2, 4, 5)),
    ("unfold", lambda x: x.unfold(1, 3, 2), f(2, 9, 2)),
    ("unsqueeze", lambda x: x.unsqueeze(-1), X),
    ("view", lambda x: x.reshape(2, -1), X),
    ("view", lambda x: x.view(4, 3), X),
]
INDEXING = [
    ("arange.start_step", lambda x: x + torch.arange(4), X),
    ("arange.start_step", lambda x: x * torch.arange(1, 3, 0.5), X),
    ("embedding", on(nn.Embedding(7, 5, padding_idx=0)), i(2, 3, low=0, high=7)),
    (
        "_embedding_bag_forward_only",
        lambda w, x: A._embedding_bag_forward_only(w, x, torch.tensor([0, 2, 2]))[0],
        f(7, 5),
        i(6, low=0, high=7),
    ),
    ("_embedding_bag", on(nn.EmbeddingBag(7, 5, mode="mean")), i(2, 3, low=0, high=7)),
    (
        "_embedding_bag",
        on(nn.EmbeddingBag(7, 5, mode="sum", padding_idx=2)),
        i(9, low=0, high=7),
        odd(0, 3, 3, dtype=torch.int64),
        f(9),
    ),
    (
        "_embedding_bag",
        on(nn.EmbeddingBag(7, 5, mode="max", include_last_offset=True)),
        i(9, low=0, high=7),
        odd(0, 4, 4, 9, dtype=torch.int64),
    ),
    ("_unique2", lambda x: torch.unique(x), i(3, 4)),
    ("_unique2", lambda x: torch.unique(x, return_inverse=True, return_counts=True), i(3, 4)),
    ("unique_dim", lambda x: torch.unique(x, dim=1, return_inverse=True), i(2, 9, low=0, high=2)),
    ("empty.memory_format", lambda x: torch.empty(3, 4).fill_(2) + x, X),
    ("empty_permuted", lambda x: A.empty_permuted([3, 4], [1, 0]).fill_(2) + x, X),
    ("empty_strided", lambda x: torch.empty_strided((3, 4), (4, 1)).fill_(2) + x, X),
    ("fill.Scalar", lambda x: A.fill.Scalar(x, 3), X),
    ("fill.Tensor", lambda x, y: A.fill.Tensor(x, y), X, f()),
    ("full", lambda x: x + torch.full((3, 4), 2.5), X),
    ("full_like", lambda x: torch.zeros_like(x) - 1, X),
    ("gather", lambda x, y: x.gather(1, y), X, i(2, 3, low=0, high=4)),
    ("index.Tensor", lambda x, y: x[y], X, i(2, 5, low=-3, high=3)),
    ("index.Tensor", lambda x, y: x[:, y], X, i(5, low=0, high=4)),
    ("index.Tensor", lambda x, y, z: x[y, z], X, i(2, 1, low=0, high=3), i(5, low=0, high=4)),
    ("index.Tensor", lambda x, y: x[:, y, y], f(2, 3, 3, 4), i(5, low=0, high=3)),
    ("index.Tensor", lambda x, y: x[y, :, y], f(3, 2, 3, 4), i(5, low=0, high=3)),
    ("index.Tensor", lambda x: F.pad(x, (2, 1), mode="reflect"), X),
    (
        "index_put",
        lambda x, y, v: x.index_put((y,), v),
        f(6, 4),
        odd(1, 3, dtype=torch.int64),
        f(2, 4),
    ),
    (
        "index_put",
        lambda x, y, v: x.index_put((y,), v, accumulate=True),
        f(6),
        odd(1, 1, 3, dtype=torch.int64),
        f(3),
    ),
    ("index_put", lambda x, m: x.index_put((m,), torch.tensor(5.0)), X, b(3, 4)),
    ("index_put", lambda x, m: x.index_put((m,), torch.tensor(5.0)), X, b(3)),
    (
        "index_put",
        lambda x, y, v: A.index_put(x, [None, y], v),
        f(3, 6, 2),
        odd(1, 4, dtype=torch.int64),
        f(3, 2, 2),
    ),
    (
        "index_put",
        lambda x, y, v: A.index_put(x, [None, y], v),
        f(3, 6, 2),
        odd(1, 4, dtype=torch.int64),
        f(2),
    ),
    ("index_select", lambda x, y: x.index_select(1, y), X, i(5, low=0, high=4)),
    ("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), f(5), b(3, 5), f(15)),
    ("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), f(3, 1), b(5), f(15)),
    ("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), X, b(3, 4), f(12)),
    ("masked_select", lambda x, m: x.masked_select(m), X, b(3, 4)),
    ("nonzero", lambda x: (x.nonzero(), (x * 0).nonzero()), f()),
    ("nonzero", torch.nonzero, i(4, 5, low=0, high=2)),
    ("scalar_tensor", lambda x, m: torch.where(m, x, -1.0), X, b(3, 4)),
    (
        "scatter.src",
        lambda x, y, s: x.scatter(1, y, s),
        f(3, 6),
        odd([0, 2], [1, 3], dtype=torch.int64),
        X,
    ),
    ("scatter.value", lambda x, y: x.scatter(0, y, 9.0), X, i(1, 4, low=0, high=3)),
    ("scatter_add", lambda x, y, s: x.scatter_add(1, y, s), X, i(3, 4, low=0, high=4), X),
    *(
        (
            "scatter_reduce.two",
            lambda x, y, s, how=how, own=own: x.scatter_reduce(1, y, s, how, include_self=own),
            given,
            i(3, 3, low=0, high=4),
            given,
        )
        for how in ("sum", "mean", "prod", "amax", "amin")
        for own in (True, False)
        for given in (X, i(3, 4))
    ),
    *(
        (
            "index_reduce",
            lambda x, y, s, how=how, own=own: x.index_reduce(0, y, s, how, include_self=own),
            f(5, 4),
            i(3, low=0, high=5),
            f(3, 4),
        )
        for how in ("mean", "prod", "amax", "amin")
        for own in (True, False)
    ),
    ("repeat_interleave.Tensor", lambda x: torch.repeat_interleave(x), i(5, low=0, high=4)),
    (
        "repeat_interleave.Tensor",
        lambda x, y: torch.repeat_interleave(x, y, dim=0),
        f(5, 2),
        i(5, low=0, high=4),
    ),
]
REDUCTION = [
    ("amax", lambda x: x.amax((0, 2), keepdim=True), f(3, 4, 5)),
    ("amin", lambda x: x.amin(-1), X),
    ("any", lambda x: x.any(), b(9)),
    ("any.dim", lambda x: x.any(1, keepdim=True), i(3, 4, low=0, high=2)),
    ("any.dims", lambda x: A.any.dims(x, [0, 1]), b(3, 4)),
    ("argmax", lambda x: x.argmax(-1, keepdim=True), X),
    ("argmax", lambda x: x.argmax(), X),
    ("argmin", lambda x: x.argmin(0), X),
    ("bucketize.Tensor", torch.bucketize, i(9), odd(-2.0, 0.0, 3.0)),
    (
        "bucketize.Tensor",
        lambda x, y: torch.bucketize(x, y, right=True),
        i(9),
        odd(-2, 0, 3, dtype=torch.int64),
    ),
    ("cumprod", lambda x: x.cumprod(1), X),
    ("cumsum", lambda x: x.cumsum(-1), b(3, 4)),
    ("cumsum", lambda x: x.cumsum(0), X),
    ("histc", lambda x: torch.histc(x, 5, -1, 1.5), X),
    ("histc", lambda x: torch.histc(x, 4), X),
    ("histc", lambda x: torch.histc(x.relu() * 0 + 1, 3), X),
    ("histc", lambda x: torch.histc(x.float(), 7, 0, 6), i(30, low=-1, high=8)),
    ("cummax", lambda x: torch.cummax(x, 1), f(3, 9)),
    ("cummax", lambda x: torch.cummax(x, 0), i(9, 2)),
    ("cummax", lambda x: torch.cummax(x, 0), odd(1.0, 1.0, float("nan"), 3.0, float("nan"))),
    ("cummin", lambda x: torch.cummin(x, 1), f(3, 8)),
    ("cummin", lambda x: torch.cummin(x, 0), odd(1.0, 1.0, float("nan"), -3.0)),
    ("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), f(3, 7, low=-90, high=90)),
    ("logcumsumexp", lambda x: torch.logcumsumexp(x, 0), odd(-math.inf, -math.inf, 1.0, 2.0)),
    ("linalg_vector_norm", lambda x: x.norm(dim=-1, keepdim=True), X),
    ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, 1, 0), X),
    ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, float("inf")), X),
    ("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, 3, 1), X),
    ("log_softmax.int", lambda x: x.log_softmax(0), X),
    ("kthvalue", lambda x: x.kthvalue(1), f()),
    ("kthvalue", lambda x: x.kthvalue(2, 0, True), X),
    ("max", lambda x: x.max(), X),
    ("max.dim", lambda x: x.max(0), f()),
    ("max.dim", lambda x: x.max(1), X),
    ("max.dim", lambda x: x.max(1).values, X),
    ("mean", lambda x: x.mean(), X),
    ("mean.dim", lambda x: x.mean((0, 2)), f(2, 3, 4)),
    ("median", lambda x: x.median(), X),
    ("searchsorted.Tensor", lambda x, y: torch.searchsorted(x, y), odd(-1.0, 0.0, 1.0), X),
    (
        "searchsorted.Tensor",
        lambda x, y: torch.searchsorted(x, y, side="right"),
        odd(-3, 0, 2, dtype=torch.int64),
        i(9),
    ),
    ("median.dim", lambda x: x.median(0), f()),
    ("median.dim", lambda x: x.median(1), f(3, 6)),
    ("min", lambda x: x.min(), i(9)),
    ("min.dim", lambda x: x.min(0), f()),
    ("min.dim", lambda x: x.min(0, keepdim=True), X),
    ("prod", lambda x: x.prod(), X),
    ("prod.dim_int", lambda x: x.prod(1), X),
    ("_softmax", lambda x: A._softmax(x, 1, False), X),
    ("_log_softmax", lambda x: A._log_softmax(x, 1, False), X),
    ("softmax.int", lambda x: x.softmax(1), X),
    ("softmax.int", lambda x: F.softmax(x, -1, dtype=torch.float32), X),
    ("sort", lambda x: x.sort(), f()),
    ("sort", lambda x: x.sort(1, descending=True), X),
    ("sort.stable", lambda x: torch.argsort(x, stable=True), i(20)),
    ("sum.dim_IntList", lambda x: x.sum(1), b(3, 4)),
    ("sum.dim_IntList", lambda x: x.sum(), i(3, 4, dtype=np.int32)),
    ("topk", lambda x: x.topk(1), f()),
    ("topk", lambda x: x.topk(2, -1), X),
    ("topk", lambda x: x.topk(2, 0, largest=False), X),
    ("var.correction", lambda x: (x.var(1), x.var(0), x.std(0, correction=2)), f(1, 4)),
    ("var.correction", lambda x: x.var(0), f(0, 4)),
    ("var.correction", lambda x: x.var(1), X),
    ("var.correction", lambda x: x.var(unbiased=False), X),
    ("var_mean.correction", lambda x: torch.var_mean(x, 0, keepdim=True), X),
    ("sqrt", lambda x: x.std(0), X),
]
QUERY = (f(2, 4, 5, 8), f(2, 4, 7, 8), f(2, 4, 7, 6))
SHARED = (f(2, 6, 5, 8), f(2, 2, 7, 8), f(2, 2, 7, 8))
S = F.scaled_dot_product_attention
SQUARES = f(2, 4, 4)


def positive(x):
    """Return a matrix that has a Cholesky factor."""
    return x @ x.mT + torch.eye(x.shape[-1])


def turned(x):
    """Return a well-conditioned matrix whose largest elements lie on the other diagonal."""
    return x + 5 * torch.eye(x.shape[-1]).flip(0)


LINEAR = [
    ("_linalg_slogdet", lambda x: torch.linalg.slogdet(x), SQUARES),
    ("_linalg_slogdet", lambda x: torch.logdet(positive(x)), f(3, 3)),
    ("linalg_inv_ex", lambda x: torch.linalg.inv(turned(x)), SQUARES),
    ("linalg_inv_ex", lambda x: torch.inverse(x), odd((0.0, 2.0), (3.0, 0.0))),
    ("_linalg_solve_ex", lambda a, b: torch.linalg.solve(turned(a), b), SQUARES, f(2, 4, 3)),
    (
        "_linalg_solve_ex",
        lambda a, b: torch.linalg.solve(turned(a), b, left=False),
        SQUARES,
        f(2, 3, 4),
    ),
    ("_linalg_solve_ex", lambda a, b: torch.linalg.solve(turned(a), b), SQUARES, f(4, 3)),
    ("_linalg_solve_ex", lambda a, b: torch.linalg.solve(turned(a), b), f(3, 3), f(3)),
    ("linalg_cholesky_ex", lambda x: torch.linalg.cholesky(positive(x)), SQUARES),
    ("linalg_cholesky_ex", lambda x: torch.linalg.cholesky(positive(x), upper=True), f(5, 5)),
    (
        "linalg_solve_triangular",
        lambda a, b: torch.linalg.solve_triangular(positive(a), b, upper=False),
        SQUARES,
        f(2, 4, 3),
    ),
    (
        "linalg_solve_triangular",
        lambda a, b: torch.linalg.solve_triangular(
            positive(a), b, upper=True, left=False, unitriangular=True
        ),
        f(3, 3),
        f(2, 3),
    ),
    ("_cdist_forward", torch.cdist, f(2, 3, 4), f(2, 5, 4)),
    ("_cdist_forward", lambda x, y: torch.cdist(x, y, p=1.0), f(3, 4), f(5, 4)),
    ("_cdist_forward", lambda x, y: torch.cdist(x, y, p=3.0), f(3, 4), f(5, 4)),
    ("_cdist_forward", lambda x, y: torch.cdist(x, y, p=float("inf")), f(3, 4), f(5, 4)),
    ("_linalg_det", torch.linalg.det, f(2, 4, 4)),
    ("_trilinear", on(nn.Bilinear(4, 5, 3)), X, f(3, 5)),
    ("addmm", lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), f(4), X, f(4, 4)),
    ("addmm", lambda x, y, z: torch.addmm(x, y, z), f(4), X, f(4, 4)),
    ("addbmm", lambda x, y, z: torch.addbmm(x, y, z, beta=0.5), X, f(2, 3, 5), f(2, 5, 4)),
    ("addmv", lambda x, y, z: torch.addmv(x, y, z, alpha=2), f(3), X, f(4)),
    ("addmv", lambda x, y: torch.addmv(x, y, torch.ones(4)), f(3), X),
    ("bmm", torch.bmm, f(2, 3, 4), f(2, 4, 5)),
    ("convolution", on(nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2)), IMAGE),
    ("convolution", on(nn.Conv2d(3, 6, 3, groups=3, padding="same", bias=False)), IMAGE),
    ("convolution", on(nn.Conv1d(3, 4, 5, padding=2)), f(2, 3, 9)),
    ("convolution", on(nn.Conv3d(2, 3, 2)), f(1, 2, 4, 5, 3)),
    ("convolution", on(nn.Conv2d(3, 4, 3)), f(3, 6, 6)),
    (
        "convolution",
        on(nn.ConvTranspose2d(3, 4, 3, 2, padding=1, output_padding=1, groups=1)),
        IMAGE,
    ),
    ("convolution", on(nn.ConvTranspose1d(4, 6, 4, 2, groups=2)), f(2, 4, 5)),
    ("einsum", lambda x, y: torch.einsum("...ik, ...j -> ij", x, y), f(4, 2, 3), f(3)),
    ("einsum", lambda x, y: torch.einsum("i..., ...->i", x, y), f(4, 2, 3), f(2, 1)),
    ("einsum", lambda x, y: torch.einsum("b i j, b j k -> b k i", x, y), f(2, 3, 4), f(2, 4, 5)),
    ("linear", on(nn.Linear(4, 5)), X),
    ("linear", on(nn.Linear(4, 5, bias=False)), f(2, 3, 4)),
    ("linear", on(nn.Linear(4, 5)), f(4)),
    ("linear", F.linear, X, f(5, 4), f(5)),
    ("matmul", torch.matmul, f(2, 3, 4), f(4, 5)),
    ("matmul", torch.matmul, f(3, 4), f(4)),
    ("mm", lambda x, y: A.mm(x, y), X, f(4, 2)),
    ("scaled_dot_product_attention", S, *QUERY),
    ("scaled_dot_product_attention", lambda q, k, v: S(q, k, v, scale=0.7), *QUERY),
    ("scaled_dot_product_attention", lambda q, k, v: S(q, k, v, is_causal=True), *QUERY),
    ("scaled_dot_product_attention", lambda q, k, v, m: S(q, k, v, m), *QUERY, f(5, 7)),
    ("scaled_dot_product_attention", lambda q, k, v, m: S(q, k, v, m), *QUERY, b(2, 1, 5, 7)),
    (
        "scaled_dot_product_attention",
        lambda q, k, v: S(q, k, v, (torch.arange(7) < 3)[None]),
        *QUERY,
    ),
    (
        "scaled_dot_product_attention",
        lambda q, k, v, m: S(q, k, v, m & (torch.arange(5) > 1)[:, None]),
        *QUERY,
        b(2, 1, 5, 7),
    ),
    (
        "scaled_dot_product_attention",
        lambda q, k, v, m: S(q, k, v, m, enable_gqa=True),
        *SHARED,
        f(2, 1, 5, 7),
    ),
    (
        "scaled_dot_product_attention",
        lambda q, k, v: S(q, k, v, is_causal=True, enable_gqa=True),
        *SHARED,
    ),
]


def up(**options):
    """Return a function that resizes."""
    return lambda x: F.interpolate(x, **options)


LAYERS = [
    ("mean.dim", lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    ("_adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (4, 3)), IMAGE),
    ("_adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), IMAGE),
    ("_adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 2, 3)), f(1, 2, 4, 4, 5)),
    ("_native_batch_norm_legit_no_training", on(nn.BatchNorm2d(3)), IMAGE),
    ("_native_batch_norm_legit_no_training", on(nn.BatchNorm1d(4, affine=False)), X),
    ("_upsample_bicubic2d_aa.vec", up(size=(4, 5), mode="bicubic", antialias=True), IMAGE),
    ("_upsample_bilinear2d_aa.vec", up(size=(3, 4), mode="bilinear", antialias=True), IMAGE),
    ("_upsample_nearest_exact1d.vec", up(size=5, mode="nearest-exact"), f(2, 3, 8)),
    ("_upsample_nearest_exact2d.vec", up(scale_factor=1.7, mode="nearest-exact"), IMAGE),
    ("_upsample_nearest_exact3d.vec", up(size=(2, 3, 7), mode="nearest-exact"), f(1, 2, 4, 4, 5)),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (4, 3)), IMAGE),
    (
        "_native_batch_norm_legit.no_stats",
        on(nn.BatchNorm2d(3, track_running_stats=False)),
        IMAGE,
    ),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 5)), IMAGE),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True), IMAGE),
    ("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 5, 3)), f(2, 3, 5, 4, 6)),
    (
        "adaptive_max_pool2d",
        lambda x: F.adaptive_max_pool2d(x, (3, 5), return_indices=True),
        IMAGE,
    ),
    (
        "adaptive_max_pool3d",
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True),
        f(3, 5, 4, 6),
    ),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGE),
    ("avg_pool2d", lambda x: F.avg_pool1d(x, 2), f(2, 3, 9)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 2, divisor_override=3), f(3, 4, 6)),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), IMAGE),
    ("avg_pool2d", lambda x: F.avg_pool2d(x, (3, 2), 2, (1, 0), True, True, 5), IMAGE),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 2, 1, True, False, 3), f(2, 3, 5, 4, 6)),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, 2), f(1, 2, 4, 4, 5)),
    (
        "grid_sampler_3d",
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=False),
        f(2, 3, 4, 5, 6),
        f(2, 2, 3, 4, 3, low=-1.2, high=1.2),
    ),
    (
        "grid_sampler_2d",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        IMAGE,
        f(2, 4, 5, 2),
    ),
    (
        "grid_sampler_2d",
        lambda x, g: F.grid_sample(x, g, "nearest", "border", align_corners=True),
        IMAGE,
        f(2, 4, 5, 2),
    ),
    ("group_norm", on(nn.GroupNorm(2, 4)), f(2, 4, 3, 5)),
    ("gru.input", Layer(made, nn.GRU(4, 5, 2, bidirectional=True, batch_first=True)), f(2, 6, 4)),
    ("instance_norm", on(nn.InstanceNorm2d(3, affine=True)), IMAGE),
    ("instance_norm", on(nn.InstanceNorm1d(3)), f(2, 3, 9)),
    (
        "instance_norm",
        on(nn.InstanceNorm2d(3, affine=True, track_running_stats=True)),
        IMAGE,
    ),
    ("layer_norm", on(nn.LayerNorm((3, 4))), f(2, 3, 4)),
    ("layer_norm", on(nn.LayerNorm(4, elementwise_affine=False)), X),
    ("layer_norm", on(nn.LayerNorm(4, bias=False)), X),
    (
        "lstm.input",
        Layer(lambda c, x: _lstm(c, x), nn.LSTM(4, 5, 2, bidirectional=True)),
        f(6, 2, 4),
    ),
    ("lstm.input", Layer(lambda c, x: _lstm(c, x), nn.LSTM(4, 5, bias=False)), f(6, 2, 4)),
    ("max_pool2d_with_indices", lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    ("max_pool2d_with_indices", lambda x: F.max_pool2d(x, 3, 2, 1, 1, True), f(3, 8, 7)),
    ("max_pool2d_with_indices", lambda x: F.max_pool2d(x, 2, return_indices=True), IMAGE),
    ("max_pool3d_with_indices", lambda x: F.max_pool3d(x, 2), f(1, 2, 4, 4, 5)),
    (
        "native_group_norm",
        lambda x: A.native_group_norm(x, None, None, 2, 4, 15, 2, 1e-5)[0],
        f(2, 4, 3, 5),
    ),
    ("native_layer_norm", lambda x: A.native_layer_norm(x, [4], None, None, 1e-5)[0], X),
    ("rms_norm", on(nn.RMSNorm(4)), X),
    ("rms_norm", on(nn.RMSNorm(4, eps=1e-3)), f(2, 3, 4)),
    ("upsample_bicubic2d.vec", up(size=(5, 9), mode="bicubic"), IMAGE),
    ("upsample_bicubic2d.vec", up(scale_factor=1.5, mode="bicubic", align_corners=True), IMAGE),
    ("upsample_bilinear2d.vec", up(scale_factor=2, mode="bilinear"), IMAGE),
    ("upsample_bilinear2d.vec", up(scale_factor=(1.3, 0.7), mode="bilinear"), IMAGE),
    ("upsample_bilinear2d.vec", up(size=(5, 9), mode="bilinear", align_corners=True), IMAGE),
    ("upsample_linear1d.vec", up(size=5, mode="linear"), f(2, 3, 8)),
    ("upsample_nearest1d.vec", up(scale_factor=2), f(2, 3, 8)),
    ("upsample_nearest2d.vec", up(size=(5, 9)), IMAGE),
    ("upsample_nearest2d.vec", up(scale_factor=1.3), IMAGE),
    ("upsample_nearest3d.vec", up(scale_factor=2), f(1, 2, 3, 4, 5)),
    ("upsample_trilinear3d.vec", up(size=(5, 3, 4), mode="trilinear"), f(1, 2, 3, 4, 5)),
]


def _lstm(cell, x):
    y, (h, c) = cell(x)
    return y, h, c


CASES = [*ELEMENTWISE, *MOVEMENT, *INDEXING, *REDUCTION, *LINEAR, *LAYERS, *COMPLEX]
"""All cases, as (op and overload, function or module, makers of inputs)."""
