"""Object code into memory, without LLVM: what loading kernels from the cache needs.

An object of ours (ELF for x86-64, LLVM's large code model) is a few sections and, almost always,
absolute relocations, so linking is: lay the sections out, write addresses, make the memory
executable and read-only. On other machines and systems jit.py has LLVM link.

`lay_out` does all that no address decides; its `Layout` can be stored. `Linked` puts one in memory.
Source: System V ABI, AMD64 supplement, 4.4 (relocations); ELF-64 Object File Format 1.5
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys
from collections.abc import Sequence

import numpy as np

from trireme.support.dtypes import Array
from trireme.support.errors import CompileError
from trireme.support.records import dataclass

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
_WORD = 1
"""The relocation that writes a whole address (R_X86_64_64)."""
_UNWIND = ".eh_frame"
"""Not loaded: nothing unwinds through kernels."""


def can_link(data: bytes) -> bool:
    """Whether `lay_out` takes an object: little-endian ELF-64, relocatable, x86-64, on Linux."""
    head = data[:20]
    return sys.platform == "linux" and head[:6] == b"\x7fELF\x02\x01" and head[16:20] == b"\1\0>\0"


External = tuple[int, int, str, int]
"""An address of another library to write: the offset, the relocation's kind, the symbol, an addend.
"""


@dataclass(frozen=True, eq=False)
class Layout:
    """The sections of some objects, one behind the other, and what is left to write.

    code: uint8[bytes]; all but the addresses below is written
    moved: int64[n, 3], the offset, the relocation's kind and the offset that it refers to
    symbols: the offset of each function
    """

    code: Array
    moved: Array
    externals: tuple[External, ...]
    symbols: dict[str, int]


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


def lay_out(objects: Sequence[bytes]) -> Layout:
    """Return the sections of objects one behind the other.

    Errors: CompileError, if an object holds a section or relocation that is not expected
    """
    parsed = [_parse(data) for data in objects]
    places, nbytes = _places(parsed)
    work = _Work(bytearray(max(nbytes, 1)))
    for one, at in zip(parsed, places, strict=True):
        for index, offset in at.items():
            _, kind, _, _, start, size, *_ = one.sections[index]
            if kind != _NOBITS:
                work.code[offset : offset + size] = one.data[start : start + size]
    for one, at in zip(parsed, places, strict=True):
        work.relocate(one, at)
    moved = np.array(work.moved, np.int64).reshape(-1, 3)
    code = np.frombuffer(work.code, np.uint8)
    return Layout(code, moved, tuple(work.externals), work.symbols)


class _Work:
    """A layout while it is made."""

    def __init__(self, code: bytearray) -> None:
        self.code = code
        self.moved: list[tuple[int, int, int]] = []
        self.externals: list[External] = []
        self.symbols: dict[str, int] = {}

    def relocate(self, one: _Object, at: dict[int, int]) -> None:
        """Write the relocations of an object that no address decides, and note the others."""
        symbols: list[tuple[str, int, int]] = []
        for index, section in enumerate(one.sections):
            if section[1] == _SYMBOLS:
                symbols = one.symbols(index)
                self.symbols |= {n: at[s] + value for n, s, value in symbols if n and s in at}
        for _, kind, _, _, offset, size, _, target, *_ in one.sections:
            if kind != _RELA or target not in at:
                continue
            for where, info, addend in _RELOCATION.iter_unpack(one.data[offset : offset + size]):
                name, section, value = symbols[info >> 32]
                self._place(
                    at[target] + where, info & 0xFFFFFFFF, name, at.get(section), section, value,
                    addend,
                )  # fmt: skip

    def _place(
        self,
        offset: int,
        kind: int,
        name: str,
        home: int | None,
        section: int,
        value: int,
        addend: int,
    ) -> None:
        """Write one relocation, or note it."""
        if kind not in _KINDS:
            raise CompileError(f"cpu: object code has a relocation of type {kind}")
        form, is_relative = _KINDS[kind]
        if home is None:
            if section == _EXTERNAL and name:
                self.externals.append((offset, kind, name, addend))
                return
            fixed = value if section == _ABSOLUTE or not name else 0  # in no section of ours
            _write(self.code, form, offset, fixed + addend)
            return
        to = home + value + addend
        if is_relative:
            _write(self.code, form, offset, to - offset)
        else:
            self.moved.append((offset, kind, to))


class Linked:
    """A layout in executable memory, as long as this lives.

    base: where it begins; addresses: of its functions, by symbol
    Errors: CompileError, if the system has no such symbol or memory
    """

    def __init__(self, layout: Layout) -> None:
        nbytes = len(layout.code)
        self._memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        code = np.frombuffer(self._memory, np.uint8)
        self.base: int = code.ctypes.data
        code[:] = layout.code
        offsets, kinds, targets = layout.moved.T
        words = offsets[kinds == _WORD]
        places = words[:, None] + np.arange(8)
        addresses = (targets[kinds == _WORD] + self.base).astype("<i8")
        code[places] = addresses.view(np.uint8).reshape(-1, 8)
        for offset, kind, target in layout.moved[kinds != _WORD].tolist():
            _write(self._memory, _KINDS[kind][0], offset, self.base + target)
        for offset, kind, name, addend in layout.externals:
            form, is_relative = _KINDS[kind]
            value = _external(name) + addend
            _write(self._memory, form, offset, value - (self.base + offset) * is_relative)
        self.addresses = {name: self.base + at for name, at in layout.symbols.items()}
        self._make_executable(nbytes)

    def _make_executable(self, nbytes: int) -> None:
        call = ctypes.CDLL(None, use_errno=True).mprotect
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if call(self.base, nbytes, mmap.PROT_READ | mmap.PROT_EXEC):
            raise CompileError(
                f"cpu: memory cannot be made executable (errno {ctypes.get_errno()})"
            )


def _external(name: str) -> int:
    try:
        found = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise CompileError(f"cpu: object code needs {name!r}, which is nowhere") from None
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def _write(memory: bytearray | mmap.mmap, form: str, offset: int, value: int) -> None:
    try:
        struct.pack_into(form, memory, offset, value)
    except struct.error:
        raise CompileError("cpu: object code reaches for what is too far away") from None


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


def _places(objects: Sequence[_Object]) -> tuple[list[dict[int, int]], int]:
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
