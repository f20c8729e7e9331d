"""Scalar constants against ONNX Runtime, on the default devices, however a model is loaded.

numpy arithmetic on a 0-d array gives a scalar that hashes like an integer, so a scalar taken for a
constant can be mistaken for the id of a value. The first load, with empty caches, is what counts:
a cache stores proper arrays.
"""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.kernels.lowering import Step
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType, Value
from trireme.ir.rewriter import GraphRewriter
from trireme.ir.verify import check, check_value
from trireme.model_file.convert import convert
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import GraphError, InternalError

OPS = ("Add", "Sub", "Mul", "Div")
SCALARS = (0.5, 2.0, -2.0, 1.0)
BODIES = ((), ("Tanh", "Softmax"))
SEED = 14


def model(steps):
    """The bytes of a model: x, then each step, ("Tanh",) or (op, scalar, side of the scalar)."""
    nodes, constants, before = [], [], "x"
    for position, (op, *rest) in enumerate(steps):
        inputs, after = [before], f"y{position}"
        if rest:
            scalar, side = rest
            constants.append(onnx.numpy_helper.from_array(np.float32(scalar), f"c{position}"))
            inputs.insert(0 if side == "left" else 1, f"c{position}")
        nodes.append(helper.make_node(op, inputs, [after]))
        before = after
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in ("x", before)]
    graph = helper.make_graph(nodes, "scalars", ends[:1], ends[1:], constants)
    imports = [helper.make_opsetid("", 22)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def each_way_to_load(data, folder):
    """Yield how a model is loaded, and a session on the default devices."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    yield "bytes", Session(data)
    yield "graph", Session(convert(data))
    yield (
        "path, empty cache",
        Session(path, execution_options=ExecutionOptions(model_cache=folder / "models")),
    )
    yield (
        "path, full cache",
        Session(path, execution_options=ExecutionOptions(model_cache=folder / "models")),
    )


def compare(steps, folder):
    """Return the ways to load that give other results than ONNX Runtime."""
    print("seed", SEED)
    data = model(steps)
    x = np.random.default_rng(SEED).uniform(0.5, 2, (2, 3)).astype(np.float32)
    peer = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    (wanted,) = peer.run(None, {"x": x})
    wrong = []
    for way, session in each_way_to_load(data, folder):
        with session:
            (found,) = session.run({"x": x}).values()
        if not np.allclose(found, wanted, rtol=1e-5, atol=1e-6):
            wrong.append((way, found, wanted))
    return wrong


@pytest.mark.parametrize("op", OPS)
def test_an_op_and_a_scalar(op, tmp_path):
    for body, scalar, side in itertools.product(BODIES, SCALARS, ("left", "right")):
        steps = [*((one,) for one in body), (op, scalar, side)]
        folder = tmp_path / "-".join([*body, str(scalar), side])
        folder.mkdir()
        assert not compare(steps, folder), steps


CHAINS = {
    "(x - 0.5) / 0.5": [("Sub", 0.5, "right"), ("Div", 0.5, "right")],
    "2 - (x + 1) * -2": [("Add", 1, "right"), ("Mul", -2, "left"), ("Sub", 2, "left")],
    "softmax(tanh(x)) - -1": [("Tanh",), ("Softmax",), ("Sub", -1, "right")],
    "x / 2 / 2 / 2": [("Div", 2, "right")] * 3,
}


@pytest.mark.parametrize("text", CHAINS)
def test_scalars_in_a_row(text, tmp_path):
    assert not compare(CHAINS[text], tmp_path)


SCALAR = np.float32(2)


def test_a_builder_makes_an_array_of_a_scalar():
    builder = GraphBuilder("scalar")
    value = builder.values[builder.constant("two", SCALAR)]
    assert type(value.data) is np.ndarray and value.type == TensorType((), "float32")
    assert not value.data.flags.writeable


def test_a_draft_makes_an_array_of_a_scalar():
    draft = GraphRewriter(GraphBuilder("empty").finish())
    value = draft.values[draft.constant(-np.asarray(SCALAR))]
    assert type(value.data) is np.ndarray and value.type == TensorType((), "float32")


@pytest.mark.parametrize("data", [SCALAR, 2.0, [2.0]])
def test_the_checker_refuses_a_constant_that_is_no_array(data):
    with pytest.raises(GraphError, match="its data is a .*, not an array"):
        check_value(Value(0, "two", TensorType((), "float32"), data))


def test_the_checker_looks_at_the_constants_of_a_graph():
    builder = GraphBuilder("scalar")
    two = builder.constant("two", SCALAR)
    graph = builder.finish(builder.add("relu", two))
    graph.values[two].__dict__["data"] = SCALAR
    with pytest.raises(GraphError, match="'two': its data is a float32, not an array"):
        check(graph)


def test_a_native_step_refuses_an_operand_that_is_neither_value_nor_constant():
    with pytest.raises(InternalError, match="float32"):
        Step(code=Code("copy", "", str), reads=(SCALAR,), writes=(1,))
