"""Host memory that begins where kernels may load whole vectors."""

from __future__ import annotations

from trireme.backend.device import Buffer, host_alloc
from trireme.support.dtypes import Array

ALIGNMENT = 64


def aligned_bytes(nbytes: int) -> Array:
    """Return zeroed bytes that begin on a 64-byte boundary.

    Errors: DeviceError, if there is no such memory
    """
    room: Array = host_alloc(nbytes, ALIGNMENT).handle
    return room


def aligned_copy(data: Array) -> Array:
    """Return a C-contiguous copy of an array that begins on a 64-byte boundary."""
    room = aligned_bytes(data.nbytes).view(data.dtype).reshape(data.shape)
    room[...] = data
    return room


def as_kernels_read(data: Array) -> Array:
    """Return an array as kernels read constants: contiguous, from a 64-byte boundary on."""
    is_plain = data.ctypes.data % ALIGNMENT == 0 and data.flags.c_contiguous
    return data if is_plain else aligned_copy(data)


def address(buffer: Buffer) -> int:
    """Return where a buffer of the host's space begins."""
    base: int = buffer.handle.ctypes.data
    return base + buffer.offset
