"""The rules of graphs hold whatever an op's inference stumbles over."""

import contextlib
import time

import pytest
from op_samples import op_samples, sample_graph

import trireme.ops  # noqa: F401
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.verify import infer_types
from trireme.support.errors import GraphError


def test_an_inference_that_trips_is_a_graph_error_with_the_node():
    b = GraphBuilder("g")
    x = b.input("x", TensorType((4,), "float32"))
    with pytest.raises(GraphError, match=r"conv 'y' \(test:1\)"):
        b.add("conv", x, x, strides=(0,), pads=(), dilations=(), names=["y"], source="test:1")


NUMBERS = ("int", "ints")


def samples_with_numbers():
    """The first sample of each op that has attributes of whole numbers."""
    seen = set()
    for op, sample, _ in op_samples(lambda op: any(a.kind in NUMBERS for a in op.attrs.values())):
        if op.name not in seen:
            seen.add(op.name)
            yield pytest.param(op, sample, id=op.name)


@pytest.mark.parametrize(("op", "sample"), [*samples_with_numbers()])
def test_absurd_attributes_neither_hang_nor_fill_the_memory(op, sample):
    graph, _ = sample_graph(op, sample)
    (node,) = graph.nodes
    inputs = [None if i is None else graph.values[i] for i in node.inputs]
    for name, attr in op.attrs.items():
        for huge in (2**62, 10**9, -(2**62), 0):
            if attr.kind not in NUMBERS:
                continue
            given = node.attrs[name] or ()
            absurd = huge if attr.kind == "int" else (huge,) * len(given)
            start = time.perf_counter()
            with contextlib.suppress(GraphError):
                infer_types(op, inputs, {**node.attrs, name: absurd}, len(node.outputs), "here")
            assert time.perf_counter() - start < 20, f"{op.name} {name}={absurd}"


def test_a_node_has_all_the_outputs_that_its_op_must_have():
    """A kernel writes all of them, and would write through an address that is not there."""
    b = GraphBuilder("few")
    x = b.input("x", TensorType((8,), "float32"))
    with pytest.raises(GraphError, match=r"2 outputs, the op always makes \(y scale zero_point\)"):
        b.add_node("dynamic_quantize_linear", [x], {}, outputs=2)
