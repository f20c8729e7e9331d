"""Take the weights out of an ONNX file before protobuf copies them.

The file's bytes come in. The same model goes out, with external data in place of the raw data of
large tensors. The location is the model's own file (OWN_FILE), and `tensors` takes views of it.
Damaged bytes stay unchanged, so that protobuf reports the error.
Source: the protobuf wire format (protobuf.dev/programming-guides/encoding), onnx.proto
"""

from __future__ import annotations

LARGE_BYTES = 1024
"""The least bytes of raw data that become a view of the file."""
OWN_FILE = "\0"
"""The location of external data in the model's own file; no file of a folder can have this name."""

_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph"},
}
"""The fields of nested messages, by message and number of field."""
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5

Piece = bytes | memoryview


class _Damaged(Exception):
    """The bytes are not valid protobuf."""


def strip(data: memoryview) -> bytes:
    """Return a model's bytes without the raw data of its large tensors."""
    try:
        pieces = _message(data, 0, len(data), "model")
    except (_Damaged, RecursionError):
        return bytes(data)
    return b"".join(pieces)


def _message(data: memoryview, start: int, end: int, kind: str) -> list[Piece]:
    """Return a message between two offsets as pieces: parts of the file, and replacements."""
    if kind == "tensor":
        return _tensor(data, start, end)
    inside = _INSIDE[kind]
    pieces: list[Piece] = []
    kept = start
    for number, wire, at, first, after in _fields(data, start, end):
        if wire == _LENGTH and number in inside and after - first >= LARGE_BYTES:
            made = _message(data, first, after, inside[number])
            pieces += [data[kept:at], _varint(number << 3 | _LENGTH)]
            pieces += [_varint(sum(map(len, made))), *made]
            kept = after
    return [*pieces, data[kept:end]]


def _tensor(data: memoryview, start: int, end: int) -> list[Piece]:
    fields = list(_fields(data, start, end))
    raw = [field for field in fields if field[0] == _RAW_DATA and field[1] == _LENGTH]
    placed = any(number in (_EXTERNAL_DATA, _DATA_LOCATION) for number, *_ in fields)
    if placed or len(raw) != 1 or raw[0][4] - raw[0][3] < LARGE_BYTES:
        return [data[start:end]]
    _, _, at, first, after = raw[0]
    entries = {"location": OWN_FILE, "offset": str(first), "length": str(after - first)}
    made = [_field(_EXTERNAL_DATA, _entry(key, text)) for key, text in entries.items()]
    return [data[start:at], data[after:end], *made, _varint(_DATA_LOCATION << 3), b"\x01"]


def _entry(key: str, value: str) -> bytes:
    """Return a StringStringEntryProto."""
    return _field(1, key.encode()) + _field(2, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(content)) + content


def _fields(data: memoryview, start: int, end: int) -> list[tuple[int, int, int, int, int]]:
    """Yield each field's number, wire type, and where tag, content and the next field begin."""
    found = []
    at = start
    while at < end:
        tag, first = _number(data, at, end)
        wire = tag & 7
        if wire == _VARINT:
            _, after = _number(data, first, end)
        elif wire == _LENGTH:
            size, first = _number(data, first, end)
            after = first + size
        elif wire in (_I64, _I32):
            after = first + (8 if wire == _I64 else 4)
        else:
            raise _Damaged
        if after > end or tag >> 3 == 0:
            raise _Damaged
        found.append((tag >> 3, wire, at, first, after))
        at = after
    return found


def _number(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Read a varint; return it and the offset after it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise _Damaged


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
