"""explain and place of a model that chooses a branch, of which each takes its own sizes."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from trireme.tools.cli import main


def branch(name, columns):
    """A product with a weight of some rows, which takes inputs of as many columns."""
    weight = numpy_helper.from_array(np.ones((columns, 4), np.float32), f"{name}_w")
    product = helper.make_node("MatMul", ["x", f"{name}_w"], [f"{name}_y"])
    made = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
    return helper.make_graph([product], name, [], [made], [weight])


@pytest.fixture
def model(tmp_path):
    """A sum above 0 takes 8 columns, another takes 6."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branch("a", 8), else_branch=branch("b", 6)
        ),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "k"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    zero = numpy_helper.from_array(np.zeros((), np.float32), "zero")
    graph = helper.make_graph(nodes, "chooses", [x], [y], [zero])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    path = tmp_path / "chooses.onnx"
    onnx.save(made, path)
    return str(path)


def shown(capsys, *arguments):
    code = main(list(arguments))
    found = capsys.readouterr()
    return code, found.out + found.err


def test_explain_takes_the_inputs_that_choose_the_branch(model, tmp_path, capsys):
    x = np.ones((2, 8), np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    assert wanted.shape == (2, 4)
    np.save(tmp_path / "x.npy", x)
    code, text = shown(capsys, "explain", model, "--at", "k=8,n=2")
    assert code
    assert "RunError: zeros take a branch that fails: " in text
    assert "fix: --input x=x.npy gives elements that take another branch" in text
    code, text = shown(capsys, "explain", model, "--input", f"x={tmp_path}/x.npy")
    assert not code
    assert text.startswith("x [2, 8]:")
    code, text = shown(capsys, "explain", model, "--at", "k=6,n=2")
    assert not code
    assert "tried on zeros, which choose the branches: --input NAME=x.npy gives others" in text


@pytest.mark.parametrize(("k", "branch"), [(8, "else_branch"), (6, "then_branch")])
def test_place_leaves_out_the_branch_that_refuses_the_sizes(model, capsys, k, branch):
    code, text = shown(capsys, "place", model, "--at", f"k={k},n=2", "--devices", "cpu", "--json")
    assert not code
    data = json.loads(text)
    (said,) = (one for one in data["remarks"] if "left out" in one)
    assert said.startswith(f"{branch} of if #2 (onnx:If_2) refuses these sizes and is left out: ")
    assert [(one["op"], one["device"]) for one in data["nodes"]] == [("fully_connected", "cpu")]


def test_place_refuses_sizes_that_both_branches_refuse(model, capsys):
    code, text = shown(capsys, "place", model, "--at", "k=5,n=2")
    assert code
    assert "fix: give other sizes than n=2 (of x) or k=5 (of x)" in text


def test_inputs_that_explain_does_not_run_are_refused(model, capsys):
    code, text = shown(capsys, "explain", model, "--soc", "rk3588", "--input", "x=zeros")
    assert code
    assert "nothing runs on a described machine: leave out --input and --image" in text
