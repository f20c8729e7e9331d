"""Elementwise expressions of the cpu device on every element type: inputs, graphs, comparison.

Inputs hold NaN, infinities, -0, the least and the greatest integers. Results are the bits of
integers and bools, and floats to a few units in the last place.
"""

import itertools

import ml_dtypes
import numpy as np

from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.kernels.expressions import EXPRESSIONS, emitter
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import get_op
from trireme.support.dtypes import numpy_dtype

EDGES = (
    np.nan,
    np.inf,
    -np.inf,
    -0.0,
    0.0,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.5,
    127.9,
    128,
    255.9,
    -129,
    300,
    32768,
    65504,
    65519,
    65520,
    65536,
    2147483520,
    2147483648,
    -2147483648,
    -2147483904,
    4294967040,
    4294967296,
    9.2e18,
    9.3e18,
    -9.3e18,
    1.8e19,
    1.9e19,
    1e30,
    1e-40,
    6e-8,
    3e-8,
    1e300,
)
ULPS = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 1e-6, "float64": 1e-15}
ATTRS = {
    "bit_shift": ({"direction": "LEFT"}, {"direction": "RIGHT"}),
    "leaky_relu": ({"alpha": 0.5},),
    "elu": ({"alpha": 0.5},),
    "celu": ({"alpha": 0.5},),
    "thresholded_relu": ({"alpha": 0.5},),
    "is_inf": ({"detect_negative": 0}, {}),
}
STEPS, MANY_STEPS = 2, {"mish": 64}
"""Of denormals, which have fewer bits than ULPS counts on; mish rounds e^x to one before it takes
it times x, which is up to 104 there."""
DROPS_DENORMALS = {"sigmoid"}
"""Ops whose kernels give 0 for results below 2^-126: 1 / (e^-x + 1) overflows there."""
SINGLE_FUNCTIONS = {"swish", "hard_swish", "gelu"}
"""Right to a part of the largest result where they cancel: their samples look at them."""


def values(rng, dtype, count=75):
    """Numbers of a dtype with its edges among them, shuffled; 75 leaves tails of every width."""
    kind = SCALARS[dtype].kind
    if kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if kind in ("single", "double"):
        x = np.concatenate([EDGES, rng.standard_normal(count - len(EDGES)) * 100])
        with np.errstate(all="ignore"):
            x = x.astype(numpy_dtype(dtype))
    else:
        limits = np.iinfo(dtype)
        x = rng.integers(-9 if kind == "signed" else 0, 9, count).astype(dtype)
        x[:6] = limits.max, limits.min, 0, 1, limits.max - 1, limits.min + 1
    rng.shuffle(x)
    return x


def assert_same(got, want, what, op=""):
    if want.dtype.name not in ULPS:
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        tiny = MANY_STEPS.get(op, STEPS) * tiny_step(want.dtype)
        near = np.abs(a - b) <= ULPS[want.dtype.name] * np.abs(b) + tiny
        dropped = (a == 0) & (np.abs(b) < 2.0**-126) & (op in DROPS_DENORMALS)
    right = same | near | dropped
    assert right.all(), (what, op, got[~right], want[~right])


def tiny_step(dtype):
    """The distance of neighbours among the denormals of a dtype."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal)


def assert_outputs(graph, feeds, got, what):
    """The outputs of a graph are those of the references."""
    want = interpret(graph, feeds).values()
    made = {out: node.op for node in graph.nodes for out in node.outputs}
    for out, g, w in zip(graph.outputs, got, want, strict=True):
        assert_same(g, w, what, made[out])


def casts(source, targets, x):
    builder = GraphBuilder(f"cast_{source}")
    value = builder.input("x", TensorType(x.shape, source))
    graph = builder.finish(*(builder.add("cast", value, to=to) for to in targets))
    return graph, {value: x}


def operations(dtypes):
    """Every expression with each of its attributes on each of some dtypes that it has."""
    for op in EXPRESSIONS:
        if op in ("cast", "clip", "where"):
            continue
        for dtype in dtypes:
            if emitter(op, dtype):
                yield from ((op, dtype, attrs) for attrs in ATTRS.get(op, ({},)))


def every_operation(rng, dtype):
    """A graph with an output for each op that a dtype has, and its feeds."""
    builder = GraphBuilder(dtype)
    feeds = {builder.input(name, TensorType((75,), dtype)): values(rng, dtype) for name in "ab"}
    made = []
    for op, _, attrs in operations([dtype]):
        if op == "mod":
            attrs = {"fmod": int(SCALARS[dtype].kind in ("single", "double"))}
        if op not in SINGLE_FUNCTIONS:
            inputs = itertools.islice(feeds, len(get_op(op).inputs.split()))
            made.append(builder.add(op, *inputs, **attrs))
    return builder.finish(*made), feeds
