"""Arrays in .npz and .npy files, read a part after another: no file is in memory as a whole."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.errors import RunError

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile)
_FIX = "write it by numpy.savez or numpy.save, with an array for each input"


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array in a file.

    in_columns: whether the elements of the first axis are neighbours; such an array is read whole
    open: returns the file at the first element
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    in_columns: bool
    open: Callable[[], IO[bytes]]

    def parts(self, dims: tuple[int, ...], count: int) -> Iterator[Array]:
        """Yield `count` arrays of the shape `dims`, as they follow each other.

        Errors: RunError, if the file ends before or is damaged
        """
        try:
            with self.open() as file:
                if self.in_columns:
                    whole = _read(file, self.dtype, math.prod(self.shape))
                    yield from whole.reshape(self.shape[::-1]).T.reshape(count, *dims)
                    return
                for _ in range(count):
                    yield _read(file, self.dtype, math.prod(dims)).reshape(dims)
        except _UNREADABLE as error:
            raise _unreadable(self.path, error) from error


def stored_arrays(path: Path) -> Mapping[str, StoredArray]:
    """Return the arrays of a .npz file by name; that of a .npy file alone, by the name "".

    Errors: RunError, if the file cannot be read, or holds Python objects
    """
    try:
        if not zipfile.is_zipfile(path):
            return {"": _stored(path, partial(_file, path))}
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.endswith(".npy")]
        return {
            name.removesuffix(".npy"): _stored(path, partial(_member, path, name))
            for name in members
        }
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def _file(path: Path) -> IO[bytes]:
    return path.open("rb")


def _member(path: Path, name: str) -> IO[bytes]:
    return zipfile.ZipFile(path).open(name)


def _stored(path: Path, open_file: Callable[[], IO[bytes]]) -> StoredArray:
    with open_file() as file:
        shape, in_columns, dtype = _header(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")

    def at_start() -> IO[bytes]:
        file = open_file()
        _header(file)
        return file

    return StoredArray(path, shape, dtype, in_columns, at_start)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether columns lie together, and the dtype; reads to the first element."""
    try:
        version = np.lib.format.read_magic(file)
    except ValueError as error:
        raise ValueError("it has no array in numpy's format") from error
    if version not in _HEADERS:
        raise ValueError(f"it has version {version} of numpy's format")
    return _HEADERS[version](file)


def _read(file: IO[bytes], dtype: np.dtype[Any], count: int) -> Array:
    data = file.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise EOFError("it ends before its last sample")
    return np.frombuffer(data, dtype)


def _unreadable(path: Path, error: Exception) -> RunError:
    if isinstance(error, OSError):
        return RunError(f"{path} cannot be read as samples: {error.strerror or error}")
    return RunError(f"{path} cannot be read as samples: {error}", fix=_FIX)
