"""How far the oracle of random graphs lets an element be off."""

import numpy as np
import pytest
from onnx import helper

pytest.importorskip("onnxruntime", reason="random graphs are compared with ONNX Runtime")

from fuzzing.grower import Grown, assemble  # noqa: E402
from fuzzing.oracle import answer  # noqa: E402


@pytest.mark.parametrize("seed", range(3))
def test_any_of_values_that_rounding_alone_tells_apart_may_be_the_largest(seed):
    x = np.repeat(np.linspace(-2, 2, 700, dtype=np.float32), 2).reshape(700, 2)
    node = helper.make_node("Hardmax", ["x"], ["y"], name="hardmax", axis=-1)
    model = assemble([node], {"x": x}, [], ["y"], 17)
    grown = Grown(model, {"x": x}, {"x": x}, frozenset({"hardmax"}), {}, seed)
    assert (answer(grown, seed)["y"].allowed >= 1).all()
