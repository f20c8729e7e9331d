"""The default tolerance of `trireme verify`: steps of quantisation, where an output has them."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType
from trireme.tools.verify import STEPS, TOLERANCE, compare_all, quantisation_steps


def graph_with(*ops):
    """A quantised value made float, and ops on it."""
    b = GraphBuilder("g")
    value = b.add("dequantize", b.input("x", TensorType((2, 8), "uint8", Quant((0.05,), (128,)))))
    for op, attrs in ops:
        value = b.add(op, value, **attrs)
    return b.finish(value)


@pytest.mark.parametrize(
    ("ops", "steps"),
    [
        ((), [0.05]),
        ((("transpose", {"perm": (1, 0)}),), [0.05]),
        ((("softmax", {}),), []),
        ((("exp", {}),), []),
    ],
)
def test_an_output_has_the_step_of_the_value_that_it_moves(ops, steps):
    assert list(quantisation_steps(graph_with(*ops)).values()) == steps


@pytest.mark.parametrize(("apart", "agrees"), [(STEPS, True), (STEPS + 1, False)])
def test_outputs_may_be_some_steps_apart(apart, agrees):
    theirs = np.linspace(-3, 3, 16, dtype=np.float32)
    ours = theirs.copy()
    ours[5] += apart * 0.05 * 0.999
    (row,) = compare_all({"y": ours}, {"y": theirs}, None, 1, {"y": 0.05})
    assert row.agrees == agrees and row.limit == pytest.approx(STEPS * 0.05 / 3)
    (row,) = compare_all({"y": ours}, {"y": theirs}, 1e-3, 1, {"y": 0.05})
    assert not row.agrees and row.limit == 1e-3


def test_floats_without_a_step_have_the_usual_tolerance():
    theirs = np.ones(3, np.float32)
    (row,) = compare_all({"y": theirs}, {"y": theirs}, None, 1)
    assert row.agrees and row.limit == TOLERANCE
