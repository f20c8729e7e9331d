"""Read a .tflite file into plain records, trusting nothing in it.

The flatbuffers package has no verifier: an offset in a damaged file may point anywhere. Every
access goes through `reading`, which turns any exception into a ModelFileError that names the field.
Every count is checked against the size of the file before a loop uses it.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tflite

from trireme.converters.tflite.sparse import MOST_DENSE, dense_constant, read_sparsity
from trireme.ir.graph import Quant
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ModelFileError
from trireme.support.mapped import OnOpen, ignore_file, open_file

IDENTIFIER = b"TFL3"
NO_TENSOR = -1
LONGEST_NAME = 4096
_MOST_RANK = 32

_DTYPES = {
    "FLOAT32": "float32",
    "FLOAT16": "float16",
    "FLOAT64": "float64",
    "BFLOAT16": "bfloat16",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "INT4": "int4",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "BOOL": "bool",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
    "STRING": "string",
    "RESOURCE": "resource",
    "VARIANT": "variant",
}
_WITHOUT_DATA = ("int4", "string", "resource", "variant")
"""Dtypes whose data is not read."""
_BROKEN = (
    struct.error,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    OverflowError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
"""Python's exceptions for an offset outside the file or a senseless number."""


def _enum_names(enum: type) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if isinstance(v, int) and not k.startswith("_")}


_TENSOR_TYPES = _enum_names(tflite.TensorType)
_OPERATORS = _enum_names(tflite.BuiltinOperator)
OPTIONS = _enum_names(tflite.BuiltinOptions)
OPTIONS_2 = _enum_names(tflite.BuiltinOptions2)
CALLERS = ("IF", "WHILE", "CALL", "CALL_ONCE", "STABLEHLO_COMPOSITE", "STABLEHLO_SCATTER")
"""The operators that call subgraphs."""
_SUBGRAPH_FIELDS = {
    "IfOptions": ("ThenSubgraphIndex", "ElseSubgraphIndex"),
    "WhileOptions": ("CondSubgraphIndex", "BodySubgraphIndex"),
    "CallOptions": ("Subgraph",),
    "CallOnceOptions": ("InitSubgraphIndex",),
    "StableHLOCompositeOptions": ("DecompositionSubgraphIndex",),
    "StablehloScatterOptions": ("UpdateComputationSubgraphIndex",),
}


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of the file; `data` is a view of the file's bytes when it is a constant.

    shape: the shape that LiteRT gives it first; signature: the same, -1 where it is open
    """

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    dtype: str
    quant: Quant | None
    data: Array | None
    variable: bool


@dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator of the file; `options` is the table of its builtin options, or None.

    subgraphs: the subgraphs that it calls, in the order of its options
    intermediates: the tensors that describe what it computes on the way
    """

    index: int
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    options_name: str
    custom: bytes
    subgraphs: tuple[int, ...] = ()
    intermediates: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        """The operator's name in messages and nodes."""
        return f"tflite:{self.code}#{self.index}"


@dataclass(frozen=True, eq=False)
class FileGraph:
    """A subgraph of the file."""

    index: int
    name: str
    tensors: tuple[FileTensor, ...]
    operators: tuple[FileOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@contextlib.contextmanager
def reading(field: str) -> Iterator[None]:
    """Turn exceptions that a damaged file causes into a ModelFileError that names the field."""
    try:
        yield
    except _BROKEN as error:
        raise ModelFileError(
            f"the .tflite file is damaged at {field}", facts=[f"{type(error).__name__}: {error}"]
        ) from error


def open_bytes(
    source: str | Path | bytes, use_mmap: bool, on_open: OnOpen = ignore_file
) -> memoryview:
    """Return the bytes of a file, mapped into memory if `use_mmap`, or the bytes given.

    Errors: ModelFileError, if the file cannot be read
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return memoryview(source).toreadonly()
    try:
        file = open_file(Path(source), use_mmap)
    except OSError as error:
        raise ModelFileError(f"cannot read {source}: {error.strerror or error}") from error
    on_open(file)
    return memoryview(file.data.data).toreadonly()


class FileReader:
    """Reads the subgraphs of one file; `_budget` limits the list entries that may be read in all.

    Errors: ModelFileError, if the bytes are not a .tflite file
    """

    def __init__(self, data: memoryview) -> None:
        if len(data) < 8 or bytes(data[4:8]) != IDENTIFIER:
            raise ModelFileError(
                "this is not a .tflite file",
                facts=[f"bytes 4..8 are {bytes(data[4:8])!r}, not 'TFL3'"],
            )
        self.data = data
        self.array = np.frombuffer(data, np.uint8)
        self._budget = len(data)
        self._dense = 0
        with reading("the root table"):
            self.model = tflite.Model.GetRootAs(data, 0)
        with reading("Model.subgraphs"):
            self.subgraphs = self.count(self.model.SubgraphsLength(), "Model.subgraphs")
        if not self.subgraphs:
            raise ModelFileError("the .tflite file has no subgraph")
        self._codes = self._read_codes()

    def graph(self, index: int) -> FileGraph:
        """Return a subgraph.

        Errors: ModelFileError, naming the field that is damaged
        """
        with reading("Model.subgraphs"):
            sub = self.model.Subgraphs(index)
            name = text_of(sub.Name(), "SubGraph.name") or "main"
        with reading("SubGraph.tensors"):
            n_tensors = self.count(sub.TensorsLength(), "SubGraph.tensors")
        tensors = tuple(self._tensor(sub, i) for i in range(n_tensors))
        with reading("SubGraph.operators"):
            n_operators = self.count(sub.OperatorsLength(), "SubGraph.operators")
        operators = tuple(self._operator(sub, i, n_tensors) for i in range(n_operators))
        inputs = self.indexes(sub, "Inputs", "SubGraph.inputs", n_tensors)
        outputs = self.indexes(sub, "Outputs", "SubGraph.outputs", n_tensors)
        if NO_TENSOR in inputs or NO_TENSOR in outputs:
            raise ModelFileError("SubGraph.inputs or SubGraph.outputs names no tensor (-1)")
        return FileGraph(index, name, tensors, operators, inputs, outputs)

    def count(self, length: int, field: str) -> int:
        """Return a list's length, if the file is large enough for all lists read so far."""
        self._budget -= length
        if length < 0 or self._budget < 0:
            raise ModelFileError(f"{field} has {length} entries, more than the file can hold")
        return length

    def indexes(self, table: Any, name: str, field: str, tensors: int) -> tuple[int, ...]:
        """Return a list of tensor indexes, each -1 or below `tensors`."""
        with reading(field):
            length = self.count(getattr(table, f"{name}Length")(), field)
            array = getattr(table, f"{name}AsNumpy")() if length else np.zeros(0, np.int32)
            values = tuple(int(v) for v in array)
        for value in values:
            if not NO_TENSOR <= value < tensors:
                raise ModelFileError(f"{field} names tensor {value}, there are {tensors}")
        return values

    def _read_codes(self) -> list[str]:
        with reading("Model.operator_codes"):
            n = self.count(self.model.OperatorCodesLength(), "Model.operator_codes")
        codes = []
        for i in range(n):
            with reading(f"Model.operator_codes[{i}]"):
                code = self.model.OperatorCodes(i)
                number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
                if number == tflite.BuiltinOperator.CUSTOM:
                    codes.append(text_of(code.CustomCode(), "OperatorCode.custom_code") or "CUSTOM")
                else:
                    codes.append(_OPERATORS.get(number, f"operator {number}"))
        return codes

    def _tensor(self, sub: Any, index: int) -> FileTensor:
        field = f"SubGraph.tensors[{index}]"
        with reading(field):
            tensor = sub.Tensors(index)
            name = text_of(tensor.Name(), f"{field}.name") or f"tensor_{index}"
            rank = self.count(tensor.ShapeLength(), f"{field}.shape")
            shape = tuple(int(d) for d in tensor.ShapeAsNumpy()) if rank else ()
            signed = tensor.ShapeSignatureLength() == rank > 0
            open_axes = (
                [d < 0 for d in tensor.ShapeSignatureAsNumpy()] if signed else [False] * rank
            )
            dtype = _DTYPES.get(_TENSOR_TYPES.get(tensor.Type(), ""))
            variable = bool(tensor.IsVariable())
        if rank > _MOST_RANK or any(dim < 0 for dim in shape):
            raise ModelFileError(f"{field}.shape is {list(shape[:_MOST_RANK])}")
        if dtype is None:
            raise ModelFileError(f"{field}.type is {tensor.Type()}, which is no known type")
        data = None if dtype in _WITHOUT_DATA else self._data(tensor, field, shape, dtype)
        quant = self._quant(tensor, field, shape, dtype)
        signature = tuple(-1 if o else d for o, d in zip(open_axes, shape, strict=True))
        return FileTensor(index, name, shape, signature, dtype, quant, data, variable)

    def _data(self, tensor: Any, field: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Return the constant's data as a view of the file; None for any other tensor."""
        with reading(f"{field}.buffer"):
            index = tensor.Buffer()
            if index >= self.model.BuffersLength():
                raise ModelFileError(f"{field}.buffer is {index}, past the last")
            raw = self._raw(index)
        if raw is None:
            return None
        dense = numpy_dtype(dtype)
        elements = math.prod(shape)
        with reading(f"{field}.sparsity"):
            if tensor.Sparsity() is not None:
                return self._sparse(tensor, field, shape, raw.view(dense.newbyteorder("<")))
        if elements * dense.itemsize != len(raw):
            raise ModelFileError(
                f"{field}: {dtype}{list(shape)} takes {elements * dense.itemsize} bytes, "
                f"its buffer has {len(raw)}"
            )
        with reading(f"{field}.buffer"):
            typed = raw.view(dense.newbyteorder("<")).reshape(shape)
            return typed if typed.flags.aligned and dense.isnative else typed.astype(dense)

    def _sparse(self, tensor: Any, field: str, shape: tuple[int, ...], stored: Array) -> Array:
        """Return the data of a constant that is stored sparse, as a dense array."""
        self._dense += math.prod(shape)
        if self._dense > MOST_DENSE:
            raise ModelFileError(f"{field}: sparse tensors take over {MOST_DENSE} elements in all")
        dense = stored.astype(stored.dtype.newbyteorder("="))
        return dense_constant(dense, shape, read_sparsity(tensor.Sparsity()))

    def _raw(self, index: int) -> Array | None:
        """Return the bytes of a buffer; data beyond 2 GiB lies behind the flatbuffer."""
        buffer = self.model.Buffers(index)
        offset, size = buffer.Offset(), buffer.Size()
        if offset > 1:
            if offset + size > len(self.data):
                raise ModelFileError(f"Model.buffers[{index}] ends past the end of the file")
            return self.array[offset : offset + size]
        if not buffer.DataLength():
            return None
        return np.asarray(buffer.DataAsNumpy())

    def _quant(self, tensor: Any, field: str, shape: tuple[int, ...], dtype: str) -> Quant | None:
        with reading(f"{field}.quantization"):
            quant = tensor.Quantization()
            if quant is None or dtype not in ("int8", "uint8", "int16", "int32"):
                return None
            n = self.count(quant.ScaleLength(), f"{field}.quantization.scale")
            if not n:
                return None
            scales = tuple(quant.ScaleAsNumpy().astype(float).tolist())
            zeros = self.count(quant.ZeroPointLength(), f"{field}.quantization.zero_point")
            points = tuple(quant.ZeroPointAsNumpy().tolist()) if zeros else (0,) * n
            axis = quant.QuantizedDimension() if n > 1 else None
        if len(points) != n:
            points = points * n if len(points) == 1 else ()
        along = 0 if axis is None else axis
        fits = axis is None or (0 <= along < len(shape) and shape[along] == n)
        if not points or not fits or not all(0 < s < float("inf") for s in scales):
            raise ModelFileError(
                f"{field}.quantization does not fit {dtype}{list(shape)}",
                facts=[f"{n} scales from {min(scales)}, {zeros} zero points, axis {axis}"],
            )
        info = np.iinfo(dtype)
        if not all(info.min <= point <= info.max for point in points):
            raise ModelFileError(f"{field}.quantization.zero_point is outside {dtype}")
        return Quant(scales, points, axis)

    def _operator(self, sub: Any, index: int, tensors: int) -> FileOperator:
        field = f"SubGraph.operators[{index}]"
        codes = self._codes
        with reading(field):
            operator = sub.Operators(index)
            position = operator.OpcodeIndex()
        if position >= len(codes):
            raise ModelFileError(f"{field}.opcode_index is {position}, there are {len(codes)}")
        inputs = self.indexes(operator, "Inputs", f"{field}.inputs", tensors)
        outputs = self.indexes(operator, "Outputs", f"{field}.outputs", tensors)
        between = self.indexes(operator, "Intermediates", f"{field}.intermediates", tensors)
        with reading(f"{field}.builtin_options"):
            options, name = _options(operator)
            length = operator.CustomOptionsLength()
            custom = operator.CustomOptionsAsNumpy().tobytes() if length else b""
            called = _called(options, name) if codes[position] in CALLERS else ()
        for subgraph in called:
            if not 0 <= subgraph < self.subgraphs:
                raise ModelFileError(
                    f"{field} calls subgraph {subgraph}, there are {self.subgraphs}"
                )
        return FileOperator(
            index,
            codes[position],
            inputs,
            outputs,
            options,
            name,
            custom,
            called,
            between,
        )


def _options(operator: Any) -> tuple[Any, str]:
    """Return the table of an operator's options, and its name; newer kinds have another field."""
    table = operator.BuiltinOptions()
    if table is not None:
        return table, OPTIONS.get(operator.BuiltinOptionsType(), "")
    return operator.BuiltinOptions2(), OPTIONS_2.get(operator.BuiltinOptions2Type(), "")


def _called(table: Any, name: str) -> tuple[int, ...]:
    """Return the subgraphs that an operator's options name."""
    if table is None or name not in _SUBGRAPH_FIELDS:
        raise ValueError("the subgraphs are not given")
    options = getattr(tflite, name)()
    options.Init(table.Bytes, table.Pos)
    return tuple(int(getattr(options, field)()) for field in _SUBGRAPH_FIELDS[name])


def text_of(raw: bytes | None, field: str) -> str:
    """Return a text of the file; an absent one is empty.

    Errors: ModelFileError, if it is longer than LONGEST_NAME
    """
    if raw is None:
        return ""
    if len(raw) > LONGEST_NAME:
        raise ModelFileError(f"{field} is {len(raw)} bytes long")
    return raw.decode("utf-8", "replace")
