"""Ops that work on each element by itself: unary, binary with broadcasting, compare, choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from trireme.dtypes import Array
from trireme.graph import TensorType, Value
from trireme.op import Call, OpDef, Sample, define


def same_type(x: Value, *others: Value | None, **attrs: Any) -> tuple[TensorType, ...]:
    """Infer: the output is of the first input's shape and dtype."""
    return (x.type.without_quant(),)


def float_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield odd sizes and the values that break shortcuts: NaN, infinities, -0, tiny, huge."""
    yield Sample((rng.standard_normal((3, 7)).astype(np.float32),), note="small")
    yield Sample((rng.standard_normal((2, 5, 5, 19)).astype(np.float32) * 4,), note="tail of lanes")
    edge = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104.0]
    yield Sample((np.array(edge, np.float32),), note="NaN, infinities, -0")


def _unary(name: str, doc: str, reference: Callable[..., Array], cost: int, rtol: float) -> OpDef:
    def flops(call: Call) -> int:
        return cost * call.outputs[0].elements

    return define(
        OpDef(
            name, "x", doc, same_type, reference,
            flops=flops, samples=float_samples, rtol=rtol,
        )
    )  # fmt: skip


_unary("relu", "y = max(x, 0). Source: ONNX Relu-14", lambda x: np.maximum(x, 0), 1, 0)
_unary("tanh", "y = tanh(x). Source: ONNX Tanh-13", np.tanh, 10, 2e-6)
