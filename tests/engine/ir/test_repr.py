"""`repr` of a graph, a node or a value is one short line, whatever the model's size and names."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, TensorType, Value


def made(name="small", ends=1, width=4):
    b = GraphBuilder(name)
    made = []
    for i in range(ends):
        x = b.input(f"x{i}", TensorType((2, width), "float32"))
        w = b.constant(f"w{i}", np.ones((width, 3), np.float32))
        made.append(b.add("matmul", x, w, source=f"test:{name}", names=[f"y{i}"]))
    return b.finish(*made)


def test_one_line_says_what_it_is():
    graph = made()
    x, w, _ = graph.values.values()
    assert repr(graph) == "<Graph 'small': 1 node, 'x0' float32[2,4] -> 'y0' float32[2,3]>"
    assert repr(x) == "<Value %0: value 'x0' float32[2,4]>"
    assert repr(w) == "<Value %1: constant 'w0' float32[4,3]>"
    assert repr(graph.nodes[0]) == "<Node 'matmul #0 (test:small)': %0, %1 -> %2>"


def test_of_many_inputs_and_outputs_the_first_are_shown():
    text = repr(made(ends=7))
    assert "'x2' float32[2,4] and 4 more -> 'y0'" in text and "x3" not in text


@pytest.mark.parametrize("name", ["n" * 5000, "two\nlines"])
def test_no_name_or_weight_floods_a_console(name):
    graph = made(name, ends=40, width=5000)
    shown = [graph, *graph.values.values(), *graph.nodes]
    assert {type(one) for one in shown} == {Graph, Node, Value}
    for one in shown:
        assert len(repr(one)) < 400 and "\n" not in repr(one)
    assert len(repr(shown)) < 400 * len(shown)
