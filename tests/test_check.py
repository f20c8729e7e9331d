"""The rules of graphs hold whatever an op's inference stumbles over."""

import pytest

import trireme.ops  # noqa: F401
from trireme.builder import GraphBuilder
from trireme.errors import GraphError
from trireme.graph import TensorType


def test_an_inference_that_trips_is_a_graph_error_with_the_node():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((4,), "float32"))
    with pytest.raises(GraphError, match=r"conv 'y' \(test:1\)"):
        b.add("conv", x, x, strides=(0,), pads=(), dilations=(), names=["y"], source="test:1")
