"""Decided values that are windows of larger contents: which they are, and what they hold."""

import itertools

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.decided import DecidedValues
from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise

NAMES = ("s", "p")


class Positions:
    """A graph of x [s,4] and y [p,4], whose values that shapes decide have names."""

    def __init__(self):
        self.b = GraphBuilder("positions")
        self.x = self.b.input("x", TensorType(("s", 4), "float32"))
        self.y = self.b.input("y", TensorType(("p", 4), "float32"))
        self.count = itertools.count()
        self.zero, self.one = self.const(0), self.const(1)
        self.named = {}

    def const(self, data, dtype=np.int64):
        return self.b.constant(f"c{next(self.count)}", np.array(data, dtype))

    def length(self, value):
        empty = self.const([])
        return self.b.add("reshape", self.b.add("shape", value, start=0, end=1), empty)

    def finish(self):
        """The graph, whose passes find the sizes, and the values by name."""
        ends = [self.b.add("cast", v, to="float32") for v in self.named.values()]
        read = (self.b.add("relu", value) for value in (self.x, self.y))
        graph = optimise(self.b.finish(*ends, *read))
        return graph, dict(zip(self.named, graph.outputs, strict=False))


def positions():
    g = Positions()
    add, const = g.b.add, g.const
    rows, past = g.length(g.x), g.length(g.y)
    both = add("add", rows, past)
    keys = add("range", g.zero, both, g.one)
    queries = add("range", past, both, g.one)
    wide = add("unsqueeze", keys, const([0]))
    table = add("expand", wide, add("concat", const([3]), add("reshape", both, const([1])), axis=0))
    pairs = add("concat", *(add("unsqueeze", table, const([-1])),) * 2, axis=-1)
    moved = add("add", add("range", g.zero, rows, g.one), past)
    g.named = {
        "keys": keys,
        "steps": add("range", const(5), add("add", both, both), g.one),
        "wide": wide,
        "table": table,
        "pairs": pairs,
        "far": add("less", add("mul", wide, const(3)), const([[40]])),
        "queries": queries,
        "joined": add("concat", keys, keys, axis=0),
        "flat": add("reshape", pairs, const([-1])),
        "mask": add("less_or_equal", wide, add("unsqueeze", queries, const([1]))),
        "moved": moved,
        "causal": add("less_or_equal", wide, add("unsqueeze", moved, const([1]))),
        "double": add("add", add("range", g.zero, rows, const(2)), past),
        "two": add("mul", queries, add("range", g.zero, rows, g.one)),
        "back": add("sub", both, keys),
    }
    return g


OFFSETS = {
    **dict.fromkeys(["keys", "steps"], (0,)),
    **dict.fromkeys(["wide", "table", "far"], (0, 0)),
    "pairs": (0, 0, 0),
    "queries": ("p",),
    "moved": ("p",),
    **dict.fromkeys(["mask", "causal"], ("p", 0)),
}


def test_which_values_are_windows_and_where_they_begin():
    graph, named = positions().finish()
    decided = DecidedValues(graph, NAMES)
    assert decided.ids.issuperset(named.values())
    found = {name: decided.windows.get(value) for name, value in named.items()}
    assert {name: offsets for name, offsets in found.items() if offsets is not None} == OFFSETS


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_their_sizes_in_any_order(seed):
    print("seed", seed)
    graph, named = positions().finish()
    decided = DecidedValues(graph, NAMES)
    rng = np.random.default_rng(seed)
    walk = [(1, past) for past in range(1, 40)]
    drawn = [tuple(int(n) for n in rng.integers(1, 90, 2)) for _ in range(25)]
    for sizes in (*walk, *drawn, (3, 200_000), (2, 5), *walk):
        fresh = DecidedValues(graph, NAMES)
        for name, value in named.items():
            found, wanted = decided.array(value, sizes), fresh.array(value, sizes)
            assert found.dtype == wanted.dtype, name
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name} at {sizes}")


@pytest.mark.parametrize(("name", "most"), [("pairs", 100), ("mask", 200)])
def test_a_past_that_grows_computes_few_positions(name, most):
    graph, named = positions().finish()
    decided, computed = DecidedValues(graph, NAMES), []
    for past in range(1, 600):
        decided.array(named[name], (1, past))
        computed.append(decided.computed)
    assert computed[-1] < most
    if name == "pairs":
        assert computed[-1] == computed[580]


ROWS = 90
"""Of the tables that are looked up; sizes beyond are refused."""


def looked_up():
    """Parts of constants, at positions and from a place on."""
    g = Positions()
    add, const = g.b.add, g.const
    rows, past = g.length(g.x), g.length(g.y)
    both = add("add", rows, past)
    keys, queries = add("range", g.zero, both, g.one), add("range", past, both, g.one)
    wide = add("unsqueeze", keys, const([0]))
    end = add("reshape", both, const([1]))
    g.named = {
        "picked": add("gather", const(np.arange(ROWS)[::-1] * 7), keys, axis=0),
        "of rows": add("gather", const(np.arange(2 * ROWS).reshape(ROWS, 2)), queries, axis=0),
        "of columns": add("gather", const(np.arange(2 * ROWS).reshape(2, ROWS)), keys, axis=1),
        "each": add("gather_elements", const(np.arange(ROWS)[None] * 5), wide, axis=1),
        "cut": add("slice", const(np.arange(ROWS) * 3), const([2]), end),
        "moved cut": add("slice", const(np.arange(ROWS) * 3), end, const([ROWS])),
        "stepped": add("slice", const(np.arange(ROWS)), const([0]), end, const([0]), const([2])),
    }
    return g


def test_parts_of_constants_are_windows():
    graph, named = looked_up().finish()
    decided = DecidedValues(graph, NAMES)
    found = {name: decided.windows.get(value) for name, value in named.items()}
    assert found == {
        "picked": (0,),
        "of rows": ("p", 0),
        "of columns": (0, 0),
        "each": (0, 0),
        "cut": (2,),
        "moved cut": None,
        "stepped": None,
    }


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_constants_have_their_contents_up_to_the_end_of_the_table(seed):
    print("seed", seed)
    graph, named = looked_up().finish()
    decided = DecidedValues(graph, NAMES)
    rng = np.random.default_rng(seed)
    walk = [(1, past) for past in range(1, ROWS)]
    drawn = [tuple(int(n) for n in rng.integers(1, ROWS // 2, 2)) for _ in range(25)]
    for sizes in (*walk, *drawn, *walk[::7]):
        fresh = DecidedValues(graph, NAMES)
        for name, value in named.items():
            found, wanted = decided.array(value, sizes), fresh.array(value, sizes)
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name} at {sizes}")
