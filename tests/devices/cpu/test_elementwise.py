"""Elementwise kernels of the cpu device on every element type, against the ops' references: the
bits of integers and bools, floats to a few units in the last place; NaN, infinities, -0, the least
and the greatest integers among the inputs.
"""

import itertools

import numpy as np
import pytest
from cpu_run import node_graph, run
from every_expression import assert_outputs, assert_same, casts, every_operation, values

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.scalars import SCALARS
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.runtime.session.session import Session

SEED = 20261123
BEST = available_isas()[0]


def agree(device, graph, feeds):
    got, kernels, _ = run(device, graph, feeds)
    assert REFERENCE not in kernels.values(), kernels
    assert_outputs(graph, feeds, got, str(kernels))


def run_casts(cpus, isa, pairs):
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    for source, group in itertools.groupby(pairs, lambda pair: pair[0]):
        graph, feeds = casts(source, [target for _, target in group], values(rng, source))
        agree(cpus[isa, 1], graph, feeds)


PAIRS = list(itertools.product(SCALARS, SCALARS))


def test_a_seventh_of_the_casts(cpus):
    run_casts(cpus, BEST, PAIRS[::7])


@pytest.mark.slow
@pytest.mark.parametrize("isa", available_isas())
def test_every_cast(cpus, isa):
    run_casts(cpus, isa, PAIRS)


def test_a_cast_of_what_is_outside_as_onnx_runtime_has_it():
    """ONNX leaves it open; these are ONNX Runtime's numbers on x86."""
    x = np.array([np.nan, np.inf, -np.inf, 300, -129, 3e9, -3e9, 1e10, 1.9e19], np.float32)
    least, wide = -(1 << 31), -(1 << 63)
    rows = {
        "int8": [0, 0, 0, 44, 127, 0, 0, 0, 0],
        "int32": [least, least, least, 300, -129, least, least, least, least],
        "uint32": [1 << 31, 0, 1 << 31, 300, (1 << 32) - 129, 3 * 10**9, 1 << 31, 0, 0],
        "int64": [wide, wide, wide, 300, -129, 3 * 10**9, -3 * 10**9, 10**10, wide],
    }
    for to, want in rows.items():
        graph, feeds = casts("float32", [to], x)
        (got,) = interpret(graph, feeds).values()
        np.testing.assert_array_equal(got, np.array(want).astype(to))


def run_operations(cpus, isa, dtypes):
    print("seed", SEED)
    for dtype in dtypes:
        agree(cpus[isa, 1], *every_operation(np.random.default_rng(SEED), dtype))


def test_every_expression_on_a_dtype_of_each_kind(cpus):
    run_operations(cpus, BEST, ["float16", "float64", "int32", "int64", "uint8", "bool"])


@pytest.mark.slow
@pytest.mark.parametrize("isa", available_isas())
def test_every_expression_on_every_dtype(cpus, isa):
    run_operations(cpus, isa, list(SCALARS))


@pytest.mark.parametrize("dtype", ["int8", "float16", "int64"])
def test_broadcasts_and_chunks_of_narrow_and_wide_elements(cpus, dtype):
    rng = np.random.default_rng(SEED)
    for left, right in (
        ((3, 1, 67), (5, 67)),
        ((2, 5, 1), (2, 1, 70)),
        ((), (131,)),
        ((70_001,),) * 2,
    ):
        a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in (left, right))
        graph, feeds = node_graph("less", [a, b], {})
        for threads in (1, 2):
            agree(cpus[BEST, threads], graph, feeds)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("isa", available_isas())
def test_the_remainder_of_floats_has_no_rounding_error(cpus, isa, dtype):
    """Random bits: the largest quotients, subnormals, NaN; multiples, and numbers next to them."""
    rng = np.random.default_rng(SEED)
    word = {"float32": np.uint32, "float64": np.uint64}[dtype]
    a, b = rng.integers(0, np.iinfo(word).max, (2, 40_000), word, endpoint=True).view(dtype)
    near = slice(0, 20_000)
    whole = np.exp2(rng.uniform(0, 60, 20_000)).astype(np.int64)
    with np.errstate(all="ignore"):
        a[near] = np.nextafter(whole * b[near], rng.choice([-np.inf, 0, np.inf], 20_000))
        b[::97], b[50::97] = np.inf, 0
        want = np.fmod(a, b)
    graph, feeds = node_graph("mod", [a, b], {"fmod": 1})
    (got,), kernels, _ = run(cpus[isa, 1], graph, feeds)
    assert REFERENCE not in kernels.values()
    same = (got.view(word) == want.view(word)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (a[~same][:5], b[~same][:5], got[~same][:5], want[~same][:5])


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
@pytest.mark.parametrize("isa", available_isas())
def test_trigonometry_is_right_to_two_units_in_the_last_place(cpus, isa, op):
    """Random bits, so also arguments of 1e38; multiples of pi / 2; against libm in float64."""
    rng = np.random.default_rng(SEED)
    bits = rng.integers(0, 1 << 32, 50_000, dtype=np.uint32).view(np.float32)
    turns = (np.arange(20_000) * (np.pi / 2)).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, 1 << 20], np.float32)
    x = np.concatenate([bits, turns, rng.uniform(-3e3, 3e3, 20_000).astype(np.float32), special])
    graph, feeds = node_graph(op, [x], {})
    (got,), kernels, _ = run(cpus[isa, 1], graph, feeds)
    assert REFERENCE not in kernels.values()
    with np.errstate(all="ignore"):
        want = getattr(np, op)(x.astype(np.float64))
        apart = np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(want.astype(np.float32)))
    assert (np.isnan(got) == np.isnan(want)).all()
    assert np.nanmax(apart) <= 2, (x[np.nanargmax(apart)], np.nanmax(apart))
    if op != "cos":
        assert np.signbit(got[x == 0]).tolist() == np.signbit(x[x == 0]).tolist()


def test_a_choice_between_casts_and_comparisons_is_one_kernel(cpus):
    """cast -> mul -> where with a comparison inside: nothing in between goes through memory."""
    rng = np.random.default_rng(SEED)
    builder = GraphBuilder("chain")
    x = builder.input("x", TensorType((9, 37), "uint8"))
    limit = builder.constant("limit", np.array(100, np.int64))
    y = builder.input("y", TensorType((9, 37), "int64"))
    scaled = builder.add(
        "mul",
        builder.add("cast", x, to="float32"),
        builder.constant("scale", np.array(0.25, np.float32)),
    )
    found = builder.add(
        "where",
        builder.add("less", y, limit),
        scaled,
        builder.constant("nothing", np.array(-1, np.float32)),
    )
    graph = builder.finish(found)
    feeds = {
        x: rng.integers(0, 255, (9, 37)).astype(np.uint8),
        y: rng.integers(0, 200, (9, 37)).astype(np.int64),
    }
    agree(cpus[BEST, 2], graph, feeds)
    kernels = run(cpus[BEST, 1], graph, feeds)[1]
    assert len(set(kernels.values())) == 1, kernels


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-45)


@pytest.mark.parametrize("isa", available_isas(variants=False))
def test_powers_of_special_numbers_are_those_of_c(cpus, isa):
    """All pairs, also the sign of zero, by C's pow as numpy has it in float64."""
    base, exponent = (np.array(SPECIAL, np.float32).reshape(shape) for shape in ((-1, 1), (1, -1)))
    graph, feeds = node_graph("pow", [base, exponent], {})
    got = run(cpus[isa, 1], graph, feeds)[0][0]
    with np.errstate(all="ignore"):
        want = np.power(base.astype(np.float64), exponent.astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    known = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


QUOTIENTS = [
    ("mod", {}, np.remainder),
    ("mod", {"zero": "dividend"}, lambda a, b: np.where(a % b == 0, np.copysign(0, a), a % b)),
    ("mod", {"fmod": 1}, np.fmod),
    ("floor_div", {}, np.floor_divide),
]


@pytest.mark.parametrize("op, attrs, rule", QUOTIENTS)
@pytest.mark.parametrize("isa", available_isas(variants=False))
def test_quotients_are_exact_with_the_sign_of_zero(cpus, isa, op, attrs, rule):
    """All pairs; a rounded quotient of near multiples has the next whole number as its floor."""
    values = np.array([*SPECIAL, 0.1, 0.3, -0.7, 1.5, -6, 1e6, 3e38, -1e-38], np.float64)
    for dtype in (np.float32, np.float64):
        a, b = (values.reshape(shape).astype(dtype) for shape in ((-1, 1), (1, -1)))
        graph, feeds = node_graph(op, [a, b], attrs)
        (got,), kernels, _ = run(cpus[isa, 1], graph, feeds)
        assert REFERENCE not in kernels.values()
        with np.errstate(all="ignore"):
            want = rule(a, b).astype(dtype)
        np.testing.assert_array_equal(got, want)
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(want)[known])


FROM_RUNTIME = {  # op: attributes, the dtypes that ONNX Runtime has a kernel for
    **dict.fromkeys(["Add", "Sub", "Mul", "Div"], ({}, ("int8", "uint8", "int32", "int64"))),
    "Mod": ({"fmod": 0}, ("int8", "uint8", "int16", "int32", "int64")),
    **dict.fromkeys(["Equal", "Less", "GreaterOrEqual"], ({}, ("float32", "int32", "int64"))),
    **dict.fromkeys(["And", "Or", "Xor"], ({}, ("bool",))),
    **dict.fromkeys(["Max", "Min"], ({}, ("float16", "uint32", "int64", "float64"))),
    **dict.fromkeys(["BitwiseAnd", "BitwiseOr", "BitwiseXor"], ({}, ("int8", "uint32", "int64"))),
    "BitShift": ({"direction": "RIGHT"}, ("uint8", "uint32", "uint64")),
}


def runtime_model(onnx):
    """An ONNX model of all that FROM_RUNTIME has, and of every cast between some dtypes."""
    helper, nodes, inputs, outputs = onnx.helper, [], {}, []

    def add(op, dtype, count, **attrs):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        names = [f"{dtype}_{k}" for k in range(count)]
        inputs.update({n: helper.make_tensor_value_info(n, kind, (75,)) for n in names})
        outputs.append(helper.make_empty_tensor_value_info(f"y{len(outputs)}"))
        nodes.append(helper.make_node(op, names, [outputs[-1].name], **attrs))

    for op, (attrs, dtypes) in FROM_RUNTIME.items():
        for dtype in dtypes:
            add(op, dtype, 2, **attrs)
    some = ("float32", "float64", "float16", "bool", "int8", "uint8", "int32", "uint32", "int64")
    for source, target in itertools.product(some, some):
        add("Cast", source, 1, to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    graph = helper.make_graph(nodes, "ops", list(inputs.values()), outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return model.SerializeToString(), list(inputs)


def test_the_bits_of_onnx_runtime(tmp_path):
    """Integers of all ops and every cast, by a session from bytes: the same bits."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model, names = runtime_model(onnx)
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    feeds = {name: values(rng, name.rpartition("_")[0]) for name in names}
    for name, x in feeds.items():
        if name.endswith("_1") and x.dtype.kind in "iu":  # neither 0, -1 nor a far shift: not
            x[...] = rng.integers(1, 7, x.size)  # defined, and SIGFPE in ONNX Runtime
    peer = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with Session(model, devices=["cpu"]) as session:
        got = session.run(feeds)
    for output, want in zip(peer.get_outputs(), peer.run(None, feeds), strict=True):
        assert_same(got[output.name], want, output.name)
