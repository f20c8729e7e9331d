"""Functions of the user in place of ONNX ops; ONNX's own evaluator runs them too and agrees."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import trireme
from trireme.model_file import dumps, loads
from trireme.support.errors import ConvertError

X = np.random.default_rng(14).standard_normal((3, 4)).astype(np.float32)


def scale(x, y, alpha=1.0, axes=(), mode="up"):
    made = x * np.float32(alpha) + y.sum(axis=tuple(axes), keepdims=True)
    return made if mode == "up" else -made


class Foo(OpRun):
    op_domain = "my.domain"

    def _run(self, x, y, alpha=None, axes=None, mode=None):
        return (scale(x, y, alpha, axes, mode),)


FOO = trireme.python_op(scale, inputs=["float32", "float32"])


def model(nodes, outputs=("z",)):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, made)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my.domain", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def foo(inputs, output, **attrs):
    return helper.make_node("Foo", inputs, [output], domain="my.domain", **attrs)


NODES = [
    helper.make_node("Relu", ["x"], ["h"]),
    foo(["h", "x"], "f", alpha=0.5, axes=[0, 1], mode="down"),
    helper.make_node("Tanh", ["f"], ["z"]),
]


def test_a_function_stands_for_an_op_of_another_domain():
    proto = model(NODES)
    (want,) = ReferenceEvaluator(proto, new_ops=[Foo]).run(None, {"x": X})
    data = proto.SerializeToString()
    graph = trireme.convert(data, python_ops={"my.domain::Foo": FOO})
    options = trireme.ExecutionOptions(python_ops={"my.domain::Foo": FOO})
    for given, more in ((graph, {}), (data, {"execution_options": options})):
        with trireme.Session(given, **more) as session:
            np.testing.assert_allclose(session.run({"x": X})["z"], want, rtol=1e-5, atol=1e-6)
    again = loads(dumps(graph), python_ops={"scale": FOO})
    assert str(again) == str(graph)


def test_a_model_of_functions_is_not_cached(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(model(NODES).SerializeToString())
    made = []
    for factor in (1, 2):
        own = trireme.python_op(lambda x, y, alpha, axes, mode, f=factor: x * np.float32(f))
        options = trireme.ExecutionOptions(
            python_ops={"my.domain::Foo": own}, model_cache=tmp_path / "cache"
        )
        with trireme.Session(path, execution_options=options) as session:
            made.append(session.run({"x": X})["z"])
    np.testing.assert_allclose(made[1], np.tanh(2 * np.maximum(X, 0)), rtol=1e-5)
    assert not (tmp_path / "cache").exists()


def test_an_op_of_onnx_may_be_replaced():
    calls = []

    @trireme.python_op
    def own_relu(x):
        calls.append(x.shape)
        return np.maximum(x, 0)

    nodes = [helper.make_node("Relu", ["x"], ["z"])]
    graph = trireme.convert(
        model(nodes).SerializeToString(), python_ops={"ai.onnx::Relu": own_relu}
    )
    with trireme.Session(graph) as session:
        np.testing.assert_array_equal(session.run({"x": X})["z"], np.maximum(X, 0))
    assert calls == [(3, 4)]


def test_a_branch_may_call_a_function():
    def branch(name, node):
        made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([node], name, [], [made])

    then = branch("t", foo(["x", "x"], "t", alpha=2.0, axes=[0], mode="up"))
    other = branch("e", helper.make_node("Neg", ["x"], ["e"]))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "s"], ["c"]),
        helper.make_node("Not", ["c"], ["n"]),
        helper.make_node("If", ["n"], ["z"], then_branch=then, else_branch=other),
    ]
    proto = model(nodes)
    (want,) = ReferenceEvaluator(proto, new_ops=[Foo]).run(None, {"x": X})
    graph = trireme.convert(proto.SerializeToString(), python_ops={"my.domain::Foo": FOO})
    again = loads(dumps(graph), python_ops={"scale": FOO})
    for each in (graph, again):
        with trireme.Session(each) as session:
            np.testing.assert_allclose(session.run({"x": X})["z"], want, rtol=1e-6)


def test_the_error_of_an_unknown_op_names_the_way_out():
    with pytest.raises(ConvertError) as caught:
        trireme.convert(model(NODES).SerializeToString())
    assert "my.domain.Foo: 1 x" in str(caught.value)
    assert 'python_ops={"my.domain::Foo": function}' in str(caught.value)


def test_attributes_that_no_argument_holds_are_refused():
    tensor = onnx.numpy_helper.from_array(X)
    nodes = [foo(["x", "x"], "z", alpha=tensor)]
    with pytest.raises(ConvertError, match="an argument by name has no form in a file"):
        trireme.convert(model(nodes).SerializeToString(), python_ops={"my.domain::Foo": FOO})
    nodes = [foo(["x", "x"], "z", strange=1)]
    with pytest.raises(ConvertError, match="unexpected keyword argument 'strange'"):
        trireme.convert(model(nodes).SerializeToString(), python_ops={"my.domain::Foo": FOO})


def test_what_is_no_python_operator_is_refused():
    with pytest.raises(ConvertError, match="expected a mapping of texts to PythonOps"):
        trireme.convert(model(NODES).SerializeToString(), python_ops={"my.domain::Foo": scale})
