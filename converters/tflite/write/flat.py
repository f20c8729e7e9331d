"""Lay tensors and operators out as a .tflite file: records come in, bytes go out.

The tables are made by the Start, Add and End functions of PyPI's `tflite`, which its schema
generated. Data of constants starts at multiples of 16 bytes, as TensorFlow Lite's schema asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
import tflite

from trireme.converters.tflite.file import IDENTIFIER
from trireme.converters.tflite.write.records import WrittenGraph, WrittenOperator, WrittenTensor
from trireme.converters.tflite.write.versions import runtime_version, version_of
from trireme.ir.graph import Quant, digest
from trireme.support.dtypes import Array
from trireme.support.errors import ConvertError

_SCHEMA_VERSION = 3
_ALIGNMENT = 16
_OLD_CODES = 127
"""Codes from here on do not fit the old field, which then holds this number."""
_MOST_BYTES = (1 << 31) - 1
_RUNTIME_BYTES = 16
"""The length of the runtime version in the metadata."""
SIGNATURE = "serving_default"
"""The key of the signature, which is the one that TensorFlow's converter gives."""


def file_bytes(graph: WrittenGraph) -> bytes:
    """Return the file of a graph, with one signature of its inputs and outputs.

    Errors: ConvertError, if the file would reach 2 GiB
    """
    nbytes = sum(t.data.nbytes for t in graph.tensors if t.data is not None)
    if nbytes > _MOST_BYTES - (1 << 20):
        raise ConvertError(f"{graph.name}: the TensorFlow Lite file would hold 2 GiB or more")
    return _FileWriter(graph, nbytes).run()


class _FileWriter:
    def __init__(self, graph: WrittenGraph, nbytes: int) -> None:
        self.graph = graph
        self.builder = flatbuffers.Builder(nbytes + (1 << 16))
        self.buffers: list[Array] = [np.zeros(0, np.uint8)]
        self.known: dict[Any, int] = {}

    def run(self) -> bytes:
        """Write everything, the root last."""
        b, graph = self.builder, self.graph
        keys = [(op.code, version_of(op, graph.tensors)) for op in graph.operators]
        codes = list(dict.fromkeys(keys))
        tensors = [self._tensor(tensor) for tensor in graph.tensors]
        operators = [
            self._operator(op, codes.index(key))
            for op, key in zip(graph.operators, keys, strict=True)
        ]
        subgraph = self.table(
            "SubGraph",
            Tensors=self.offsets(tensors),
            Inputs=self.ints(graph.inputs),
            Outputs=self.ints(graph.outputs),
            Operators=self.offsets(operators),
            Name=b.CreateString(graph.name),
        )
        signature = self._signature()
        version = runtime_version(codes).encode().ljust(_RUNTIME_BYTES, b"\0")
        self.buffers.append(np.frombuffer(version, np.uint8))
        metadata = self.table(
            "Metadata", Name=b.CreateString("min_runtime_version"), Buffer=len(self.buffers) - 1
        )
        root = self.table(
            "Model",
            Version=_SCHEMA_VERSION,
            OperatorCodes=self.offsets([self._code(*code) for code in codes]),
            Subgraphs=self.offsets([subgraph]),
            Description=b.CreateString("trireme"),
            Buffers=self.offsets([self._buffer(data) for data in self.buffers]),
            Metadata=self.offsets([metadata]),
            SignatureDefs=self.offsets([signature]),
        )
        b.Finish(root, file_identifier=IDENTIFIER)
        return bytes(b.Output())

    def table(self, name: str, **fields: Any) -> int:
        """Write a table of the schema and return its offset."""
        getattr(tflite, f"{name}Start")(self.builder)
        for key, value in fields.items():
            getattr(tflite, f"{name}Add{key}")(self.builder, value)
        return int(getattr(tflite, f"{name}End")(self.builder))

    def ints(self, values: Sequence[int], dtype: type = np.int32) -> int:
        """Write a list of integers and return its offset."""
        return int(self.builder.CreateNumpyVector(np.array(values, dtype)))

    def offsets(self, offsets: Sequence[int]) -> int:
        """Write a list of tables and return its offset."""
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())

    def _tensor(self, tensor: WrittenTensor) -> int:
        fields: dict[str, Any] = {
            "Shape": self.ints(tensor.shape),
            "Type": getattr(tflite.TensorType, tensor.dtype.upper()),
            "Buffer": 0 if tensor.data is None else self._place(tensor.data),
            "Name": self.builder.CreateString(tensor.name),
        }
        if tensor.quant is not None:
            fields["Quantization"] = self._quant(tensor.quant)
        if -1 in tensor.signature:
            fields["ShapeSignature"] = self.ints(tensor.signature)
        return self.table("Tensor", **fields)

    def _quant(self, quant: Quant) -> int:
        scales = self.builder.CreateNumpyVector(np.array(quant.scales, np.float32))
        points = np.broadcast_to(np.array(quant.zero_points, np.int64), len(quant.scales))
        return self.table(
            "QuantizationParameters",
            Scale=scales,
            ZeroPoint=self.ints(points.tolist(), np.int64),
            QuantizedDimension=quant.axis or 0,
        )

    def _place(self, data: Array) -> int:
        """Return the number of the buffer of a constant; equal constants share one."""
        key = (data.dtype.str, data.shape, digest(data))
        if key not in self.known:
            self.known[key] = len(self.buffers)
            whole = np.ascontiguousarray(data, data.dtype.newbyteorder("<"))
            self.buffers.append(whole.reshape(-1).view(np.uint8))
        return self.known[key]

    def _buffer(self, data: Array) -> int:
        """Write the bytes of a buffer; an empty one has none."""
        b = self.builder
        if not data.size:
            return self.table("Buffer")
        b.StartVector(1, data.size, _ALIGNMENT)
        b.head = b.head - data.size
        b.Bytes[b.head : b.head + data.size] = data.tobytes()
        return self.table("Buffer", Data=b.EndVector())

    def _operator(self, op: WrittenOperator, code: int) -> int:
        fields: dict[str, Any] = {
            "OpcodeIndex": code,
            "Inputs": self.ints(op.inputs),
            "Outputs": self.ints(op.outputs),
        }
        if op.kind:
            made = {key: self._option(value) for key, value in op.options.items()}
            fields["BuiltinOptions"] = self.table(op.kind, **made)
            fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, op.kind)
        if op.custom:
            fields["CustomOptions"] = self.builder.CreateByteVector(op.custom)
        return self.table("Operator", **fields)

    def _option(self, value: Any) -> Any:
        return self.ints(value) if isinstance(value, tuple | list) else value

    def _code(self, code: str, version: int) -> int:
        number = getattr(tflite.BuiltinOperator, code, tflite.BuiltinOperator.CUSTOM)
        fields: dict[str, Any] = {
            "DeprecatedBuiltinCode": min(number, _OLD_CODES),
            "Version": version,
            "BuiltinCode": number,
        }
        if number == tflite.BuiltinOperator.CUSTOM:
            fields["CustomCode"] = self.builder.CreateString(code)
        return self.table("OperatorCode", **fields)

    def _signature(self) -> int:
        b, tensors = self.builder, self.graph.tensors
        sides = {}
        for side, indexes in (("Inputs", self.graph.inputs), ("Outputs", self.graph.outputs)):
            names = [b.CreateString(tensors[index].name) for index in indexes]
            pairs = zip(names, indexes, strict=True)
            maps = [self.table("TensorMap", Name=n, TensorIndex=i) for n, i in pairs]
            sides[side] = self.offsets(maps)
        key = b.CreateString(SIGNATURE)
        return self.table("SignatureDef", SignatureKey=key, SubgraphIndex=0, **sides)
