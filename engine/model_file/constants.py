"""The constants of a file: views of its weights, and arrays of strings, which cannot be views."""

from __future__ import annotations

import zlib

import numpy as np

from trireme.ir.graph import TensorType
from trireme.model_file.flat import FileDefect, Table
from trireme.model_file.layout import ALIGNMENT
from trireme.support.dtypes import Array, numpy_dtype


class ConstantArrays:
    """The arrays of checked buffers.

    Shapes: weights uint8[size of the weights], read-only, starting at a multiple of 64
    """

    def __init__(self, weights: Array) -> None:
        self._weights = weights
        self._buffers: list[Table] = []
        self._texts: dict[int, Array] = {}
        self._bools: set[int] = set()
        self._end = 0

    def add(self, buffer: Table) -> None:
        """Add the next buffer; raise FileDefect when it lies outside or overlaps the one before."""
        offset, size, strings = buffer["offset"], buffer["size"], buffer["strings"]
        if strings is not None:
            if offset or size or buffer["crc32"]:
                raise FileDefect("has both strings and bytes")
        elif offset % ALIGNMENT:
            raise FileDefect(f"offset {offset} is not a multiple of {ALIGNMENT}")
        elif offset < self._end or offset + size > self._weights.size:
            raise FileDefect(
                f"bytes {offset} to {offset + size} are not between the buffer before, which ends "
                f"at {self._end}, and the end of the weights at {self._weights.size}"
            )
        else:
            self._end = offset + size
        self._buffers.append(buffer)

    def verify(self) -> None:
        """Check every buffer's bytes against its checksum; this reads all of the weights."""
        for index, buffer in enumerate(self._buffers):
            start, stop = buffer["offset"], buffer["offset"] + buffer["size"]
            found = zlib.crc32(self._weights[start:stop].data)
            if buffer["strings"] is None and found != buffer["crc32"]:
                expected = f"{buffer['crc32']:#010x}"
                at = f".buffers[{index}].crc32"
                raise FileDefect(f"{expected}, the weights give {found:#010x}: damaged", at=at)

    def array(self, type: TensorType, index: int) -> Array:
        """Return a buffer as a read-only array of a static type."""
        if index >= len(self._buffers):
            raise FileDefect(f"buffer {index} of {len(self._buffers)}")
        if not type.is_static:
            raise FileDefect(f"a constant of type {type} has no size")
        buffer = self._buffers[index]
        if (type.dtype == "string") != (buffer["strings"] is not None):
            raise FileDefect(f"buffer {index} does not hold {type.dtype} elements")
        if type.dtype == "string":
            return self._strings(type, index)
        if buffer["size"] != type.nbytes:
            raise FileDefect(
                f"buffer {index} has {buffer['size']} bytes, {type} takes {type.nbytes}"
            )
        start, stop = buffer["offset"], buffer["offset"] + buffer["size"]
        if type.dtype == "bool":
            self._check_bools(index, self._weights[start:stop])
        flat: Array = self._weights[start:stop].view(numpy_dtype(type.dtype))
        return flat.reshape(type.dims)

    def _check_bools(self, index: int, flat: Array) -> None:
        """Raise FileDefect for a bool other than 0 or 1, which numpy computes nonsense with."""
        if index not in self._bools:
            if np.any(flat > 1):
                raise FileDefect(f"buffer {index} has a bool that is neither 0 nor 1")
            self._bools.add(index)

    def _strings(self, type: TensorType, index: int) -> Array:
        """Return strings as an array; values that share a buffer share the memory."""
        strings = self._buffers[index]["strings"]
        if len(strings) != type.elements:
            raise FileDefect(
                f"buffer {index} has {len(strings)} strings, {type} takes {type.elements}"
            )
        if index not in self._texts:
            array = np.empty(len(strings), object)
            array[:] = strings
            array.flags.writeable = False
            self._texts[index] = array
        return self._texts[index].reshape(type.dims)
