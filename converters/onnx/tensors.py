"""Turn ONNX tensors and types into numpy arrays and TensorTypes, sizes checked before memory."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from trireme.converters.onnx.file import MOST_DENSE, Files
from trireme.converters.onnx.proto import TensorProto
from trireme.converters.onnx.strip import OWN_FILE
from trireme.ir.bind_shapes import shapes_to_give
from trireme.ir.dims import symbol_name
from trireme.ir.graph import Dim, TensorType
from trireme.support.dtypes import NAMES, Array, numpy_dtype
from trireme.support.errors import ConvertError, ModelFileError

_FIELD = {
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
    "string": "string_data",
    "complex64": "float_data",
    "complex128": "double_data",
}
"""The fields of values that are not raw data; all other dtypes use int32_data."""
_DTYPES = {name.replace("_", "").upper(): name for name in NAMES} | {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT4E2M1": "float4_e2m1fn",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
    "FLOAT8E8M0": "float8_e8m0fnu",
}
"""Names of dtypes, by ONNX's name of the element type."""
_LONGEST_NAME = 4096
"""The longest path that Linux takes."""
_PACKED = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}
"""Elements a byte of packed dtypes."""
_SIX_BITS = ("float6_e2m3fn", "float6_e3m2fn")
"""Dtypes of which raw data packs four in three bytes."""


def dtype_of(code: int, where: str) -> str:
    """Return trireme's name of an ONNX element type."""
    if code == TensorProto.STRING:
        return "string"
    try:
        return _DTYPES[TensorProto.DataType.Name(code)]
    except (KeyError, ValueError):
        raise ModelFileError(f"{where}: unknown element type {code}") from None


def tensor_array(tensor: Any, files: Files, where: str) -> Array:
    """Return the data of a TensorProto, external data only from inside the folder.

    Errors: ModelFileError, if the data does not fit the shape or lies outside the folder
    """
    where = f"{where} tensor '{tensor.name}'" if tensor.name else f"{where} tensor"
    dtype, dims = dtype_of(tensor.data_type, where), tuple(tensor.dims)
    if any(dim < 0 for dim in dims):
        raise ModelFileError(f"{where}: negative dimension in {list(dims)}")
    if tensor.HasField("segment"):
        raise ModelFileError(f"{where}: tensor segments are not supported")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _from_bytes(_external(tensor, files, where), dtype, dims, where)
    if tensor.HasField("raw_data"):
        return _from_bytes(tensor.raw_data, dtype, dims, where)
    found = len(getattr(tensor, _FIELD.get(dtype, "int32_data")))
    _expect(where, found, _stored(dtype, dims), "stored values", dims)
    if dtype == "string":
        return np.array([_text(v) for v in tensor.string_data], object).reshape(dims)
    from onnx import numpy_helper

    try:
        return np.asarray(numpy_helper.to_array(tensor)).astype(numpy_dtype(dtype), copy=False)
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelFileError(f"{where}: {error}") from error


def sparse_array(sparse: Any, files: Files, where: str) -> Array:
    """Return the dense array of a SparseTensorProto.

    Shapes: values [N], indices [N] (flat) or [N, rank]
    """
    where = f"{where} sparse tensor '{sparse.values.name}'"
    dims = tuple(sparse.dims)
    if any(dim < 0 for dim in dims) or math.prod(dims) > MOST_DENSE:
        raise ModelFileError(f"{where}: shape {list(dims)} is negative or too big")
    values = tensor_array(sparse.values, files, where)
    indices = tensor_array(sparse.indices, files, where).astype(np.int64)
    if values.ndim != 1 or indices.shape not in ((len(values),), (len(values), len(dims))):
        raise ModelFileError(f"{where}: values {values.shape}, indices {indices.shape}")
    limits = np.array(dims if indices.ndim == 2 else math.prod(dims))
    if ((indices < 0) | (indices >= limits)).any():
        raise ModelFileError(f"{where}: an index is outside {list(dims)}")
    files.count_dense(math.prod(dims), where)
    dense = np.zeros(dims, values.dtype)
    if indices.ndim == 2:
        dense[tuple(indices.T)] = values
    else:
        dense.reshape(-1)[indices] = values
    return dense


def tensor_type(proto: Any, where: str) -> TensorType:
    """Return the type of a graph input; a dimension without a name becomes a symbol of its own.

    Errors: ConvertError, if it is no tensor or its rank is not given
    """
    kind = proto.type.WhichOneof("value")
    if kind != "tensor_type":
        raise ConvertError(f"{where}: is a {kind or 'value without a type'}, not a tensor")
    tensor = proto.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        raise ConvertError(
            f"{where}: has no shape", fix=shapes_to_give({proto.name: (1, 3, 224, 224)})
        )
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        known = dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0
        dims.append(dim.dim_value if known else symbol(dim.dim_param, proto.name, axis))
    return TensorType(tuple(dims), dtype)


def symbol(param: str, name: str, axis: int) -> str:
    """Return the name of an open dimension: the model's own, else made of input and axis."""
    return symbol_name(param if param and param != "?" else f"{name}_{axis}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _stored(dtype: str, dims: tuple[int, ...]) -> int:
    """Return how many entries of its typed field a tensor takes."""
    count = math.prod(dims)
    return 2 * count if dtype.startswith("complex") else -(-count // _PACKED.get(dtype, 1))


def _expect(where: str, found: int, wanted: int, what: str, dims: tuple[int, ...]) -> None:
    if found != wanted:
        raise ModelFileError(f"{where}: {found} {what}, shape {list(dims)} takes {wanted}")


def _from_bytes(data: bytes | Array, dtype: str, dims: tuple[int, ...], where: str) -> Array:
    if dtype == "string":
        raise ModelFileError(f"{where}: strings cannot be raw data")
    target, per_byte = numpy_dtype(dtype), _PACKED.get(dtype, 1)
    count = math.prod(dims)
    size = -(-count // per_byte) if per_byte > 1 else count * target.itemsize
    if dtype in _SIX_BITS:
        size = -(-count * 6 // 8)
    _expect(where, len(data), size, "bytes of data", dims)
    if dtype in _SIX_BITS:
        return _unpacked_6(np.frombuffer(data, np.uint8))[:count].view(target).reshape(dims)
    if per_byte == 1:
        stored = target if target.kind == "V" else target.newbyteorder("<")
        return np.frombuffer(data, stored).astype(target, copy=False).reshape(dims)
    return _unpacked(np.frombuffer(data, np.uint8), 8 // per_byte, dtype)[:count].reshape(dims)


def _unpacked(data: Array, bits: int, dtype: str) -> Array:
    """Spread elements of a few bits, the lowest bits of a byte first. Source: onnx.proto"""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)
    if dtype == "float4_e2m1fn":
        return fields.astype(np.uint8).view(numpy_dtype(dtype))
    if dtype.startswith("int"):
        fields = np.where(fields >= 1 << (bits - 1), fields.astype(np.int8) - (1 << bits), fields)
    return fields.astype(np.int8).astype(numpy_dtype(dtype))


def _unpacked_6(data: Array) -> Array:
    """Spread elements of 6 bits, the lowest bits of three bytes first. Source: onnx.proto"""
    groups = np.pad(data, (0, -len(data) % 3)).reshape(-1, 3).astype(np.uint32)
    words = groups @ np.array([1, 1 << 8, 1 << 16], np.uint32)
    fields = (words[:, None] >> np.arange(0, 24, 6, dtype=np.uint32)) & 0x3F
    return np.asarray(fields.astype(np.uint8).reshape(-1))


def _external(tensor: Any, files: Files, where: str) -> Array:
    """Return the bytes of external data as a view of the file they lie in."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    path = _inside(files.folder, location, where) if location != OWN_FILE else Path("the model")
    try:
        data = files.own if location == OWN_FILE else files.read(path)
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", data.size - offset))
        if offset < 0 or length < 0 or offset + length > data.size:
            raise ModelFileError(
                f"{where}: bytes {offset}..{offset + length} of {path}, which has {data.size}"
            )
        return data[offset : offset + length]
    except ValueError as error:
        raise ModelFileError(f"{where}: external data of {path}: {error}") from error
    except OSError as error:
        raise ModelFileError(f"{where}: {path} cannot be read: {error.strerror}") from error


def _inside(folder: Path | None, location: str, where: str) -> Path:
    """Return the file of external data; raise ModelFileError unless it is inside `folder`."""
    if folder is None:
        raise ModelFileError(
            f"{where}: its data is in file '{location}', but the model came as bytes",
            fix="convert the model from its path",
        )
    relative = Path(location)
    parts = location.replace("\\", "/").split("/")
    base = folder.resolve()
    escapes = not location or relative.is_absolute() or ".." in parts or "\0" in location
    if len(os.fsencode(location)) > _LONGEST_NAME:
        raise ModelFileError(
            f"{where}: external data at a name of {len(location)} characters, "
            f"expected {_LONGEST_NAME} at most"
        )
    if escapes or not (base / relative).resolve().is_relative_to(base):
        raise ModelFileError(
            f"{where}: external data at '{location}' is not inside the model's folder"
        )
    path = base / relative
    try:
        exists = path.is_file()
    except OSError as error:
        raise ModelFileError(f"{where}: {path} cannot be read: {error.strerror}") from error
    if not exists:
        raise ModelFileError(f"{where}: external data file {path} does not exist")
    return path
