"""Floats to stored bytes and back at every shape: the references' bits, and those of each shape."""

import numpy as np
import pytest
from cpu_run import run
from every_shape import Case, bound, check_every_shape

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Quant
from trireme.ir.interpreter import interpret

ISAS = available_isas(variants=False)
QUANTS = {"int8": Quant((0.0375,), (-5,)), "uint8": Quant((0.5,), (131,))}
AXES = [("b", "s", 7), ("b", 4, "s", "t"), ("s", "t"), ("b",), (3, "s", 64)]


def there_and_back(name, axes, dtype):
    """The stored bytes of x, and the floats that they stand for."""
    case = Case(name)
    x = case.input("x", *axes)
    b, quants = case.builder, [QUANTS[dtype]]
    stored = case.add("quantize", x, dtype=dtype, quants=quants)
    return case, b.finish(stored, case.add("dequantize", stored))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTS)
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_every_shape_has_the_bits_of_its_own(cpus, axes, dtype, isa):
    case, graph = there_and_back(f"{dtype} {axes}", axes, dtype)
    device = cpus[isa, 1]
    assert not [r for node in graph.nodes if (r := device.polymorphic_reason(graph, node))]
    check_every_shape(cpus, device, case, graph, isa)


@pytest.mark.parametrize("dtype", QUANTS)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, 100_003])
def test_odd_values(cpus, dtype, count):
    _, graph = there_and_back("odd", ("b",), dtype)
    rng = np.random.default_rng(count)
    x = (rng.integers(-40, 41, count) * 0.25).astype(np.float32)  # ties
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38], np.float32)
    places = rng.integers(0, count, len(odd))
    x[places] = odd
    for isa in ISAS:
        (every,) = cpus[isa, 2].compile_polymorphic([graph])
        one = bound(graph, {"b": count})
        found, _, _ = run(cpus[isa, 2], one, {one.inputs[0]: x}, executable=every.at(one))
        wanted = interpret(one, {one.inputs[0]: x}).values()
        for array, want in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(array, want, err_msg=isa)


@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 37)], ids=str)
@pytest.mark.parametrize("isa", ISAS)
def test_nodes_of_known_sizes_in_an_open_graph(cpus, shape, isa):
    """All sizes of these plans are numbers; their chunks are words all the same."""
    case = Case(f"known {shape}")
    b, x, y = case.builder, case.input("x", "b", 5), case.input("y", *shape)
    stored = case.add("quantize", y, dtype="uint8", quants=[QUANTS["uint8"]])
    made = [case.add("relu", x), case.add("dequantize", stored), case.add("tanh", y)]
    if shape:
        made += [case.add("arg_max", y, axis=-1), case.add("softmax", y, axis=-1)]
        made.append(case.add("cum_sum", y, b.constant("axis", np.array(-1))))
    if len(shape) > 1:
        made += [case.add("trilu", y), case.add("transpose", y, perm=(2, 0, 1))]
        made.append(case.add("gather", y, b.constant("at", np.array([1, 0, 1])), axis=1))
    check_every_shape(cpus, cpus[isa, 1], case, b.finish(*made), isa)
