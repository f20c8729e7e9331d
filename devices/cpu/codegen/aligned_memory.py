"""Host memory that begins where kernels may load whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.backend.device import Buffer, host_alloc
from trireme.support.dtypes import Array

ALIGNMENT = 64
_LARGE_PAGES_BYTES = 1 << 22
"""The least bytes of an array for which numpy asks for large pages."""


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


class PackedRoom:
    """Memory for the packed weights of a program, one array behind the other.

    A run reads all of them, and pages of 4 KiB are too many for the processor's tables of pages. Of
    an array of some MiB numpy has the system make large pages; weights are smaller than that.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        nbytes = sum([-(-size // ALIGNMENT) * ALIGNMENT for size in sizes])
        self._room = aligned_bytes(nbytes) if nbytes >= _LARGE_PAGES_BYTES else None
        self._at = 0

    def moved(self, data: Array) -> Array:
        """Return an array that lies here, or itself where there are few weights."""
        if self._room is None:
            return as_kernels_read(data)
        place = self._room[self._at :][: data.nbytes].view(data.dtype).reshape(data.shape)
        self._at += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        place[...] = data
        return place


def as_kernels_read(data: Array) -> Array:
    """Return an array as kernels read constants: contiguous, from a 64-byte boundary on."""
    is_plain = data.ctypes.data % ALIGNMENT == 0 and data.flags.c_contiguous
    return data if is_plain else aligned_copy(data)


def address(buffer: Buffer) -> int:
    """Return where a buffer of the host's space begins."""
    base: int = buffer.handle.ctypes.data
    return base + buffer.offset
