"""Sequences that come in and go out of a model: a tensor for each element, by name."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import trireme

FLOAT = TensorProto.FLOAT


def sequence(name):
    element = helper.make_tensor_type_proto(FLOAT, ["n"])
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def doubled_and_joined():
    """y: each element of x twice; z: all of them in one row."""
    a, b = (helper.make_tensor_value_info(name, FLOAT, ["n"]) for name in "ab")
    body = helper.make_graph([helper.make_node("Add", ["a", "a"], ["b"])], "twice", [a], [b])
    nodes = [
        helper.make_node("SequenceMap", ["x"], ["y"], body=body),
        helper.make_node("ConcatFromSequence", ["y"], ["z"], axis=0),
    ]
    z = helper.make_tensor_value_info("z", FLOAT, ["m"])
    graph = helper.make_graph(nodes, "g", [sequence("x")], [sequence("y"), z])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


@pytest.mark.parametrize("devices", [["cpu"], ["opencl", "cpu"]], ids="-".join)
@pytest.mark.parametrize("sizes", [(3,), (2, 5, 1)])
def test_each_element_is_an_input_and_an_output(sizes, devices):
    data = doubled_and_joined().SerializeToString()
    feeds = {f"x[{i}]": np.arange(n, dtype=np.float32) for i, n in enumerate(sizes)}
    shapes = {name: one.shape for name, one in feeds.items()}
    with trireme.Session(data, shapes=shapes, devices=devices) as session:
        made = session.run(feeds)
    wanted = [2 * one for one in feeds.values()]
    assert list(made) == [*(f"y[{i}]" for i in range(len(sizes))), "z"]
    for found, right in zip(made.values(), [*wanted, np.concatenate(wanted)], strict=True):
        np.testing.assert_array_equal(found, right)


def test_a_sequence_of_unknown_length_says_what_to_give():
    with pytest.raises(trireme.ConvertError, match="whose length is not known") as caught:
        trireme.convert(doubled_and_joined().SerializeToString())
    assert "'x[0]': (3,)" in str(caught.value)
    with pytest.raises(trireme.ConvertError, match=r"no input is called 'x\[2\]'"):
        trireme.convert(
            doubled_and_joined().SerializeToString(), shapes={"x[0]": (3,), "x[2]": (3,)}
        )
