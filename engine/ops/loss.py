"""Loss functions: negative log likelihood and softmax cross entropy."""

from __future__ import annotations

import numpy as np

from trireme.dtypes import Array
from trireme.graph import TensorType, Value
from trireme.op import Attr, Call, OpDef, define
from trireme.ops.normalization import log_softmax
from trireme.ops.shapes import Types, expect

_ATTRS = {
    "reduction": Attr("str", "mean", ("none", "sum", "mean")),
    "ignore_index": Attr("int", None),
}


def _flops(call: Call) -> int:
    return 2 * call.type(0).elements


def _infer(
    x: Value, target: Value, weight: Value | None = None, *, reduction: str,
    ignore_index: int | None,
) -> Types:  # fmt: skip
    expect("target's batch", target.shape[0], x.shape[0], "as of x")
    if weight is not None:
        expect("the weight's length", weight.shape[0], x.shape[1], "classes")
    loss = TensorType(target.shape if reduction == "none" else (), x.dtype)
    return loss, TensorType(x.shape, x.dtype)


def _reduced(
    likelihood: Array, target: Array, weight: Array | None, reduction: str, ignored: int | None
) -> Array:
    """Return the loss for log probabilities [N,C,..] of the classes in target [N,..]."""
    counts = np.ones(target.shape) if ignored is None else (target != ignored).astype(np.float64)
    classes = np.where(counts > 0, target, 0).astype(np.int64)
    picked = np.take_along_axis(likelihood, classes[:, None], axis=1)[:, 0]
    if weight is not None:
        counts = counts * weight.astype(np.float64)[classes]
    loss = -picked * counts
    if reduction == "none":
        return np.asarray(loss)
    return np.asarray(loss.sum() / counts.sum() if reduction == "mean" else loss.sum())


def _negative_log_likelihood(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str,
    ignore_index: int | None,
) -> Array:  # fmt: skip
    wide = x.astype(np.float64)
    return _reduced(wide, target, weight, reduction, ignore_index).astype(x.dtype)


def _softmax_cross_entropy(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str,
    ignore_index: int | None,
) -> tuple[Array, Array]:  # fmt: skip
    likelihood = log_softmax(x, 1)
    loss = _reduced(likelihood, target, weight, reduction, ignore_index)
    return loss.astype(x.dtype), likelihood.astype(x.dtype)


define(
    OpDef(
        "negative_log_likelihood_loss", "x target weight?",
        "loss = -x[n, target[n]] * weight[target[n]], as it is, summed, or averaged by the "
        "weights; ignore_index counts nothing. Shapes: x [N,C,..], target [N,..], weight [C]. "
        "Source: ONNX NegativeLogLikelihoodLoss-22",
        lambda *inputs, **attrs: _infer(*inputs, **attrs)[:1], _negative_log_likelihood,
        attrs=_ATTRS, flops=_flops, family="other", rtol=4e-6,
    )
)  # fmt: skip
define(
    OpDef(
        "softmax_cross_entropy_loss", "x target weight?",
        "loss, log_prob: negative_log_likelihood_loss of log_softmax(x) along axis 1. "
        "Source: ONNX SoftmaxCrossEntropyLoss-13",
        _infer, _softmax_cross_entropy, outputs="y log_prob?", attrs=_ATTRS, flops=_flops,
        family="other", rtol=4e-6,
    )
)  # fmt: skip
