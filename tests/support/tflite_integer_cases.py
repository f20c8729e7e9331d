"""Models of one TFLite operator on stored integers, whose inputs reach each code and each rounding.

`MAKERS` holds the maker of cases of each operator that takes quantised values. A maker yields the
cases of a dtype, for int16 those of "16x8": activations of int16 and weights of int8. Elementwise
operators see all codes, or pairs of all 8-bit codes. Scales are powers of two, whose results are
exact halves, decimals, or random.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tflite_builder import T, one_op
from tflite_cases import NONE, RELU, RELU6

SEED = 35
DTYPES = ("int8", "uint8", "int16")
_RANDOM = 12
"""The random quantisations of each operator."""


@dataclass(frozen=True)
class Case:
    """A model and its inputs by tensor name; `name` tells the quantisation or the options."""

    name: str
    data: bytes
    feeds: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Scaled:
    """A scale and a zero point of int8; `q` moves them for other dtypes."""

    scale: float
    zero: int = 0


Maker = Callable[[str], Iterator[Case]]
MAKERS: dict[str, Maker] = {}


def maker(*codes):
    """Register the maker of an operator; with several, it takes the operator's code first."""

    def register(make):
        for code in codes:
            assert code not in MAKERS
            MAKERS[code] = make if len(codes) == 1 else lambda dtype, c=code: make(c, dtype)
        return make

    return register


def q(dtype, shape, quant):
    """A quantised tensor; int16 has a scale of a 256th and no zero point."""
    if dtype == "int16":
        return T(shape, dtype, (quant.scale / 256,))
    return T(shape, dtype, (quant.scale,), (quant.zero + 128 * (dtype == "uint8"),))


def codes(dtype):
    """Every integer of a dtype, as one row."""
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype).reshape(1, -1)


def spread(rng, dtype, shape):
    """Seeded integers of which every eighth is an end of the dtype, zero, or near one of these."""
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, -1, 0, 1, 2, 3, info.max - 1, info.max]
    edges = [edge for edge in edges if edge >= info.min]
    values = rng.integers(info.min, info.max + 1, shape)
    return np.where(rng.random(shape) < 1 / 8, rng.choice(edges, shape), values).astype(dtype)


def pairs(dtype):
    """Two inputs: every pair of 8-bit codes, or a spread of pairs of int16."""
    if dtype == "int16":
        rng = np.random.default_rng(SEED)
        return spread(rng, dtype, (1, 1 << 16)), spread(rng, dtype, (1, 1 << 16))
    x = codes(dtype).reshape(-1)
    return np.repeat(x, x.size).reshape(1, -1), np.tile(x, x.size).reshape(1, -1)


def quants(count):
    """Yield `count` quantisations by a name, of which the last is y's.

    The first ones make exact halves. Decimals make halves but for the rounding of the scales.
    """
    for step in (1, 2):
        halves = [Scaled(0.25 * step)] * (count - 1)
        yield f"halves {step}", [*halves, Scaled(0.5)]
        yield f"halves {step}, zeros", [*(Scaled(0.25 * step, 5),) * (count - 1), Scaled(0.5, -3)]
    for x, y in ((0.05, 0.1), (0.05, 0.02), (0.3, 0.6)):
        yield f"decimals {x} {y}", [*(Scaled(x, 3),) * (count - 1), Scaled(y, -5)]
    rng = np.random.default_rng(SEED)
    for number in range(_RANDOM):
        scales = 0.05 * np.exp(rng.uniform(-1.5, 1.5, count))
        zeros = rng.integers(-128, 128, count)
        random = [Scaled(float(s), int(z)) for s, z in zip(scales, zeros, strict=True)]
        yield f"random {number}", random


def case_of(name, code, inputs, outputs, arrays, kind="", **options):
    """A case of one operator; `arrays` are the inputs that are no constants, in order."""
    free = [k for k, tensor in enumerate(inputs) if tensor.data is None]
    feeds = {f"t{k}": array for k, array in zip(free, arrays, strict=True)}
    return Case(name, one_op(code, inputs, outputs, kind, **options), feeds)


def unary(code, dtype, kind="", **options):
    """Yield an operator of one input over all codes."""
    x = codes(dtype)
    for name, (own, made) in quants(2):
        tensors = [q(dtype, x.shape, own)], [q(dtype, x.shape, made)]
        yield case_of(name, code, *tensors, [x], kind, **options)


@maker(
    "ABS",
    "CEIL",
    "COS",
    "ELU",
    "EXP",
    "FLOOR",
    "HARD_SWISH",
    "LOG",
    "NEG",
    "RELU",
    "RELU6",
    "RELU_0_TO_1",
    "RELU_N1_TO_1",
    "ROUND",
    "SIGN",
    "SIN",
    "SQUARE",
)
def plain(code, dtype):
    yield from unary(code, dtype)


@maker("LEAKY_RELU")
def leaky_relu(dtype):
    for alpha in (0.3, 0.5, 1.5, -0.25):
        for each in unary("LEAKY_RELU", dtype, "LeakyReluOptions", Alpha=alpha):
            yield Case(f"{each.name}, {alpha}", each.data, each.feeds)


@maker("GELU")
def gelu(dtype):
    for approximate in (False, True):
        for each in unary("GELU", dtype, "GeluOptions", Approximate=approximate):
            yield Case(f"{each.name}, {approximate}", each.data, each.feeds)


@maker("SQRT", "RSQRT")
def roots(code, dtype):
    """LiteRT refuses to run these on negative numbers."""
    x = codes(dtype)
    x = x[:, x.size // 2 :] if dtype == "int16" else x
    for name, (own, made) in quants(2):
        tensors = [q(dtype, x.shape, Scaled(own.scale, -128))], [q(dtype, x.shape, made)]
        yield case_of(name, code, *tensors, [x])


_UNITS = {
    "LOGISTIC": Scaled(1 / 256, -128),
    "TANH": Scaled(1 / 128),
    "SOFTMAX": Scaled(1 / 256, -128),
    "LOG_SOFTMAX": Scaled(16 / 256, 127),
    "L2_NORMALIZATION": Scaled(1 / 128),
}


def unit(code, dtype, shape):
    """The output of an operator that allows one quantisation alone."""
    return T(shape, dtype, (2.0**-15,)) if dtype == "int16" else q(dtype, shape, _UNITS[code])


@maker("LOGISTIC", "TANH")
def curves(code, dtype):
    x = codes(dtype)
    for name, (own, _) in quants(2):
        yield case_of(name, code, [q(dtype, x.shape, own)], [unit(code, dtype, x.shape)], [x])


@maker("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")
def rows(code, dtype):
    rng = np.random.default_rng(SEED)
    x = spread(rng, dtype, (256, 19))
    betas = (1.0, 0.5) if code == "SOFTMAX" else (None,)
    for beta, (name, (own, _)) in itertools.product(betas, quants(2)):
        options = {} if beta is None else {"kind": "SoftmaxOptions", "Beta": beta}
        tensors = [q(dtype, x.shape, own)], [unit(code, dtype, x.shape)]
        yield case_of(f"{name}, {beta}", code, *tensors, [x], **options)


@maker("QUANTIZE")
def quantize(dtype):
    for other in DTYPES:
        x = codes(other)
        for name, (own, made) in quants(2):
            tensors = [q(other, x.shape, own)], [q(dtype, x.shape, made)]
            yield case_of(f"{name}, of {other}", "QUANTIZE", *tensors, [x])
    rng = np.random.default_rng(SEED)
    for name, (_, made) in quants(2):
        y = q(dtype, (1, 4096), made)
        halves = rng.integers(-400, 400, y.shape) * y.scales[0] / 2
        x = np.where(rng.random(y.shape) < 0.5, halves, rng.normal(0, 8, y.shape))
        yield case_of(f"{name}, of floats", "QUANTIZE", [T(y.shape)], [y], [x.astype(np.float32)])


@maker("DEQUANTIZE")
def dequantize(dtype):
    x = codes(dtype)
    for name, (own, _) in quants(2):
        yield case_of(name, "DEQUANTIZE", [q(dtype, x.shape, own)], [T(x.shape)], [x])


_OPTIONS = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}


@maker("ADD", "SUB", "MUL", "DIV")
def arithmetic(code, dtype):
    a, b = pairs(dtype)
    options = {"PotScaleInt16": False} if code in ("ADD", "SUB") else {}
    acts = itertools.cycle((NONE, RELU, RELU6))
    for (name, (one, other, made)), act in zip(quants(3), acts, strict=False):
        tensors = [q(dtype, a.shape, one), q(dtype, b.shape, other)], [q(dtype, a.shape, made)]
        (zero,) = tensors[0][1].zeros
        by = np.where(b == zero, b + 1, b).astype(dtype) if code == "DIV" else b
        more = {"FusedActivationFunction": act, **options}
        yield case_of(f"{name}, {act}", code, *tensors, [a, by], _OPTIONS[code], **more)


@maker("ATAN2", "FLOOR_DIV", "FLOOR_MOD", "POW", "PRELU", "SQUARED_DIFFERENCE")
def of_two(code, dtype):
    a, b = pairs(dtype)
    b = np.where(b == 0, 1, b).astype(dtype) if code.startswith("FLOOR") else b
    for name, (one, other, made) in quants(3):
        tensors = [q(dtype, a.shape, one), q(dtype, b.shape, other)], [q(dtype, a.shape, made)]
        yield case_of(name, code, *tensors, [a, b])


@maker("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
def comparison(code, dtype):
    a, b = pairs(dtype)
    for name, (one, other, _) in quants(3):
        tensors = [q(dtype, a.shape, one), q(dtype, b.shape, other)], [T(a.shape, "bool")]
        yield case_of(name, code, *tensors, [a, b])


@maker("MAXIMUM", "MINIMUM", "ADD_N")
def extremum(code, dtype):
    a, b = pairs(dtype)
    both = q(dtype, a.shape, Scaled(0.037, -7))
    yield case_of("same scale", code, [both, both], [both], [a, b])
