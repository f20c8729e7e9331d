"""The frame of a .trm file: header, limits, and where the graph and the weights lie.

    0    magic b"TRIREME\\n"
    8    format version, u32
    12   CRC-32 (zlib) of the graph, u32
    16   size of the graph in bytes, u64
    24   offset of the weights, u64; a multiple of 64
    32   size of the weights in bytes, u64
    40   zeros up to 64
    64   the graph: a FlatBuffer of schema/trireme.fbs; zeros up to the weights
    ...  the weights, which end the file

Integers are little-endian. Used by the writer and the reader of this package only.
"""

from __future__ import annotations

import struct
import sys
import zlib

from trireme.support.errors import ModelFileError
from trireme.support.records import dataclass

MAGIC = b"TRIREME\n"
FORMAT_VERSION = 1
IDENTIFIER = b"TRM1"
HEADER_SIZE = 64
ALIGNMENT = 64
"""Bytes to which the weights, and each constant in them, are aligned: a cache line, a vector."""

MAX_GRAPH_BYTES = 128 << 20
"""The most bytes of the FlatBuffer; a graph of 100,000 nodes takes about 40 MiB."""
MAX_TABLES = 2_000_000
"""The most decoded tables (nodes, values, attributes, types), which bounds the reader's memory."""
MAX_RANK = 32
MAX_TENSOR_BYTES = 1 << 48
"""The most bytes of one tensor of known shape; also the limit of its non-zero dimensions'
product."""
MAX_NESTING = 32
"""The most bodies of control flow inside one another."""

_HEADER = struct.Struct("<8sIIQQQ24s")


@dataclass(frozen=True)
class Header:
    """The fields of the header; offsets and sizes in bytes."""

    graph_crc32: int
    graph_size: int
    weights_offset: int
    weights_size: int

    @classmethod
    def of(cls, graph: bytes, weights_size: int) -> Header:
        """Return the header for an encoded graph and weights of a size."""
        return cls(zlib.crc32(graph), len(graph), align(HEADER_SIZE + len(graph)), weights_size)

    def encode(self) -> bytes:
        """Return the 64 bytes that open the file."""
        sizes = (self.graph_size, self.weights_offset, self.weights_size)
        return _HEADER.pack(MAGIC, FORMAT_VERSION, self.graph_crc32, *sizes, bytes(24))

    @property
    def file_size(self) -> int:
        """The bytes of the whole file."""
        return self.weights_offset + self.weights_size


def align(offset: int) -> int:
    """Return the first multiple of ALIGNMENT that is not below the offset."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def read_header(start: bytes, file_size: int) -> Header:
    """Return the checked header of a file, given its first bytes and its size.

    Errors: ModelFileError, if it is not a .trm file, of another version, or truncated
    """
    if start[:8] != MAGIC:
        raise ModelFileError(
            "not a .trm file", facts=[f"starts with {start[:8]!r}, expected {MAGIC!r}"]
        )
    if len(start) < HEADER_SIZE:
        raise ModelFileError(f"header: {len(start)} bytes, expected {HEADER_SIZE}: truncated")
    fields = _HEADER.unpack(start[:HEADER_SIZE])
    version, header, reserved = fields[1], Header(*fields[2:6]), fields[6]
    if version != FORMAT_VERSION:
        raise ModelFileError(
            f"header.version: {version}, expected {FORMAT_VERSION}",
            fix="convert the model again, or read it with the trireme that wrote it",
        )
    if any(reserved):
        raise ModelFileError("header.reserved: not all zeros")
    if not 8 <= header.graph_size <= MAX_GRAPH_BYTES:
        raise ModelFileError(
            f"header.graph_size: {header.graph_size}, expected 8 to {MAX_GRAPH_BYTES}"
        )
    if header.weights_offset != align(HEADER_SIZE + header.graph_size):
        raise ModelFileError(
            f"header.weights_offset: {header.weights_offset}, expected "
            f"{align(HEADER_SIZE + header.graph_size)} after a graph of {header.graph_size} bytes"
        )
    if header.file_size != file_size:
        state = "truncated" if file_size < header.file_size else "followed by something else"
        raise ModelFileError(f"the file is {state}: {file_size} bytes, expected {header.file_size}")
    return header


def require_little_endian() -> None:
    """Raise ModelFileError on a big-endian machine, where mapped weights would be misread."""
    if sys.byteorder != "little":
        raise ModelFileError(".trm files need a little-endian machine, this one is big-endian")
