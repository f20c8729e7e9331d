"""constant_folding: the limits of memory."""

import numpy as np

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.passes.constants import constant_folding
from trireme.passes.pipeline import optimise


def halves():
    """A product whose weights are stored as float16, and a constant that a tile makes four."""
    b = GraphBuilder("halves")
    x = b.input("x", TensorType((1, 64), "float32"))
    w = b.add("cast", b.constant("w", np.ones((64, 64), np.float16)), to="float32")
    wide = b.add("tile", b.constant("t", np.ones((1, 64), np.float32)), b.constant("n", [4, 1]))
    return b.finish(b.add("fully_connected", x, w, names=["y"]), b.add("mul", x, wide))


def test_a_cast_may_double_its_constant_beyond_the_limit():
    made = optimise(halves(), fold_limit_bytes=0)
    assert [n.op for n in made.nodes if n.op in ("cast", "tile")] == ["tile"]


def test_a_cast_stays_where_the_model_has_no_room():
    made = constant_folding(halves(), limit_bytes=0, total_bytes=1).graph
    assert sorted(n.op for n in made.nodes if n.op in ("cast", "tile")) == ["cast", "tile"]
