"""The best placement over a range of sizes: ranges are whole, and flips are where `place` flips."""

import pytest
from toy_device import ToyDevice

from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PLAIN
from trireme.placement.place import place
from trireme.placement.ranges import place_over
from trireme.support.errors import ShapeError


def graph():
    b = GraphBuilder("g")
    x = b.input("x", TensorType(("n", 64), "float32"))
    for _ in range(3):
        x = b.add("tanh", x)
    return b.finish(x)


def costs():
    """A slow device at hand, and a fast one that takes long to begin."""
    fast = ToyDevice("gpu", flops=1e11, bandwidth=1e11, launch_s=1e-4, link_bandwidth=1e10)
    return CostModel({"cpu": ToyDevice("cpu"), "gpu": fast})


def device_at(size):
    placement = place(bind_shapes(graph(), {"x": (size, 64)}), costs(), PLAIN)
    return set(placement.device_of[node.id] for node in placement.source.nodes)


def test_ranges_cover_all_sizes_and_flip_where_place_does():
    found = place_over(graph(), costs(), PLAIN, "n", 1, 3000)
    assert [sorted(one.nodes) for one in found] == [["cpu"], ["gpu"]]
    assert (found[0].low, found[-1].high) == (1, 3000)
    for one, other in zip(found, found[1:], strict=False):
        assert other.low == one.high + 1
    flip = found[1].low
    assert device_at(flip - 1) == {"cpu"}
    assert device_at(flip) == {"gpu"}
    assert found[0].at_low.makespan_s < found[0].at_high.makespan_s < found[1].at_high.makespan_s


def test_one_size_is_one_range():
    (found,) = place_over(graph(), costs(), PLAIN, "n", 5, 5)
    assert (found.low, found.high, dict(found.nodes)) == (5, 5, {"cpu": 3})


@pytest.mark.parametrize(
    ("symbol", "low", "high", "sentence"),
    [("m", 1, 2, "no input has the symbol 'm'"), ("n", 4, 2, "no range from 4 to 2")],
)
def test_what_is_no_range(symbol, low, high, sentence):
    with pytest.raises(ShapeError, match=sentence):
        place_over(graph(), costs(), PLAIN, symbol, low, high)
