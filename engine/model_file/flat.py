"""Decode a FlatBuffer without trusting a byte of it: verify and read in one pass.

In: the bytes of a graph. Out: nested dicts of plain Python values, one a table, with defaults
    filled in. Every offset, vtable, length, alignment and string is checked before it is followed.
    Each decoded byte is charged to a budget. So a buffer of shared or overlapping tables runs out
    of bytes before it fills the memory. Only the reader of this package calls it.

Source: FlatBuffers internals (tables, vtables, vectors, strings), version 25
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from trireme.model_file.layout import IDENTIFIER, MAX_TABLES
from trireme.model_file.tables import ROOT, SIZES, TABLES, Field, FieldForm

Table = dict[str, Any]

_U16_PAIR = struct.Struct("<HH")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_SCALARS = {code: struct.Struct(f"<{code}") for code in SIZES}


class FileDefect(Exception):
    """A defect of a file, and its path, which callers extend on the way out."""

    def __init__(
        self, problem: str, *, at: str = "", facts: Iterable[str] = (), fix: str = ""
    ) -> None:
        super().__init__(problem)
        self.facts = tuple(facts)
        self.fix = fix
        self.path: list[str] = [at]

    def within(self, step: str) -> None:
        """Put a step (".nodes[3]") in front of the path."""
        self.path.insert(0, step)

    @property
    def summary(self) -> str:
        """The path and the problem: "graphs[0].nodes[3].op: is missing"."""
        where = "".join(self.path).lstrip(".")
        return f"{where}: {self}" if where else str(self)


def decode(data: bytes) -> Table:
    """Return the root table.

    Errors: FileDefect, with the path of the field
    """
    return _Decoder(data).root()


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.bytes_left = self.size
        self.tables_left = MAX_TABLES
        self.strings: dict[int, str] = {}

    def root(self) -> Table:
        if self.size < 8 or self.data[4:8] != IDENTIFIER:
            raise FileDefect(f"identifier {self.data[4:8]!r}, expected {IDENTIFIER!r}")
        return self.table(self.target(0), ROOT)

    def charge(self, nbytes: int) -> None:
        self.bytes_left -= nbytes
        if self.bytes_left < 0:
            raise FileDefect("tables or vectors overlap")

    def target(self, at: int) -> int:
        """Follow the offset stored at a place inside the buffer."""
        offset: int = _U32.unpack_from(self.data, at)[0]
        place = at + offset
        if offset == 0 or place & 3 or place + 4 > self.size:
            raise FileDefect(f"offset {offset} at byte {at} leads outside or is misaligned")
        return place

    def table(self, at: int, name: str) -> Table:
        """Read the table at a 4-byte-aligned place whose first 4 bytes lie inside."""
        self.tables_left -= 1
        if self.tables_left < 0:
            raise FileDefect(f"more than {MAX_TABLES} tables")
        fields = TABLES[name]
        slots, table_size = self.slots(at, len(fields))
        self.charge(table_size)
        read: Table = {}
        for position, field in enumerate(fields):
            offset = slots[position] if position < len(slots) else 0
            try:
                if offset:
                    if offset < 4 or offset + field.width > table_size:
                        raise FileDefect(f"lies at {offset} of a table of {table_size} bytes")
                    read[field.name] = self.field(at + offset, field)
                elif field.required:
                    raise FileDefect("is missing")
                else:
                    read[field.name] = field.default
            except FileDefect as error:
                error.within(f".{field.name}")
                raise
        return read

    def slots(self, at: int, most: int) -> tuple[tuple[int, ...], int]:
        """Return the offsets of up to `most` fields (0: absent) and the table's size in bytes."""
        vtable = at - _I32.unpack_from(self.data, at)[0]
        if vtable < 0 or vtable & 1 or vtable + 4 > self.size:
            raise FileDefect(f"the vtable at {vtable} lies outside or is misaligned")
        vtable_size, table_size = _U16_PAIR.unpack_from(self.data, vtable)
        if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > self.size:
            raise FileDefect(f"the vtable at {vtable} has {vtable_size} bytes")
        if table_size < 4 or at + table_size > self.size:
            raise FileDefect(f"the table at {at} has {table_size} bytes")
        count = min((vtable_size - 4) // 2, most)
        return struct.unpack_from(f"<{count}H", self.data, vtable + 4), table_size

    def field(self, at: int, field: Field) -> Any:
        if at % field.width:
            raise FileDefect(f"misaligned at byte {at}")
        match field.form:
            case FieldForm.SCALAR:
                return _SCALARS[field.of].unpack_from(self.data, at)[0]
            case FieldForm.STRING:
                return self.string(self.target(at))
            case FieldForm.TABLE:
                return self.table(self.target(at), field.of)
            case FieldForm.SCALARS:
                start, count = self.vector(self.target(at), SIZES[field.of])
                return struct.unpack_from(f"<{count}{field.of}", self.data, start)
            case _:
                return self.elements(self.target(at), field)

    def vector(self, at: int, width: int) -> tuple[int, int]:
        """Return where the elements of the vector start and how many there are."""
        count: int = _U32.unpack_from(self.data, at)[0]
        start = at + 4
        if start % width or start + count * width > self.size:
            raise FileDefect(f"{count} elements of {width} bytes at {start} do not fit")
        self.charge(4 + count * width)
        return start, count

    def elements(self, at: int, field: Field) -> tuple[Any, ...]:
        start, count = self.vector(at, 4)
        read: list[Any] = []
        try:
            for place in range(start, start + 4 * count, 4):
                target = self.target(place)
                if field.form is FieldForm.STRINGS:
                    read.append(self.string(target))
                else:
                    read.append(self.table(target, field.of))
        except FileDefect as error:
            error.within(f"[{len(read)}]")
            raise
        return tuple(read)

    def string(self, at: int) -> str:
        """Read a string; a repeated string is decoded (and charged) once."""
        if at in self.strings:
            return self.strings[at]
        start, count = self.vector(at, 1)
        if start + count >= self.size or self.data[start + count]:
            raise FileDefect(f"the string of {count} bytes at {start} does not end in a zero")
        try:
            text = self.data[start : start + count].decode("utf-8")
        except UnicodeDecodeError as error:
            raise FileDefect(f"not UTF-8: {error.reason} at byte {error.start}") from error
        self.strings[at] = text
        return text
