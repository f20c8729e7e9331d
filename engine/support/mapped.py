"""The files of a model as read-only arrays, mapped into memory or read.

Weights of a model are views of its files. Once a device has packed its weights it no longer reads
them, so it gives their pages back with `release`. A later read loads a page from the file again.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.records import dataclass

ALIGNMENT = 64
"""Alignment in bytes of the memory of a file that is read, so weights keep the file's alignment."""

Stamp = tuple[int, ...]
"""The identity of a file: device, inode, size in bytes, times of change in ns."""


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file of a model as it was opened.

    data: its bytes, read-only, uint8[size]
    stamp: of the opened file; the file at `path` is the same while `stamp_of` returns this stamp
    """

    path: Path
    data: Array
    stamp: Stamp


OnOpen = Callable[[OpenFile], None]
"""Called with every file that a model is read from."""


def ignore_file(file: OpenFile) -> None:
    """Ignore a file that was opened: the `OnOpen` of callers without a record."""


def open_file(path: Path, use_mmap: bool = True) -> OpenFile:
    """Return a file's bytes, mapped into memory or read.

    While its bytes are in use, a mapped file may be replaced or removed. The system ends the
    process if the file is truncated or overwritten in place.
    Errors: OSError, also for a file that is not a regular one
    """
    if path.exists() and not path.is_file():  # opening a pipe waits for a writer
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        data = _mapped(file) if use_mmap and status.st_size else _read(file, status.st_size)
    return OpenFile(path, data, _stamp(status))


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of the file at a path now; None where no file can be read."""
    try:
        return _stamp(path.stat())
    except OSError:
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _mapped(file: io.BufferedReader) -> Array:
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _read(file: io.BufferedReader, nbytes: int) -> Array:
    data = aligned(nbytes)
    count = file.readinto(data.data)
    if count != nbytes:
        raise OSError(errno.EIO, f"it shrank from {nbytes} to {count} bytes while it was read")
    data.flags.writeable = False
    return data


def aligned(nbytes: int) -> Array:
    """Return memory that begins on an aligned address.

    Shapes: -> uint8[nbytes]
    """
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def release(array: Array) -> None:
    """Give the memory of an array back to the system, if the array is a view of a mapped file.

    The array stays valid: a later read loads the bytes from the file again.
    """
    mapping = _mapping(array)
    if mapping is None or not array.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    base = np.frombuffer(mapping, np.uint8).ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array)
    start = (low - base) // mmap.PAGESIZE * mmap.PAGESIZE
    mapping.madvise(mmap.MADV_DONTNEED, start, high - base - start)


def offset_in(array: Array, file: OpenFile) -> int | None:
    """Return the file offset of an array's first element; None if it is no view of the file."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start, end = np.lib.array_utils.byte_bounds(file.data)
    return array.ctypes.data - start if start <= low and high <= end else None


def _mapping(array: Array) -> mmap.mmap | None:
    """Return the mapping that an array is a view of."""
    owner: object = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
