"""Products on a dynamically quantised input, by ONNX's rule: the reference's very bits."""

import numpy as np
import pytest
from cpu_run import run
from hybrid_graphs import Hybrid

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.expressions import ACTIVATIONS
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.quantization.dynamic_range import HybridProduct, find_hybrid

by_isa = pytest.mark.parametrize("isa", available_isas())
SHAPES = [(5, 40), (1, 7), (3, 9, 33), (2, 3, 4, 20), (130, 64)]
RANGES = {"signed": (-128, 128), "wide": (-7, 249), "low": (-255, 1), "narrow": (-60, 61)}
INPUTS = {
    "both signs": lambda rng, shape: rng.standard_normal(shape) * 3,
    "above 0": lambda rng, shape: rng.uniform(2, 5, shape),
    "below 0": lambda rng, shape: -rng.uniform(2, 5, shape),
    "zeros": lambda rng, shape: np.zeros(shape),
    "ties": lambda rng, shape: rng.integers(-255, 256, shape) / 2,
    "tiny": lambda rng, shape: rng.standard_normal(shape) * 1e-38,
}


def product(shape, columns, ends, parts=1):
    """y = levels of x by weights in a range, times scales of columns, plus a bias."""
    made = Hybrid(len(shape) * 100 + columns)
    x = made.b.input("x", TensorType(shape, "float32"))
    levels, step = made.unsigned(x)
    w = made.rng.integers(*ends, (columns, shape[-1]))
    if parts > 1:
        y = made.in_parts(levels, w, parts)
    else:
        y = made.b.add("fully_connected", levels, made.b.constant("w", w.astype(np.float32)))
    scales = made.rng.uniform(0.001, 0.02, columns).astype(np.float32)
    bias = made.b.constant("b", made.rng.standard_normal(columns).astype(np.float32))
    scaled = made.b.add("mul", y, made.b.add("mul", step, made.b.constant("s", scales)))
    return made.b.finish(made.b.add("add", scaled, bias, activation="relu"))


def check(device, graph, x):
    with np.errstate(all="ignore"):
        (want,) = interpret(graph, {graph.inputs[0]: x}).values()
    (got,), kernels, _ = run(device, graph, {graph.inputs[0]: x})
    names = set(kernels.values())
    assert len(names) in (2, 3) and any("levels_unsigned" in name for name in names), names
    np.testing.assert_array_equal(got, want)


@by_isa
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs(cpus, isa, kind):
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        graph = product(shape, 19, RANGES["signed"])
        check(cpus[isa, 2], graph, INPUTS[kind](rng, shape).astype(np.float32))


@by_isa
@pytest.mark.parametrize("ends", RANGES.values(), ids=RANGES)
def test_weights_less_their_zero_point(cpus, isa, ends):
    rng = np.random.default_rng(6)
    for shape, columns in zip(SHAPES, (1, 16, 70, 33, 130), strict=True):
        graph = product(shape, columns, ends)
        check(cpus[isa, 1], graph, rng.standard_normal(shape).astype(np.float32))


@by_isa
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_sums_in_parts_are_one_product(cpus, isa, parts):
    rng = np.random.default_rng(7)
    for ends in ((-128, 128), (-9, 247)):
        graph = product((4, 700), 21, ends, parts)
        (one,) = [one for one in find_hybrid(graph, ACTIVATIONS) if isinstance(one, HybridProduct)]
        assert len(one.op.weights) == parts
        check(cpus[isa, 2], graph, rng.standard_normal((4, 700)).astype(np.float32))


@pytest.mark.parametrize("change", ["a part is missing", "a part is read", "a wide range"])
def test_what_must_not_fuse(cpus, change):
    made = Hybrid()
    x = made.b.input("x", TensorType((3, 12), "float32"))
    levels, step = made.unsigned(x)
    w = made.rng.integers(-128, 128, (5, 12))
    if change == "a wide range":
        w[0, :2] = -200, 200
        y = made.b.add("fully_connected", levels, made.b.constant("w", w.astype(np.float32)))
        graph = made.b.finish(made.b.add("mul", y, step))
    else:
        y = made.in_parts(levels, w[:, :8] if change == "a part is missing" else w, 2)
        first = next(n for n in made.b.nodes if n.op == "fully_connected").outputs[0]
        more = [made.b.add("neg", first)] if change == "a part is read" else []
        graph = made.b.finish(made.b.add("mul", y, step), *more)
    assert not find_hybrid(graph, ACTIVATIONS)
    feeds = {graph.inputs[0]: np.random.default_rng(8).standard_normal((3, 12), np.float32)}
    got, _, _ = run(cpus[available_isas()[0], 1], graph, feeds)
    for found, expected in zip(got, interpret(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
