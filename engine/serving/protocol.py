"""Tensors and requests of the Open Inference Protocol v2, as typed data that no transport owns.

HTTP and gRPC turn their messages into an InferRequest and an InferResponse into theirs. Raw tensors
are little-endian, row-major; an element of BYTES is its length in 4 bytes, then its bytes.
Source: Open Inference Protocol v2 (KServe), binary tensor data extension (Triton)
"""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from trireme.ir.graph import Value
from trireme.serving.errors import ServingError, invalid
from trireme.support.dtypes import Array, dtype_name, numpy_dtype
from trireme.support.errors import ModelFileError

DATATYPES: Final[dict[str, str]] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
}
"""The protocol's names of element types, and the graph's."""

DATATYPE_OF: Final = {dtype: name for name, dtype in DATATYPES.items()}
BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
"""Datatypes that JSON numbers cannot carry."""

MAX_RANK: Final = 64
"""numpy's limit."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a model takes or gives.

    dtype: the graph's name
    shape: a dimension is a number, or the name of a symbol where it is open
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def datatype(self) -> str:
        """The protocol's name of the dtype."""
        return DATATYPE_OF[self.dtype]

    @property
    def open_shape(self) -> list[int]:
        """The shape as the protocol has it: -1 for a dimension that is open."""
        return [dim if isinstance(dim, int) else -1 for dim in self.shape]


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a request names.

    binary: whether to send it as raw bytes; None: as the request says for all
    classes: with a number above 0, the largest values as "value:index:label" texts instead
    """

    name: str
    binary: bool | None = None
    classes: int = 0


@dataclass(frozen=True)
class InferRequest:
    """A request, its tensors decoded; `outputs` empty asks for every output.

    timeout_s: seconds from arrival until the answer is worthless; None without a limit
    priority: 0 is the model's default, 1 the highest
    client_span: what the client says of its own span, see spans.py
    """

    model: str
    version: str = ""
    id: str = ""
    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: Sequence[RequestedOutput] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None
    priority: int = 0
    client_span: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of the inputs; a text counts as its pointer."""
        return sum(array.nbytes for array in self.inputs.values())


@dataclass(frozen=True)
class InferResponse:
    """The answer: outputs in the order that the request asked for."""

    model: str
    version: str
    id: str
    outputs: Mapping[str, Array]
    parameters: Mapping[str, Any] = field(default_factory=dict)


def check_model_name(name: str, what: str = "model name") -> str:
    """Return the name of a model, or of a version, that is fit to be one.

    Errors: ServingError invalid
    """
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise invalid(what, "expected 1 to 128 letters, digits, dots, dashes or underscores")
    return name


def tensor_spec(value: Value) -> TensorSpec:
    """Return what the protocol says of an input or output of a model.

    Errors: ModelFileError, if the protocol has no such dtype
    """
    if value.dtype not in DATATYPE_OF:
        raise ModelFileError(
            f"'{value.name}' is {value.type}: the Open Inference Protocol has no {value.dtype}",
            facts=[f"it has {', '.join(DATATYPE_OF)}"],
        )
    return TensorSpec(value.name, value.dtype, value.shape)


def check_datatype(datatype: Any, where: str) -> str:
    """Return the name of a datatype of the protocol.

    Errors: ServingError invalid
    """
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        found = repr(datatype) if isinstance(datatype, str) else type(datatype).__name__
        raise invalid(f"{where}.datatype", f"found {found:.60}, expected {', '.join(DATATYPES)}")
    return datatype


def check_shape(shape: Any, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor that is sent, whose elements 2**63 bytes can hold.

    Errors: ServingError invalid
    """
    if not isinstance(shape, list | tuple):
        raise invalid(f"{where}.shape", f"found {type(shape).__name__}, expected a list of sizes")
    if len(shape) > MAX_RANK:
        raise invalid(f"{where}.shape", f"{len(shape)} dimensions, at most {MAX_RANK}")
    if any(not isinstance(dim, int) or isinstance(dim, bool) or dim < 0 for dim in shape):
        raise invalid(f"{where}.shape", "a size is no whole number from 0 on")
    if math.prod(dim or 1 for dim in shape) >= 1 << 60:
        raise invalid(f"{where}.shape", "more elements than memory can hold")
    return tuple(shape)


def array_from_raw(
    datatype: str, shape: tuple[int, ...], raw: bytes | bytearray | memoryview, where: str
) -> Array:
    """Return raw bytes as an array: a view of them where they are aligned, else a copy.

    where: the tensor, for messages: inputs[0] 'x'
    Errors: ServingError invalid, if the bytes do not make the shape
    """
    if datatype == "BYTES":
        return _texts(shape, memoryview(raw), where)
    dtype = numpy_dtype(DATATYPES[datatype])
    size = math.prod(shape) * dtype.itemsize
    if len(raw) != size:
        raise invalid(where, f"{len(raw)} bytes, expected {size} for {datatype}{list(shape)}")
    array = np.frombuffer(raw, np.uint8).view(np.bool_ if datatype == "BOOL" else np.uint8)
    if datatype == "BOOL":
        if (np.frombuffer(raw, np.uint8) > 1).any():
            raise invalid(where, "a BOOL is a byte that is neither 0 nor 1")
        return array.reshape(shape)
    array = np.frombuffer(raw, dtype.newbyteorder("<") if dtype.kind != "V" else dtype)
    if sys.byteorder == "big" or not array.flags.aligned:
        array = array.astype(dtype)
    return array.reshape(shape)


def raw_from_array(array: Array) -> bytes:
    """Return the raw bytes of an array."""
    if dtype_name(array.dtype) == "string":
        parts = []
        for one in array.reshape(-1):
            data = one if isinstance(one, bytes) else str(one).encode()
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)
    if sys.byteorder == "big":
        array = array.byteswap()
    return array.tobytes()


def _texts(shape: tuple[int, ...], raw: memoryview, where: str) -> Array:
    """Return elements of BYTES: a str where an element is UTF-8, else its bytes."""
    count, at = math.prod(shape), 0
    if count * _LENGTH.size > len(raw):
        raise invalid(where, f"{len(raw)} bytes are too few for BYTES{list(shape)}")
    texts = np.empty(count, object)
    for index in range(count):
        if at + _LENGTH.size > len(raw):
            raise invalid(where, f"the data ends before element {index} of {count}")
        (length,) = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        if at + length > len(raw):
            raise invalid(where, f"element {index} of {count} ends beyond the data")
        texts[index] = as_text(bytes(raw[at : at + length]))
        at += length
    if at != len(raw):
        raise invalid(where, f"{len(raw) - at} bytes follow the last of {count} elements")
    return texts.reshape(shape)


def as_text(data: bytes) -> str | bytes:
    """Return an element of BYTES as a text, if it is one."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def check_inputs(request: InferRequest, specs: Sequence[TensorSpec]) -> None:
    """See that the tensors of a request are the inputs of a model.

    Errors: ServingError invalid, which names the input
    """
    known = {spec.name: spec for spec in specs}
    for name in request.inputs:
        if name not in known:
            raise invalid("inputs", f"the model has no input {name!r:.100}", _known(specs))
    for spec in specs:
        if spec.name not in request.inputs:
            raise invalid("inputs", f"input '{spec.name}' is missing", _known(specs))
        _check_input(request.inputs[spec.name], spec)


def _check_input(array: Array, spec: TensorSpec) -> None:
    found = DATATYPE_OF[dtype_name(array.dtype)]
    if found != spec.datatype:
        raise invalid(f"input '{spec.name}'", f"datatype {found}, expected {spec.datatype}")
    fits = len(array.shape) == len(spec.shape) and all(
        not isinstance(want, int) or want == have
        for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ",".join(map(str, spec.shape))
        raise invalid(f"input '{spec.name}'", f"shape {list(array.shape)}, expected [{wanted}]")


def requested(request: InferRequest, specs: Sequence[TensorSpec]) -> list[RequestedOutput]:
    """Return the outputs that a request asks for, in its order: all of them where it names none.

    Errors: ServingError invalid, if the model has no such output or one is named twice
    """
    if not request.outputs:
        return [RequestedOutput(spec.name) for spec in specs]
    known = {spec.name for spec in specs}
    seen: set[str] = set()
    for output in request.outputs:
        if output.name not in known:
            raise invalid("outputs", f"the model has no output {output.name!r:.100}", _known(specs))
        if output.name in seen:
            raise invalid("outputs", f"output '{output.name}' is named twice")
        seen.add(output.name)
    return list(request.outputs)


def _known(specs: Sequence[TensorSpec]) -> str:
    return f"known: {', '.join(spec.name for spec in specs)}"


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the seconds of a request's parameter `timeout`, which is in microseconds.

    Errors: ServingError invalid
    """
    given = parameters.get("timeout")
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise invalid("parameters.timeout", "expected microseconds, a whole number from 0 on")
    return given / 1e6 if given else None


def priority_of(parameters: Mapping[str, Any]) -> int:
    """Return a request's parameter `priority`: 0 is the model's default, 1 the highest.

    Errors: ServingError invalid
    """
    given = parameters.get("priority", 0)
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 1 << 32:
        raise invalid("parameters.priority", "expected a whole number from 0 on")
    return given


__all__ = [
    "BINARY_ONLY",
    "DATATYPES",
    "DATATYPE_OF",
    "InferRequest",
    "InferResponse",
    "RequestedOutput",
    "ServingError",
    "TensorSpec",
    "array_from_raw",
    "check_inputs",
    "check_model_name",
    "priority_of",
    "raw_from_array",
    "requested",
    "tensor_spec",
    "timeout_of",
]
