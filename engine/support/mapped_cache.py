"""Cache entries that are mapped into memory, for data that is large and read in place.

An entry is a head, read and checked whole, and data behind the head. The data begins on a multiple
of 64 bytes. Sums of its words are checked, which takes as long as reading the data. The folder and
the files are those of a DiskCache, with its rules.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trireme.support.cache_events import count_cache_event
from trireme.support.disk_cache import DiskCache, open_own
from trireme.support.dtypes import Array

ALIGNMENT = 64
_BLOCK_WORDS = 1 << 17
"""Words that have a sum of their own."""
_SIZES = struct.Struct("<QQQ")
"""Bytes of the head, the number of arrays, bytes of their sums."""
_DIGEST_BYTES = 32


class MappedCache(DiskCache):
    """Heads and data by key."""

    def load_mapped(self, key: str) -> tuple[bytes, Array] | None:
        """Return the head and the data under the key, None when they are absent or damaged.

        Shapes: -> data uint8[bytes], read-only, in the file; the file may be replaced or removed
        """
        if self._folder is None:
            return None
        found = self._load_mapped(self._folder, key)
        count_cache_event(self._suffix, "miss" if found is None else "hit")
        return found

    def _load_mapped(self, folder: Path, key: str) -> tuple[bytes, Array] | None:
        path = self._path(folder, key)
        try:
            raw = _mapped(path)
        except OSError:
            return None
        found = None if raw is None else _checked(raw)
        if found is None:
            self._refuse(key, damaged=raw is not None)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # pruning removes the oldest
        return found

    def store_mapped(self, key: str, head: bytes, data: Sequence[Array]) -> None:
        """Store a head, and arrays one behind the other, each from a multiple of 64 bytes on."""
        if self._folder is not None:
            self._write(key, list(_pieces(head, data)))


def padded(nbytes: int) -> int:
    """Return the bytes that an array takes in the data of an entry."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _pieces(head: bytes, data: Sequence[Array]) -> Iterable[bytes | memoryview]:
    """Yield the bytes of an entry: digest, sizes, lengths and sums of the data, head, data."""
    flat = [_whole_lines(np.ascontiguousarray(array)) for array in data]
    lengths = np.array([len(part) for part in flat], "<u8").tobytes()
    sums = b"".join(map(_sums, flat))
    body = _SIZES.pack(len(head), len(flat), len(sums)) + lengths + sums + head
    start = _DIGEST_BYTES + len(body)
    yield hashlib.sha256(body).digest() + body + bytes(padded(start) - start)
    for part in flat:
        yield part.data


def _whole_lines(array: Array) -> Array:
    """Return the bytes of an array, with zeros up to a multiple of 64."""
    raw = array.reshape(-1).view(np.uint8)
    missing = padded(len(raw)) - len(raw)
    return np.concatenate([raw, np.zeros(missing, np.uint8)]) if missing else raw


def _sums(data: Array) -> bytes:
    """Return the sum of each block of words, modulo 2**64."""
    words = data.view("<u8")
    count = len(words) // _BLOCK_WORDS * _BLOCK_WORDS
    blocks = np.add.reduce(words[:count].reshape(-1, _BLOCK_WORDS), axis=1, dtype=np.uint64)
    rest = np.add.reduce(words[count:], dtype=np.uint64)
    return bytes(blocks.astype("<u8").tobytes()) + int(rest).to_bytes(8, "little")


def _checked(raw: Array) -> tuple[bytes, Array] | None:
    """Return the head and the data of an entry's bytes, None where a check fails."""
    before = _DIGEST_BYTES + _SIZES.size
    if len(raw) < before:
        return None
    head_bytes, count, sums_bytes = _SIZES.unpack_from(raw.data, _DIGEST_BYTES)
    if max(head_bytes, count, sums_bytes) > len(raw):
        return None
    sums_at = before + 8 * count
    head_at = sums_at + sums_bytes
    start = head_at + head_bytes
    body = raw[_DIGEST_BYTES:start].tobytes()
    if hashlib.sha256(body).digest() != raw[:_DIGEST_BYTES].tobytes():
        return None
    data, at, found = raw[padded(start) :], 0, []
    for length in np.frombuffer(raw[before:sums_at].tobytes(), "<u8").tolist():
        if at + length > len(data):
            return None
        found.append(_sums(data[at : at + length]))
        at += length
    if at != len(data) or b"".join(found) != raw[sums_at:head_at].tobytes():
        return None
    return raw[head_at:start].tobytes(), data


def _mapped(path: Path) -> Array | None:
    """Return a file's bytes, mapped; None where another user could write it. Errors: OSError"""
    file = open_own(path)
    if file is None:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.empty(0, np.uint8)
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(file.fileno(), size, flags, mmap.PROT_READ), np.uint8)
