"""Files as read-only arrays: mapped into memory, and their pages given back after use.

Weights of a model are views of its file. What a device has packed it reads no more, so it gives the
pages back with `release`; a page that is read again comes from the file again.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from trireme.dtypes import Array


class _FileMap(mmap.mmap):
    """A mapping that knows its file."""

    path: Path


def map_file(path: Path) -> Array:
    """Return the bytes of a file as a read-only array that is mapped, not read.

    A mapped file may be replaced or removed, but must not be truncated or overwritten in place
    while the array is in use: the system would end the process.
    Shapes: -> uint8[size of the file]
    Errors: OSError
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.zeros(0, np.uint8)
        mapping = _FileMap(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapping.path = path.resolve()
        return np.frombuffer(mapping, np.uint8)


def read_file(path: Path) -> Array:
    """Return the bytes of a file as a read-only array in memory.

    Shapes: -> uint8[size of the file]
    Errors: OSError
    """
    return np.frombuffer(path.read_bytes(), np.uint8)


def release(array: Array) -> None:
    """Give the memory of an array back to the system, if it is a view of a mapped file.

    The array stays good: what is read again comes from the file again.
    """
    mapping = _mapping(array)
    if mapping is None or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapping, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    start = (low - base) // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start, high - base - start)


def offset_in_file(array: Array, path: Path) -> int | None:
    """Return where in a file the first element of an array lies that is a view of its mapping."""
    mapping = _mapping(array)
    if not isinstance(mapping, _FileMap) or mapping.path != path.resolve():
        return None
    offset: int = array.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    return offset


def _mapping(array: Array) -> mmap.mmap | None:
    """Return the mapping that an array is a view of."""
    owner: object = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
