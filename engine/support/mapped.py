"""The files of a model as read-only arrays: mapped into memory or read, pages given back after use.

Weights of a model are views of its files. A device that has packed weights reads them no more, so
it gives their pages back with `release`; a page that is read again comes from the file again.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trireme.support.dtypes import Array

ALIGNMENT = 64
"""Where the memory of a file that is read begins: weights in it keep the alignment of the file."""

Stamp = tuple[int, ...]
"""What the system knows of a file: device, inode, size in bytes, times of change in ns."""


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file of a model as it was opened.

    data: its bytes, read-only, uint8[size]
    stamp: of the opened file; what is at `path` later is the same file while `stamp_of` says so
    """

    path: Path
    data: Array
    stamp: Stamp


OnOpen = Callable[[OpenFile], None]
"""Is told of every file that a model is read from."""


def ignore_file(file: OpenFile) -> None:
    """Remember nothing of a file that was opened."""


def open_file(path: Path, use_mmap: bool = True) -> OpenFile:
    """Return a file's bytes, mapped into memory or read.

    A mapped file may be replaced or removed, but must not be truncated or overwritten in place
    while its bytes are in use: the system would end the process.
    Errors: OSError, for a file that is not a regular one too
    """
    if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        data = _mapped(file) if use_mmap and status.st_size else _read(file, status.st_size)
    return OpenFile(path, data, _stamp(status))


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of the file at a path now; None where there is none to be read."""
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


def offset_in(array: Array, file: OpenFile) -> int | None:
    """Return where in a file the first element of an array lies that is a view of its bytes."""
    low, high = np.lib.array_utils.byte_bounds(array)
    start, end = np.lib.array_utils.byte_bounds(file.data)
    return array.ctypes.data - start if start <= low and high <= end else None


def _mapping(array: Array) -> mmap.mmap | None:
    """Return the mapping that an array is a view of."""
    owner: object = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    return owner
