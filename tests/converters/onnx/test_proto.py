"""The messages of onnx without its package: the same classes, the same element types."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

from trireme.converters.onnx.proto import MESSAGES, ModelProto
from trireme.converters.onnx.tensors import dtype_of
from trireme.support.dtypes import dtype_name
from trireme.support.errors import ModelFileError, TriremeError

_UNKNOWN = ("UNDEFINED", "STRING")


@pytest.mark.parametrize("name", sorted(set(onnx.TensorProto.DataType.keys()) - set(_UNKNOWN)))
def test_element_types_are_those_of_the_onnx_package(name):
    code = onnx.TensorProto.DataType.Value(name)
    try:
        wanted = dtype_name(helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TriremeError):
        with pytest.raises(ModelFileError, match="unknown element type"):
            dtype_of(code, "w")
    else:
        assert dtype_of(code, "w") == wanted


@pytest.mark.parametrize("code", [0, 99, -1, 1 << 40])
def test_unknown_element_types_are_refused(code):
    with pytest.raises(ModelFileError, match="unknown element type"):
        dtype_of(code, "w")


def test_messages_are_the_classes_of_the_onnx_package():
    assert ModelProto is onnx.ModelProto
    assert MESSAGES.TensorProto is onnx.TensorProto


@pytest.mark.parametrize("first", ["trireme.converters.onnx", "onnx"])
def test_a_plain_model_needs_no_more_of_the_package(first, tmp_path):
    """In a process of its own: the other tests import all of onnx."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "plain",
        [value("x", onnx.TensorProto.FLOAT, [2])],
        [value("y", onnx.TensorProto.FLOAT, [2])],
        [onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    path = tmp_path / "plain.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    code = (
        f"import sys, {first}, trireme\n"
        f"trireme.convert({str(path)!r})\n"
        "print('onnx' in sys.modules)\n"
        "import onnx\n"
        "from trireme.converters.onnx.proto import ModelProto\n"
        f"print(ModelProto is onnx.ModelProto, len(onnx.load({str(path)!r}).graph.node))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [str(first == "onnx"), "True", "1"]
