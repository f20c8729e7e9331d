"""Object code into memory, without LLVM: what loading kernels from the cache needs.

An object of ours (ELF for x86-64, LLVM's large code model) is a few sections and, almost always,
absolute relocations, so linking is: lay the sections out, write addresses, make the memory
executable and read-only. On other machines and systems jit.py has LLVM link.
Source: System V ABI, AMD64 supplement, 4.4 (relocations); ELF-64 Object File Format 1.5
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trireme.support.errors import CompileError

_SECTION, _SYMBOL, _RELOCATION = (struct.Struct(f) for f in ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))
_RELA, _NOBITS, _SYMBOLS = 4, 8, 2
_ALLOC = 2
_EXTERNAL, _ABSOLUTE = 0, 0xFFF1
_KINDS = {
    1: ("<Q", False),
    2: ("<i", True),
    4: ("<i", True),
    10: ("<I", False),
    11: ("<i", False),
    24: ("<q", True),
}
"""Relocations: the size written, and whether it is relative to its place (R_X86_64_PC32 ...)."""
_UNWIND = ".eh_frame"
"""Not loaded: nothing unwinds through kernels."""


def can_link(data: bytes) -> bool:
    """Whether `Linked` takes an object: little-endian ELF-64, relocatable, x86-64, on Linux."""
    head = data[:20]
    return sys.platform == "linux" and head[:6] == b"\x7fELF\x02\x01" and head[16:20] == b"\1\0>\0"


@dataclass(frozen=True)
class _Object:
    data: bytes
    sections: Sequence[tuple[int, ...]]
    names: Sequence[str]

    def symbols(self, table: int) -> list[tuple[str, int, int]]:
        """Return name, section and value of each symbol."""
        _, _, _, _, offset, size, strings, *_ = self.sections[table]
        start = self.sections[strings][4]
        return [
            (_text(self.data, start + name), section, value)
            for name, _, _, section, value, _ in _SYMBOL.iter_unpack(
                self.data[offset : offset + size]
            )
        ]


class Linked:
    """Some objects in executable memory, as long as this lives.

    addresses: of their functions, by symbol
    Errors: CompileError, if an object holds a section or relocation that is not expected
    """

    def __init__(self, objects: Sequence[bytes]) -> None:
        self.addresses: dict[str, int] = {}
        parsed = [_parse(data) for data in objects]
        places, nbytes = _lay_out(parsed)
        self._memory = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._base = np.frombuffer(self._memory, np.uint8).ctypes.data
        for one, at in zip(parsed, places, strict=True):
            for index, offset in at.items():
                _, kind, _, _, start, size, *_ = one.sections[index]
                if kind != _NOBITS:
                    self._memory[offset : offset + size] = one.data[start : start + size]
        for one, at in zip(parsed, places, strict=True):
            self._relocate(one, at)
        self._make_executable(nbytes)

    def _relocate(self, one: _Object, at: dict[int, int]) -> None:
        values: list[int] = []
        for index, section in enumerate(one.sections):
            if section[1] == _SYMBOLS:
                symbols = one.symbols(index)
                values = [self._value(symbol, at) for symbol in symbols]
                found = zip(symbols, values, strict=True)
                self.addresses |= {n: v for (n, s, _), v in found if n and s in at}
        for _, kind, _, _, offset, size, _, target, *_ in one.sections:
            if kind != _RELA or target not in at:
                continue
            for where, info, addend in _RELOCATION.iter_unpack(one.data[offset : offset + size]):
                self._write(at[target] + where, info & 0xFFFFFFFF, values[info >> 32] + addend)

    def _value(self, symbol: tuple[str, int, int], at: dict[int, int]) -> int:
        name, section, value = symbol
        if section in at:
            return self._base + at[section] + value
        if section == _ABSOLUTE or not name:
            return value
        if section != _EXTERNAL:
            return 0  # in a section that is not loaded
        try:
            external = getattr(ctypes.CDLL(None), name)
        except AttributeError:
            raise CompileError(f"cpu: object code needs {name!r}, which is nowhere") from None
        return ctypes.cast(external, ctypes.c_void_p).value or 0

    def _write(self, offset: int, kind: int, value: int) -> None:
        if kind not in _KINDS:
            raise CompileError(f"cpu: object code has a relocation of type {kind}")
        form, is_relative = _KINDS[kind]
        try:
            struct.pack_into(
                form, self._memory, offset, value - (self._base + offset) * is_relative
            )
        except struct.error:
            raise CompileError("cpu: object code reaches for what is too far away") from None

    def _make_executable(self, nbytes: int) -> None:
        call = ctypes.CDLL(None, use_errno=True).mprotect
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if call(self._base, max(nbytes, 1), mmap.PROT_READ | mmap.PROT_EXEC):
            raise CompileError(
                f"cpu: memory cannot be made executable (errno {ctypes.get_errno()})"
            )


def _parse(data: bytes) -> _Object:
    try:
        (start,) = struct.unpack_from("<Q", data, 40)
        _, count, strings = struct.unpack_from("<HHH", data, 58)
        sections = [_SECTION.unpack_from(data, start + k * _SECTION.size) for k in range(count)]
        base = sections[strings][4]
        return _Object(data, sections, [_text(data, base + section[0]) for section in sections])
    except (struct.error, IndexError, ValueError) as error:
        raise CompileError(f"cpu: object code is damaged: {error}") from error


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _lay_out(objects: Sequence[_Object]) -> tuple[list[dict[int, int]], int]:
    """Return where each loaded section of each object begins, and the bytes of all."""
    places, end = [], 0
    for one in objects:
        at: dict[int, int] = {}
        for index, section in enumerate(one.sections):
            if section[2] & _ALLOC and one.names[index] != _UNWIND:
                step = max(section[8], 16)
                at[index] = end = -(-end // step) * step
                end += section[5]
        places.append(at)
    return places, end
