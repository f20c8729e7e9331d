"""narrow_bodies: bodies learn the shapes of their operands, through nested control flow."""

from dataclasses import replace

import numpy as np
from programs import GROWING, NESTED, peer

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import Graph, TensorType
from trireme.ir.interpreter import run_reference
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise, optimise_report

NARROW = ["narrow_bodies"]


def with_open_shapes(graph):
    """The graph with every dimension of its inputs and of its bodies' inputs unknown."""
    values = dict(graph.values)
    for value in graph.input_values():
        shape = ("?",) * len(value.shape)
        values[value.id] = replace(value, type=TensorType(shape, value.dtype))
    nodes = [opened(node) for node in graph.nodes]
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), values, {})


def opened(node):
    attrs = {k: with_open_shapes(v) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, attrs=attrs)


def dims(graph):
    """Every dimension of a graph and of its bodies."""
    found = [dim for value in graph.values.values() for dim in value.shape]
    for node in graph.nodes:
        for body in node.attrs.values():
            found += dims(body) if isinstance(body, Graph) else []
    return found


def test_shapes_reach_bodies_of_bodies():
    graph = convert(NESTED.model())
    types = [value.type for value in graph.input_values()]
    loose = with_open_shapes(graph)
    assert "?" in dims(loose)
    again = optimise(retyped(loose, types), passes=NARROW)
    assert "?" not in dims(again)
    for feeds in NESTED.feeds:
        want = peer(NESTED.model(), feeds)["y"]
        np.testing.assert_allclose(run_reference(again, feeds)["y"], want, rtol=1e-5)


def test_a_value_that_grows_stays_open():
    graph = convert(GROWING.model())
    (n, _) = graph.input_values()
    bound = retyped(graph, [n.type, TensorType((2,), "float32")])
    made = optimise(bound, passes=NARROW)
    (loop,) = made.nodes
    body = loop.attrs["body"]
    assert [body.type(value).shape for value in body.inputs[2:]] == [("?",), (2,)]
    assert optimise_report(made, passes=NARROW).graph is made
