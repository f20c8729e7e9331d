"""Short ways to build graphs in tests: arrays stand for constants, weights are seeded."""

import numpy as np

import trireme.ops  # noqa: F401  fills the registry
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def f32(*shape):
    """A float32 type."""
    return TensorType(shape, "float32")


def weights(*shape, seed=1, scale=1.0):
    """Seeded normal numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ints(*values):
    """A constant of int64, as axes, shapes and pads are."""
    return np.array(values, np.int64)


class Model(GraphBuilder):
    """A builder whose inputs are attributes and in which arrays may stand for constants."""

    def __init__(self, **inputs):
        super().__init__("model")
        for name, type in inputs.items():
            setattr(self, name, self.input(name, type))

    def op(self, name, *inputs, **options):
        """Add a node and return its output."""
        made = [self.constant("", x) if isinstance(x, np.ndarray) else x for x in inputs]
        return self.add(name, *made, **options)


def conv(m, x, c_in, c_out, *, k=3, bias=False, seed=1, layout="NCHW", groups=1, **attrs):
    """Add a convolution with seeded weights and pads that keep the size."""
    shape = (c_out, c_in // groups, k, k) if layout == "NCHW" else (c_out, k, k, c_in // groups)
    attrs = {"pads": (k // 2,) * 4, "strides": (1, 1), "dilations": (1, 1)} | attrs
    operands = [weights(*shape, seed=seed, scale=0.3)]
    operands += [weights(c_out, seed=seed + 1)] if bias else []
    return m.op("conv", x, *operands, layout=layout, groups=groups, **attrs)


def batch_norm(m, x, c, layout="NCHW", **options):
    """Add a batch normalisation with seeded statistics."""
    stats = [weights(c, seed=s) for s in (5, 6, 7)] + [np.abs(weights(c, seed=8)) + 0.5]
    return m.op("batch_normalization", x, *stats, epsilon=1e-3, layout=layout, **options)


def pool(m, x, op="max_pool", *, k=2, stride=2, layout="NCHW", **attrs):
    """Add a pooling without pads."""
    attrs = {"kernel": (k, k), "strides": (stride, stride), "pads": (0, 0, 0, 0)} | attrs
    return m.op(op, x, dilations=(1, 1), layout=layout, **attrs)
