"""Plans by compiled functions: the plan of a shape without planning, or the planner itself."""

from dataclasses import dataclass

import pytest

import trireme.ops  # noqa: F401
from trireme.devices.cpu.kernels.copies import Copy, dense
from trireme.devices.cpu.kernels.polymorphic.plans import quick_plan
from trireme.devices.cpu.kernels.polymorphic.sample import sample_of
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def graph():
    builder = GraphBuilder("moves")
    x = builder.input("x", TensorType(("b", "s", 6), "float32"))
    return builder.finish(builder.add("transpose", x, perm=(1, 0, 2)))


@dataclass(frozen=True)
class Both:
    """A plan of parts."""

    copy: Copy
    scales: tuple[float, float]
    name: str
    more: int | None = None


def plan_of(graph):
    (x,), (y,) = graph.input_values(), graph.output_values()
    copy = Copy(y.type.dims, dense(x.type.dims), dense(y.type.dims), 4, 3 * x.type.dims[0] * 6)
    return Both(copy, (0.5, float("-inf")), "it's")


def refuse(graph):
    pytest.fail("it was planned anew")


def test_products_of_sizes_are_computed_without_planning():
    one = graph()
    sample = sample_of(one).graph
    plan = quick_plan(sample, one.values, plan_of(sample), refuse)
    for b, s in ((1, 1), (3, 7), (2, 480)):
        shape = bind_shapes(one, {"x": (b, s, 6)})
        assert plan(shape) == plan_of(shape)


@pytest.mark.parametrize(
    "number",
    [lambda b, s: b + s, lambda b, s: b * s + 1, lambda b, s: 12345 * b + 1],
    ids=["sum", "product and 1", "multiple and 1"],
)
def test_other_numbers_are_planned(number):
    def slow(graph):
        (x,) = graph.input_values()
        b, s, _ = x.type.dims
        return (number(b, s), 4)

    one = graph()
    sample = sample_of(one).graph
    assert quick_plan(sample, one.values, slow(sample), slow) is slow


def test_a_size_of_no_given_value_is_planned():
    one = graph()
    sample = sample_of(one).graph
    assert quick_plan(sample, [], plan_of(sample), plan_of) is plan_of
