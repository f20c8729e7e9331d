"""Write .tflite files of a few operators, for tests of the converter and of op arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

KINDS = {
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
    "int16": "INT16",
    "resource": "RESOURCE",
    "string": "STRING",
    "complex64": "COMPLEX64",
}


@dataclass
class SparseForm:
    """How a constant is stored sparse; a level is a size, or (segments, indices) in CSR form.

    order, blocked: the axis of each level, and the tensor's axis of each axis within blocks
    index: the dtype of segments and indices
    """

    order: list[int]
    levels: list[int | tuple[list[int], list[int]]]
    blocked: list[int] = field(default_factory=list)
    index: str = "uint8"


@dataclass
class T:
    """A tensor: constant when it has data; `scales` and `zeros` quantise it, along `axis`.

    variable: whether it keeps its value between runs
    signature: the shape with -1 where it is open
    stored: how the data, the stored elements alone, make a sparse constant
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = (0,)
    axis: int = 0
    data: np.ndarray | None = None
    variable: bool = False
    signature: tuple[int, ...] = ()
    stored: SparseForm | None = None


def constant(data: np.ndarray, *scales: float, zero: int = 0, axis: int = 0) -> T:
    """A constant tensor."""
    return T(data.shape, str(data.dtype), scales, (zero,) * max(len(scales), 1), axis, data)


@dataclass
class Op:
    """An operator on tensor indexes; `options` are fields of the table `kind`.

    An input of -1 is left out. intermediates: tensors that describe values on the way
    """

    code: str
    inputs: list[int]
    outputs: list[int]
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    custom: bytes = b""
    intermediates: list[int] = field(default_factory=list)


@dataclass
class Sub:
    """A subgraph; tensor i is called t<i>."""

    tensors: list[T]
    operators: list[Op]
    inputs: list[int]
    outputs: list[int]
    name: str = ""


@dataclass
class SignatureDef:
    """A signature: the subgraph, and the names of inputs and outputs by tensor."""

    key: str
    subgraph: int
    inputs: dict[str, int]
    outputs: dict[str, int]


def model(tensors: list[T], operators: list[Op], inputs: list[int], outputs: list[int]) -> bytes:
    """The bytes of a .tflite file of one subgraph."""
    return model_of([Sub(tensors, operators, inputs, outputs)])


def model_of(subs: list[Sub], signatures: Sequence[SignatureDef] = ()) -> bytes:
    """The bytes of a .tflite file."""
    b = flatbuffers.Builder(1024)
    buffers = [np.zeros(0, np.uint8)]
    codes = list(dict.fromkeys(op.code for sub in subs for op in sub.operators))
    made = [_subgraph(b, sub, codes, buffers) for sub in subs]
    signed = [_signature(b, signature) for signature in signatures]
    code_tables = [_code(b, code) for code in codes]
    data = [_table(b, "Buffer", Data=b.CreateNumpyVector(raw)) for raw in buffers]
    root = _table(
        b,
        "Model",
        Version=3,
        OperatorCodes=_offsets(b, code_tables),
        Subgraphs=_offsets(b, made),
        Buffers=_offsets(b, data),
        SignatureDefs=_offsets(b, signed),
    )
    b.Finish(root, file_identifier=b"TFL3")
    return bytes(b.Output())


def _subgraph(b: flatbuffers.Builder, sub: Sub, codes: list[str], buffers: list[np.ndarray]) -> int:
    made = [_tensor(b, i, t, buffers) for i, t in enumerate(sub.tensors)]
    ops = [_operator(b, op, codes.index(op.code)) for op in sub.operators]
    fields = {"Tensors": _offsets(b, made), "Operators": _offsets(b, ops)}
    fields |= {"Inputs": _ints(b, sub.inputs), "Outputs": _ints(b, sub.outputs)}
    if sub.name:
        fields["Name"] = b.CreateString(sub.name)
    return _table(b, "SubGraph", **fields)


def _signature(b: flatbuffers.Builder, signature: SignatureDef) -> int:
    sides = {}
    for side, names in (("Inputs", signature.inputs), ("Outputs", signature.outputs)):
        texts = {name: b.CreateString(name) for name in names}
        maps = [_table(b, "TensorMap", Name=texts[n], TensorIndex=i) for n, i in names.items()]
        sides[side] = _offsets(b, maps)
    key = b.CreateString(signature.key)
    return _table(b, "SignatureDef", SignatureKey=key, SubgraphIndex=signature.subgraph, **sides)


def one_op(
    code: str,
    inputs: list[T],
    outputs: list[T],
    kind: str = "",
    custom: bytes = b"",
    **options: Any,
) -> bytes:
    """A model of one operator; tensors without data are its inputs."""
    tensors = [*inputs, *outputs]
    ins = list(range(len(inputs)))
    outs = list(range(len(inputs), len(tensors)))
    operator = Op(code, ins, outs, kind, options, custom)
    return model(tensors, [operator], [i for i in ins if tensors[i].data is None], outs)


def _table(b: flatbuffers.Builder, name: str, **fields: Any) -> int:
    getattr(tflite, f"{name}Start")(b)
    for key, value in fields.items():
        getattr(tflite, f"{name}Add{key}")(b, value)
    return int(getattr(tflite, f"{name}End")(b))


def _ints(b: flatbuffers.Builder, values: list[int], dtype: type = np.int32) -> int:
    return int(b.CreateNumpyVector(np.array(values, dtype)))


def _offsets(b: flatbuffers.Builder, offsets: list[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


def _tensor(b: flatbuffers.Builder, index: int, t: T, buffers: list[np.ndarray]) -> int:
    fields = {"Shape": _ints(b, list(t.shape)), "Name": b.CreateString(f"t{index}"), "Buffer": 0}
    if t.data is not None:
        fields["Buffer"] = len(buffers)
        buffers.append(np.ascontiguousarray(t.data).view(np.uint8).reshape(-1))
    if t.scales:
        scale = b.CreateNumpyVector(np.array(t.scales, np.float32))
        zeros = t.zeros * (len(t.scales) if len(t.zeros) == 1 else 1)
        fields["Quantization"] = _table(
            b,
            "QuantizationParameters",
            Scale=scale,
            ZeroPoint=_ints(b, list(zeros), np.int64),
            QuantizedDimension=t.axis,
        )
    fields["Type"] = getattr(tflite.TensorType, KINDS[t.dtype])
    if t.variable:
        fields["IsVariable"] = True
    if t.signature:
        fields["ShapeSignature"] = _ints(b, list(t.signature))
    if t.stored:
        fields["Sparsity"] = _sparsity(b, t.stored)
    return _table(b, "Tensor", **fields)


def _sparsity(b: flatbuffers.Builder, stored: SparseForm) -> int:
    levels = []
    for level in stored.levels:
        if isinstance(level, int):
            levels.append(_table(b, "DimensionMetadata", Format=0, DenseSize=level))
            continue
        table = f"{stored.index.capitalize()}Vector"
        fields: dict[str, int] = {"Format": 1}
        for name, values in zip(("Segments", "Indices"), level, strict=True):
            vector = _ints(b, values, np.dtype(stored.index).type)
            fields[f"Array{name}Type"] = getattr(tflite.SparseIndexVector, table)
            fields[f"Array{name}"] = _table(b, table, Values=vector)
        levels.append(_table(b, "DimensionMetadata", **fields))
    lists = {"TraversalOrder": _ints(b, stored.order), "DimMetadata": _offsets(b, levels)}
    if stored.blocked:
        lists["BlockMap"] = _ints(b, stored.blocked)
    return _table(b, "SparsityParameters", **lists)


def _operator(b: flatbuffers.Builder, op: Op, position: int) -> int:
    fields = {
        "OpcodeIndex": position,
        "Inputs": _ints(b, op.inputs),
        "Outputs": _ints(b, op.outputs),
    }
    if op.intermediates:
        fields["Intermediates"] = _ints(b, op.intermediates)
    if op.kind:
        wide = np.int64 if op.kind.startswith("Stablehlo") else np.int32
        made = {key: _option(b, value, wide) for key, value in op.options.items()}
        second = "" if hasattr(tflite.BuiltinOptions, op.kind) else "2"
        kinds = getattr(tflite, f"BuiltinOptions{second}")
        fields[f"BuiltinOptions{second}"] = _table(b, op.kind, **made)
        fields[f"BuiltinOptions{second}Type"] = getattr(kinds, op.kind)
    if op.custom:
        fields["CustomOptions"] = b.CreateByteVector(op.custom)
    return _table(b, "Operator", **fields)


def _option(b: flatbuffers.Builder, value: Any, whole: type) -> Any:
    if isinstance(value, str):
        return b.CreateString(value)
    if isinstance(value, bytes | bytearray):
        return b.CreateByteVector(bytes(value))
    if isinstance(value, tuple | list):
        return _ints(b, list(value), np.float32 if isinstance(value[0], float) else whole)
    return value


def _code(b: flatbuffers.Builder, code: str) -> int:
    number = getattr(tflite.BuiltinOperator, code, tflite.BuiltinOperator.CUSTOM)
    fields = {"DeprecatedBuiltinCode": min(number, 127), "BuiltinCode": number}
    fields["Version"] = 2 if code == "BROADCAST_TO" else 1
    if number == tflite.BuiltinOperator.CUSTOM:
        fields["CustomCode"] = b.CreateString(code)
    return _table(b, "OperatorCode", **fields)
