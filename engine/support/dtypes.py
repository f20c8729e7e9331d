"""The element types of tensors: a name in the graph and the file, a numpy dtype in memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trireme.support.errors import GraphError

Array = np.ndarray[Any, Any]

_NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
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
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
}
_NUMPY |= {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
        "int4",
        "uint4",
        "int2",
        "uint2",
    )
}
_NUMPY["string"] = np.dtype(object)
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}

NAMES: tuple[str, ...] = tuple(_NUMPY)
ANY = frozenset(NAMES)
BOOL = frozenset({"bool"})
TEXT = frozenset({"string"})
COMPLEX = frozenset({"complex64", "complex128"})
FLOATS = frozenset(name for name in NAMES if name.startswith(("float", "bfloat")))
INTS = frozenset(name for name in NAMES if name.startswith(("int", "uint")))
SMALL_FLOATS = frozenset(n for n in FLOATS if n.startswith(("float8", "float6_", "float4")))
"""Floats of 8 bits or fewer; casts to them saturate."""
NARROW = SMALL_FLOATS | {
    "int4",
    "uint4",
    "int2",
    "uint2",
}
"""Dtypes for storage, moves and casts only: some ml_dtypes arithmetic on them (int2 // int2) ends
the process."""
FLOATING = FLOATS - NARROW
INTEGERS = INTS - NARROW
INDICES = frozenset({"int32", "int64"})
"""Dtypes of indices, axes, lengths and shapes."""
SIGNED = FLOATING | {name for name in INTEGERS if name.startswith("int")}
REALS = FLOATING | INTEGERS
NUMBERS = REALS | COMPLEX


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype called `name` in a graph; raise GraphError for an unknown name."""
    try:
        return _NUMPY[name]
    except KeyError:
        known = ", ".join(NAMES)
        raise GraphError(f"unknown dtype {name!r}", facts=[f"known: {known}"]) from None


def dtype_name(dtype: Any) -> str:
    """Return the graph's name of a numpy dtype; raise GraphError for any other dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OUST":
        return "string"
    try:
        return _NAMES[dtype.newbyteorder("=")]
    except KeyError:
        raise GraphError(f"numpy dtype {dtype} has no counterpart in a graph") from None


def constant_array(data: Any) -> Array:
    """Return data as the read-only array that a constant holds, a view where that is possible.

    numpy arithmetic on a 0-d array gives a scalar; this function turns the scalar into an array.
    Bytes are in the machine's order, and strings are objects.
    Errors: GraphError, if a graph has no such dtype
    """
    array = np.asarray(data)
    if array.dtype == object:
        odd = [type(one).__name__ for one in array.flat if not isinstance(one, str | bytes)]
        if odd:
            raise GraphError(f"a constant holds a Python object of type {odd[0]}, expected texts")
    array = array.astype(numpy_dtype(dtype_name(array.dtype)), copy=False)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def itemsize(name: str) -> int:
    """Return the bytes one element takes in memory."""
    return numpy_dtype(name).itemsize
