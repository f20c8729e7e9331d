"""Small ONNX files for the tests of serving: their results tell which version answered."""

import os
import pathlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def affine_model(factor, rows=None, width=4):
    """The bytes of a model y = x * factor + 1; rows None leaves the first axis open."""
    shape = ["batch" if rows is None else rows, width]
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Add", ["scaled", "one"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(factor).reshape(1), "factor"),
        numpy_helper.from_array(np.float32(1).reshape(1), "one"),
    ]
    graph = helper.make_graph(
        nodes,
        "affine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        constants,
    )
    opset = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()


def put(path, data):
    """Put a file in place by a rename, as a deployment does."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.parent / f".{path.name}.new"
    beside.write_bytes(data)
    os.replace(beside, path)
    return path


def put_version(folder, name, version, data):
    """Put a version of a model in a repository: its folder appears whole."""
    staged = pathlib.Path(folder) / f".{name}-{version}"
    staged.mkdir(parents=True)
    (staged / "model.onnx").write_bytes(data)
    place = pathlib.Path(folder) / name / str(version)
    place.parent.mkdir(exist_ok=True)
    os.rename(staged, place)
    return place / "model.onnx"
