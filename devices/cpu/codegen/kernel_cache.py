"""Kernels by recipe: which function writes a kernel, and with which arguments.

The function sees nothing but its arguments. So the recipe decides everything about the IR, and
earlier code of the recipe is found without writing the IR. Lowerings ask `KernelCache.kernel`. It
returns what the function returns: a Code, or one and some numbers. If the object code of the recipe
is on disk, so are its name and the numbers, and the function is not called. Else the IR of the
function waits here until it is compiled. A Code can write its IR again whenever someone wants to
read it.

A key holds the recipe (`encoded`), the instruction set, the CPU if code is made for the one at
hand, LLVM's library and the text of the source that writes kernels: a change of any makes new
entries. Change times are no part of it, so that another checkout of the same source finds them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from trireme import support
from trireme.devices.cpu.codegen.ir import Word
from trireme.devices.cpu.codegen.target import Isa, llvm_identity, machine_identity
from trireme.support.disk_cache import DiskCache
from trireme.support.errors import InternalError
from trireme.support.records import dataclass

P = ParamSpec("P")
R = TypeVar("R")
_MOST_OBJECTS = 80_000
"""Kept on disk; one is some kilobytes, a network makes 20 to 100, the tests more than 20,000."""
_LENGTH = struct.Struct("<Q")
_PLAIN = (bool, int, str, type(None))
_DEVICE = Path(__file__).parents[1]
_ROOMS = ("backend", "ir", "ops", "placement/shards", "support")
_SOURCES = (_DEVICE, *(Path(support.__path__[0]).parent / room for room in _ROOMS))
"""The folders whose source writes kernels: the cpu device, and the rooms that makers import."""


@dataclass(frozen=True, eq=False)
class Code:
    """A kernel: its name, a digest that tells it from all others, and a way to write its IR.

    write: returns IR that defines `@name` once
    """

    name: str
    digest: str
    write: Callable[[], str]

    @property
    def text(self) -> str:
        """The IR; written anew each time."""
        return self.write()

    @property
    def symbol(self) -> str:
        """The name in the object file: the kernel's name and part of the digest, which tells apart
        kernels of one name.
        """
        return f"{self.name}.{self.digest[:16]}"


def code_of(name: str, text: str) -> Code:
    """Return IR as a Code that is known by its text."""
    return Code(name, hashlib.sha256(f"{name}\n{text}".encode()).hexdigest(), lambda: text)


class ObjectCache(DiskCache):
    """Object code in a private folder, with what its maker returned; None to keep none."""

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder, ".o", _MOST_OBJECTS)

    def load_made(self, key: str) -> tuple[str, Any, bytes] | None:
        """Return a kernel's name, what its maker returned beside the Code, and the object code."""
        data = self.load(key)
        if data is None:
            return None
        (size,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + size
        name, shape = json.loads(data[_LENGTH.size : start])
        return name, shape, data[start:]

    def store_made(self, key: str, name: str, shape: Any, code: bytes) -> None:
        """Store what `load_made` returns."""
        head = json.dumps([name, shape]).encode()
        self.store(key, _LENGTH.pack(len(head)) + head + code)


class KernelCache:
    """The kernels of one instruction set: those asked for, those on disk."""

    def __init__(self, isa: Isa, cache: ObjectCache | None = None) -> None:
        self.isa = isa
        self._cache = ObjectCache(None) if cache is None else cache
        self._version = _version(isa)
        self._made: dict[str, Any] = {}
        self._shapes: dict[str, Any] = {}
        self._texts: dict[str, str] = {}
        self._objects: dict[str, bytes] = {}

    def kernel(self, make: Callable[Concatenate[Isa, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Return make(isa, *args): a Code, or a tuple of one and numbers.

        Errors: InternalError, if an argument has no exact form as text
        """
        recipe = encoded((make, args, tuple(named.items())))
        digest = hashlib.sha256(f"{encoded(self.isa)} {recipe}".encode()).hexdigest()
        if digest not in self._made:
            again = functools.partial(make, self.isa, *args, **named)
            self._made[digest] = self._stored(digest, again) or self._new(digest, again)
        found: R = self._made[digest]
        return found

    def found(self, problem: bytes, search: Callable[[], bytes]) -> bytes:
        """Return search(): bytes that take long to find and that follow from the problem alone.

        problem: the searcher, its subject, and everything that decides about the result
        """
        key = self._key(hashlib.sha256(b"search " + problem).hexdigest())
        known = self._cache.load(key)
        if known is None:
            known = search()
            self._cache.store(key, known)
        return known

    def object_of(self, code: Code) -> bytes | None:
        """Return a kernel's object code if it is kept; asked once, for it is given away."""
        digest = code.digest
        if digest in self._objects:
            return self._objects.pop(digest)
        found = self._cache.load_made(self._key(digest))
        return None if found is None else found[2]

    def waiting_text(self, code: Code) -> str | None:
        """Return the IR of a kernel that waits here to be compiled, else None; it is given away."""
        return self._texts.pop(code.digest, None)

    def text_of(self, code: Code) -> str:
        """Return a kernel's IR to compile."""
        return self.waiting_text(code) or code.text

    def keep(self, code: Code, data: bytes) -> None:
        """Store a kernel's object code."""
        self._cache.store_made(
            self._key(code.digest), code.name, self._shapes.get(code.digest), data
        )

    def _stored(self, digest: str, again: Callable[[], Any]) -> Any:
        found = self._cache.load_made(self._key(digest))
        if found is None:
            return None
        name, shape, self._objects[digest] = found
        code = Code(name, digest, lambda: _code_in(again()).text)
        return code if shape is None else (code, *shape)

    def _new(self, digest: str, again: Callable[[], Any]) -> Any:
        made = again()
        code = _code_in(made)
        self._texts[digest] = code.text
        self._shapes[digest] = None if isinstance(made, Code) else made[1:]
        known = Code(code.name, digest, lambda: _code_in(again()).text)
        return known if isinstance(made, Code) else (known, *made[1:])

    def _key(self, digest: str) -> str:
        return hashlib.sha256(f"{self._version}\n{digest}".encode()).hexdigest()


def _code_in(made: Any) -> Code:
    code = made if isinstance(made, Code) else made[0]
    if not isinstance(code, Code):
        raise InternalError(f"a maker of kernels returned {type(made).__name__}")
    return code


def encoded(value: Any) -> str:
    """Return text that is the same for equal arguments of a maker, and for no others.

    Errors: InternalError, for a value without such a form, which must not be an argument
    """
    if isinstance(value, float):
        return value.hex() if value == value else struct.pack("<d", value).hex()
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, Word):
        return value.text
    if isinstance(value, tuple):
        return f"({' '.join(map(encoded, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = (encoded(getattr(value, field.name)) for field in fields(value))
        return f"{type(value).__qualname__}({' '.join(parts)})"
    if isinstance(value, np.generic):
        return f"{value.dtype.str}:{value.tobytes().hex()}"
    if isinstance(value, np.ndarray) and not any(value.strides):  # the same number all over
        first = value[(slice(1),) * value.ndim]  # nothing of an empty array
        return f"{value.dtype.str}{value.shape}:{first.tobytes().hex()}"
    if isinstance(value, FunctionType) and "<" not in value.__qualname__:
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, Mapping):
        return encoded(tuple(sorted(value.items())))
    raise InternalError(f"a kernel's recipe has a {type(value).__name__}, which is no plain value")


def form_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array's dtype and shape as an array of zeros that takes no memory.

    For makers of kernels that look only at the form of an array.
    """
    return np.broadcast_to(np.zeros((), array.dtype), array.shape)


def formed(value: Any) -> Any:
    """Return a dataclass or tuple with the forms of the arrays in it."""
    if isinstance(value, np.ndarray):
        return form_of(value)
    if isinstance(value, tuple):
        return tuple(map(formed, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: formed(getattr(value, f.name)) for f in fields(value)})
    return value


def _version(isa: Isa) -> str:
    parts: Sequence[str] = (
        *map(sources_digest, _SOURCES),
        llvm_identity(),
        encoded(isa),
        sys.platform,
        platform.machine(),
        "" if isa.cpu else machine_identity(),
    )
    return "\n".join(parts)


@functools.cache
def sources_digest(folder: Path = _DEVICE) -> str:
    """Return a digest of the Python source in a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(folder)} {len(data)}\n".encode() + data)
    return digest.hexdigest()
