"""Activations: the table of fusable ones, and the same functions as ops.

`ACTIVATIONS` maps the name in an `activation` attribute to its function and, for the clamps, the
limits. Quantised arithmetic fuses clamps only. Transcendental functions are computed in double
precision and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, IntegerForm, OpDef, Sample, define
from trireme.ops.quantized import table
from trireme.ops.quantized_samples import with_table
from trireme.ops.shapes import Types, same_type
from trireme.support.dtypes import FLOATING, REALS, Array
from trireme.support.errors import GraphError
from trireme.support.records import dataclass

Function = Callable[..., Array]
_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    """Return the error function of a float array, in double precision."""
    return np.asarray(_erf(x.astype(np.float64)), np.float64)


def in_double(function: Function) -> Function:
    """Return the function computed in double precision and rounded to the input's dtype once."""

    def rounded(x: Array, **attrs: Any) -> Array:
        return np.asarray(function(x.astype(np.float64), **attrs)).astype(x.dtype)

    return rounded


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) of a double array."""
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    """Return x * Phi(x) of a double array, Phi being the normal distribution."""
    return np.asarray(x * 0.5 * (1 + erf(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of gelu of a double array."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(x * 0.5 * (1 + np.tanh(inner)))


def hard_swish(x: Array) -> Array:
    """Return x * clip(x / 6 + 1/2, 0, 1) of a double array."""
    return np.asarray(x * np.clip(x / 6 + 0.5, 0, 1))


@dataclass(frozen=True)
class Activation:
    """A fusable activation: its function, the limits if it is a clamp, and its cost."""

    function: Function
    low: float | None = None
    high: float | None = None
    flops: int = 1

    @property
    def is_clamp(self) -> bool:
        """Whether y = min(max(x, low), high), which quantised arithmetic can fuse."""
        return self.low is not None or self.flops == 0


ACTIVATIONS: dict[str, Activation] = {
    "": Activation(lambda x: x, flops=0),
    "relu": Activation(lambda x: np.maximum(x, 0), 0.0),
    "relu6": Activation(lambda x: np.clip(x, 0, 6), 0.0, 6.0, 2),
    "relu_n1_to_1": Activation(lambda x: np.clip(x, -1, 1), -1.0, 1.0, 2),
    "tanh": Activation(in_double(np.tanh), flops=10),
    "sigmoid": Activation(in_double(sigmoid), flops=10),
    "hard_sigmoid": Activation(in_double(lambda x: np.clip(x / 6 + 0.5, 0, 1)), flops=4),
    "hard_swish": Activation(in_double(hard_swish), flops=5),
    "swish": Activation(in_double(lambda x: x * sigmoid(x)), flops=11),
    "gelu": Activation(in_double(gelu), flops=20),
    "gelu_tanh": Activation(in_double(gelu_tanh), flops=20),
}
"""The activations of conv, add and others; hard_sigmoid here is clip(x/6 + 1/2)."""

ACTIVATION = Attr("str", "", tuple(ACTIVATIONS))


def activate(name: str, x: Array) -> Array:
    """Return the activation of that name of an array, in the array's dtype."""
    return np.asarray(ACTIVATIONS[name].function(x)).astype(x.dtype, copy=False)


def edge_values() -> Array:
    """Return floats that break shortcuts: NaN, infinities, -0, tiny and huge."""
    edge = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104.0, 1e-7]
    return np.array(edge, np.float32)


def float_samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield odd sizes and edge values for an op of one float input."""
    yield Sample((rng.standard_normal((3, 7)).astype(np.float32),), note="small")
    x = rng.standard_normal((2, 5, 5, 19)).astype(np.float32) * 4
    yield Sample((x,), note="tail of lanes")
    yield Sample((np.array(rng.standard_normal(), np.float32),), note="no axes")
    plain = [0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 7.3, -7.3, 20.0]
    edges = np.array([*edge_values(), *plain], np.float32).reshape(3, 7)  # one kernel with "small"
    yield Sample((edges,), note="NaN, infinities, -0")


def _with_attributes(attrs: Mapping[str, Attr]) -> Callable[..., Iterable[Sample]]:
    """Return a sampler of `float_samples` and one sample with every attribute off its default."""
    other = {
        key: attr.choices[-1] if attr.choices else attr.default / 2 + 0.125
        for key, attr in attrs.items()
    }

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        yield from float_samples(rng)
        x = rng.standard_normal((3, 7)).astype(np.float32) * 4
        yield Sample((x,), other, note="other attributes")

    return samples if other else float_samples


def _infer_celu(x: Value, *, alpha: float) -> Types:
    if not alpha:
        raise GraphError("alpha is 0, which x is divided by")
    return same_type(x)


def unary(
    name: str,
    doc: str,
    reference: Function,
    cost: int,
    rtol: float = 2e-6,
    integer_form: IntegerForm = "table",
    **options: Any,
) -> OpDef:
    """Define an elementwise op of one input; `cost` is its operations an element."""

    def flops(call: Call) -> int:
        return cost * call.outputs[0].elements

    options = {"infer": same_type, "dtypes": (FLOATING,), **options}
    samples = options.pop("samples", None) or _with_attributes(options.get("attrs", {}))
    if integer_form:
        options["quantized"], samples = table(name), with_table(name, samples)
    return define(
        name,
        "x",
        doc,
        reference=reference,
        flops=flops,
        rtol=rtol,
        samples=samples,
        elementwise=True,
        integer_form=integer_form,
        **options,
    )


unary(
    "relu",
    "y = max(x, 0). Source: ONNX Relu-14",
    lambda x: np.maximum(x, 0),
    1,
    0,
    dtypes=(REALS,),
    clamp=(0.0, math.inf),
)
unary(
    "relu6",
    "y = min(max(x, 0), 6). Source: TFLite RELU6",
    lambda x: np.clip(x, 0, 6),
    2,
    0,
    clamp=(0.0, 6.0),
)
unary(
    "relu_n1_to_1",
    "y = min(max(x, -1), 1). Source: TFLite RELU_N1_TO_1",
    lambda x: np.clip(x, -1, 1),
    2,
    0,
    clamp=(-1.0, 1.0),
)
unary("tanh", "y = tanh(x). Source: ONNX Tanh-13", in_double(np.tanh), 10)
unary("sigmoid", "y = 1 / (1 + exp(-x)). Source: ONNX Sigmoid-13", in_double(sigmoid), 10)
unary(
    "hard_sigmoid",
    "y = min(max(alpha * x + beta, 0), 1). Source: ONNX HardSigmoid-22",
    in_double(lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1)),
    3,
    attrs={"alpha": Attr("float", 0.2), "beta": Attr("float", 0.5)},
)
unary(
    "hard_swish",
    "y = x * min(max(x/6 + 1/2, 0), 1). Source: ONNX HardSwish-22",
    in_double(hard_swish),
    5,
)
unary(
    "swish",
    "y = x * sigmoid(alpha * x). Source: ONNX Swish-24",
    in_double(lambda x, alpha: x * sigmoid(alpha * x)),
    11,
    attrs={"alpha": Attr("float", 1.0)},
)
unary(
    "gelu",
    "y = x/2 * (1 + erf(x / sqrt(2))), or with approximate='tanh' "
    "y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). Source: ONNX Gelu-20",
    in_double(lambda x, approximate: gelu(x) if approximate == "none" else gelu_tanh(x)),
    20,
    attrs={"approximate": Attr("str", "none", ("none", "tanh"))},
)
unary("erf", "y = erf(x). Source: ONNX Erf-13", in_double(erf), 20)
unary(
    "leaky_relu",
    "y = x where x >= 0, else alpha * x. Source: ONNX LeakyRelu-16",
    lambda x, alpha: np.where(x < 0, x * np.asarray(alpha, x.dtype), x),
    2,
    0,
    attrs={"alpha": Attr("float", 0.01)},
)
unary(
    "elu",
    "y = x where x >= 0, else alpha * (exp(x) - 1). Source: ONNX Elu-22",
    in_double(lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x)),
    12,
    attrs={"alpha": Attr("float", 1.0)},
)
unary(
    "celu",
    "y = max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)). Source: ONNX Celu-12",
    in_double(lambda x, alpha: np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))),
    14,
    infer=_infer_celu,
    attrs={"alpha": Attr("float", 1.0)},
)
unary(
    "selu",
    "y = gamma * x where x > 0, else gamma * alpha * (exp(x) - 1). Source: ONNX Selu-22",
    in_double(lambda x, alpha, gamma: gamma * np.where(x <= 0, alpha * np.expm1(x), x)),
    13,
    attrs={
        "alpha": Attr("float", 1.67326319217681884765625),
        "gamma": Attr("float", 1.05070102214813232421875),
    },
)
unary(
    "softplus",
    "y = log(1 + exp(x)). Source: ONNX Softplus-22",
    in_double(lambda x: np.logaddexp(0, x)),
    20,
)
unary(
    "softsign",
    "y = x / (1 + |x|). Source: ONNX Softsign-22",
    in_double(lambda x: x / (1 + np.abs(x))),
    3,
)
unary(
    "mish",
    "y = x * tanh(log(1 + exp(x))). Source: ONNX Mish-22",
    in_double(lambda x: x * np.tanh(np.logaddexp(0, x))),
    31,
)
unary(
    "thresholded_relu",
    "y = x where x > alpha, else 0. Source: ONNX ThresholdedRelu-22",
    lambda x, alpha: np.where(x > np.asarray(alpha, x.dtype), x, np.zeros((), x.dtype)),
    1,
    0,
    integer_form="",
    attrs={"alpha": Attr("float", 1.0)},
)
unary(
    "shrink",
    "y = x + bias where x < -lambd, x - bias where x > lambd, else 0. Source: ONNX Shrink-9",
    lambda x, lambd, bias: np.where(
        x < -lambd, x + bias, np.where(x > lambd, x - bias, np.zeros((), x.dtype))
    ).astype(x.dtype),
    3,
    1e-7,
    integer_form="",
    attrs={"lambd": Attr("float", 0.5), "bias": Attr("float", 0.0)},
    dtypes=(REALS,),
)
