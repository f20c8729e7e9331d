"""How far the oracle of random graphs lets an element be off."""

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("onnxruntime", reason="random graphs are compared with ONNX Runtime")

from lab.fuzz.grower import Grown, assemble  # noqa: E402
from lab.fuzz.oracle import answer  # noqa: E402


@pytest.mark.parametrize("seed", range(3))
def test_any_of_values_that_rounding_alone_tells_apart_may_be_the_largest(seed):
    x = np.repeat(np.linspace(-2, 2, 700, dtype=np.float32), 2).reshape(700, 2)
    node = helper.make_node("Hardmax", ["x"], ["y"], name="hardmax", axis=-1)
    model = assemble([node], {"x": x}, [], ["y"], 17)
    grown = Grown(model, {"x": x}, {"x": x}, frozenset({"hardmax"}), {}, seed)
    assert (answer(grown, seed)["y"].allowed >= 1).all()


def test_a_mean_that_cancels_may_be_zero():
    """In float32 the mean is some 1e-9, in exact arithmetic 0: its quotient is 1 or NaN."""
    x = np.array([[0.1, 0.2, 0.3, -0.1, -0.2, -0.3]], np.float32)[:, [0, 1, 2, 5, 3, 4]]
    x[0, 0] += np.float32(1e-8)
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], name="mean", axes=[1]),
        helper.make_node("Div", ["m", "m"], ["y"], name="div"),
    ]
    model = assemble(nodes, {"x": x}, [], ["y"], 17)
    mean = x.mean(1, keepdims=True) + np.float32(1e-9)
    arrays = {"x": x, "m": mean, "y": mean / mean}
    grown = Grown(model, {"x": x}, arrays, frozenset({"mean", "div"}), {}, 0)
    assert np.isinf(answer(grown, 0)["y"].allowed).all()
