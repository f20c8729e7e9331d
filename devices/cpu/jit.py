"""From kernels as IR text to addresses of machine code, with the object code kept on disk.

A `Jit` serves one instruction set. Kernels that it has seen are not compiled again, in this process
(a table) or another (the object cache). New ones are compiled by all CPUs (emit.py).
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import llvmlite.binding as llvm

from trireme.device import Progress, no_progress
from trireme.devices.cpu.emit import Code, machine_for, module_text, objects, optimised
from trireme.devices.cpu.target import Isa, llvm_target, physical_threads, start_llvm
from trireme.disk_cache import DiskCache
from trireme.errors import CompileError

_MOST_OBJECTS = 20_000
"""Kept on disk; one is some kilobytes, and a network makes 20 to 100."""

__all__ = ["Code", "Jit", "ObjectCache"]

log = logging.getLogger(__name__)

CODE_VERSION = 2
"""Raised when generated code changes in a way that its IR text does not show (LLVM options)."""


class ObjectCache(DiskCache):
    """Object files in a private folder; None to keep none."""

    def __init__(self, folder: pathlib.Path | None) -> None:
        super().__init__(folder, ".o", _MOST_OBJECTS)


class Jit:
    """Compiles kernels for one instruction set and keeps their code while it lives."""

    def __init__(self, isa: Isa, version: str, cache: ObjectCache) -> None:
        self.isa = isa
        self._cache = cache
        self._lock = threading.Lock()
        self._engine: Any = None
        self._addresses: dict[str, int] = {}
        cpu, features = llvm_target(isa)
        llvm_version = ".".join(map(str, llvm.llvm_version_info))
        self._key = f"{version} {CODE_VERSION} {llvm_version} {cpu} {features} {isa.name}"

    def addresses(
        self, kernels: Iterable[Code], progress: Progress = no_progress
    ) -> dict[str, int]:
        """Return where the code of each kernel begins, by symbol; compile what is not known.

        Errors: CompileError, if LLVM refuses the IR
        """
        with self._lock:
            new = {k.symbol: k for k in kernels if k.symbol not in self._addresses}
            if new:
                self._link(list(new.values()), list(new), progress)
            return self._addresses

    def functions(self, code: Code, names: Sequence[str]) -> list[int]:
        """Return where functions begin that a piece of IR defines under names of their own."""
        with self._lock:
            self._link([code], names, no_progress)
            return [self._addresses[name] for name in names]

    def assembly(self, kernel: Code) -> str:
        """Return the machine code of a kernel as text."""
        machine = machine_for(self.isa)
        text: str = machine.emit_assembly(optimised(module_text(self.isa, kernel), machine))
        return text

    def _link(self, kernels: Sequence[Code], symbols: Sequence[str], progress: Progress) -> None:
        if self._engine is None:
            start_llvm()
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, machine_for(self.isa))
        for data in self._objects(kernels, progress):
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        for symbol in symbols:
            address = self._engine.get_function_address(symbol)
            if not address:
                raise CompileError(f"cpu: LLVM lost kernel {symbol}")
            self._addresses[symbol] = address

    def _objects(self, kernels: Sequence[Code], progress: Progress) -> Iterator[bytes]:
        """Yield the object file of every kernel: those on disk first, then those made now."""
        keys = {kernel.symbol: self._cache_key(kernel) for kernel in kernels}
        new = []
        for kernel in kernels:
            data = self._cache.load(keys[kernel.symbol])
            if data is None:
                new.append(kernel)
            else:
                yield data
        made = objects(self.isa, new, physical_threads())
        for done, (kernel, data) in enumerate(zip(new, made, strict=True)):
            progress("compiling kernels", done + 1, len(new))
            self._cache.store(keys[kernel.symbol], data)
            yield data

    def _cache_key(self, kernel: Code) -> str:
        return hashlib.sha256(f"{self._key}\n{kernel.name}\n{kernel.digest}".encode()).hexdigest()
