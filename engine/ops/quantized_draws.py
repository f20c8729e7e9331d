"""Draw scales, stored integers, biases and windows for samples of quantised calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.ir.graph import Quant
from trireme.support.dtypes import Array, numpy_dtype

FIXED = frozenset({1, 2})


def per_tensor(scale: float, zero: int) -> Quant:
    """Return one scale, as float32 holds it, and one zero point."""
    return Quant((float(np.float32(scale)),), (zero,))


def per_channel(rng: np.random.Generator, channels: int, axis: int) -> Quant:
    """Return a scale for each channel, zero points 0."""
    scales = rng.uniform(0.005, 0.02, channels).astype(np.float32)
    return Quant(tuple(float(s) for s in scales), (0,) * channels, axis)


def stored(rng: np.random.Generator, dtype: str, *shape: int) -> Array:
    """Return integers from the whole range of a dtype."""
    info = np.iinfo(numpy_dtype(dtype))
    return rng.integers(info.min, info.max + 1, shape, numpy_dtype(dtype))


def int32_bias(rng: np.random.Generator, channels: int) -> Array:
    """Return a bias of each channel."""
    return rng.integers(-3000, 3000, channels, np.int32)


def window(rank: int = 2, **attrs: Any) -> dict[str, Any]:
    """Return the attributes of a plain window, but for those given."""
    plain = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank}
    return {**plain, "layout": "NHWC", **attrs}
