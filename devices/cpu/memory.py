"""Aligned host memory, and numpy views of the buffers that lie in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.device import HOST, Buffer
from trireme.dtypes import Array, numpy_dtype
from trireme.errors import DeviceError
from trireme.graph import TensorType

ALIGNMENT = 64


def aligned_bytes(nbytes: int) -> Array:
    """Return zeroed bytes that begin on a 64-byte boundary.

    Errors: DeviceError, if there is no such memory
    """
    try:
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:
        raise DeviceError(f"cpu: {nbytes} bytes of memory are not to be had") from error
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def aligned_copy(data: Array) -> Array:
    """Return a C-contiguous copy of an array that begins on a 64-byte boundary."""
    room = aligned_bytes(data.nbytes).view(data.dtype).reshape(data.shape)
    room[...] = data
    return room


def host_buffer(nbytes: int) -> Buffer:
    """Return new aligned memory in the host's space."""
    return Buffer(HOST, aligned_bytes(nbytes), 0, nbytes)


def address(buffer: Buffer) -> int:
    """Return where a buffer of the host's space begins."""
    base: int = buffer.handle.ctypes.data
    return base + buffer.offset


def view(buffer: Buffer, type: TensorType) -> Array:
    """Return a buffer of the host's space as an array of a static type."""
    raw: Any = buffer.handle[buffer.offset : buffer.offset + type.nbytes]
    array: Array = raw.view(numpy_dtype(type.dtype)).reshape(type.dims)
    return array
