"""A small ONNX model for a peer to run: nodes are put on it, and all its inputs are fed."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from trireme.support.dtypes import dtype_name

OPSET = 22
OPSETS = {"ai.onnx.ml": 4}
ELEMENT = {
    name: getattr(TensorProto, name.upper())
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
    )
}
ELEMENT |= {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}
ELEMENT |= {"string": TensorProto.STRING, "complex64": TensorProto.COMPLEX64}


class Model:
    """The nodes, feeds and constants of a model, whose inputs are the arrays it is given.

    op: name of the op that the model is for
    """

    opset = OPSET

    def __init__(self, op, arrays):
        self.op, self.nodes, self.feeds, self.inits, self.inputs = op, [], {}, [], []
        for position, array in enumerate(arrays):
            self.inputs.append("" if array is None else self.feed(f"x{position}", array))

    def feed(self, name, array):
        self.feeds[name] = np.asarray(array)
        return name

    def constant(self, array):
        name = f"c{len(self.inits)}"
        self.inits.append(onnx.numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, op_type, inputs, count=1, **attrs):
        start = len(self.nodes)
        outputs = [f"n{start}_{i}" for i in range(count)]
        attrs = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(helper.make_node(op_type, inputs, outputs, **attrs))
        return outputs[0] if count == 1 else outputs

    def turned(self, name, order):
        return self.add("Transpose", [name], perm=order) if name else ""

    def finish(self, outputs, types):
        """The checked ModelProto with those outputs of those types."""
        given = [
            helper.make_tensor_value_info(k, ELEMENT[dtype_name(v.dtype)], v.shape)
            for k, v in self.feeds.items()
        ]
        wanted = [
            helper.make_tensor_value_info(name, ELEMENT[type_.dtype], type_.shape)
            for name, type_ in zip(outputs, types, strict=True)
        ]
        graph = helper.make_graph(self.nodes, "peer", given, wanted, self.inits)
        domains = {node.domain for node in self.nodes if node.domain}
        imports = [helper.make_opsetid(name, OPSETS.get(name, 1)) for name in sorted(domains)]
        imports.append(helper.make_opsetid("", self.opset))
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        onnx.checker.check_model(model)
        return model
