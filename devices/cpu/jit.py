"""From kernels as IR text to addresses of machine code, with the object code kept on disk.

A `Jit` serves one instruction set. Kernels that it has seen are not compiled again, in this process
(a table) or another (the object cache). LLVM works under a lock of llvmlite, so compiling in
several threads gains nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import stat
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from trireme.devices.cpu.target import Isa, llvm_target, start_llvm
from trireme.errors import CompileError

_MOST_OBJECTS = 20_000
"""Kept on disk; one is some kilobytes, and a network makes 20 to 100."""

log = logging.getLogger(__name__)

CODE_VERSION = 2
"""Raised when generated code changes in a way that its IR text does not show (LLVM options)."""


@dataclass(frozen=True)
class Code:
    """A kernel as IR text that defines `@name` once; `symbol` tells apart kernels of one name."""

    name: str
    text: str

    @property
    def symbol(self) -> str:
        """The name in the object file: the kernel's name and a hash of its text."""
        return f"{self.name}.{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


class ObjectCache:
    """Object files in a private folder, each behind the SHA-256 of its bytes.

    A damaged object would crash the process when it is linked, so a file whose hash does not fit
    counts as absent and is removed.
    """

    def __init__(self, folder: pathlib.Path | None) -> None:
        self._folder = folder if folder is not None and _private(folder) else None
        if self._folder is not None:
            _prune(self._folder)

    def load(self, key: str) -> bytes | None:
        """Return the object stored under the key, None when it is absent or damaged."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}.o"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            with contextlib.suppress(OSError):
                os.utime(path)  # the oldest are pruned
            return data[32:]
        log.warning("cpu: a damaged object was removed from the cache: %s", path.name)
        path.unlink(missing_ok=True)
        return None

    def store(self, key: str, data: bytes) -> None:
        """Store an object, whole or not at all; a full or unwritable disk is only logged."""
        if self._folder is None:
            return
        try:
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, self._folder / f"{key}.o")
        except OSError as error:
            log.warning("cpu: object code is not cached: %s", error)


def _prune(folder: pathlib.Path) -> None:
    """Remove the objects that were not used for longest when there are too many."""
    with contextlib.suppress(OSError):
        files = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)]
        for _, path in sorted(files)[: max(len(files) - _MOST_OBJECTS, 0)]:
            os.unlink(path)


def _private(folder: pathlib.Path) -> bool:
    """Make the folder with mode 0700; whether it is ours alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        log.warning("cpu: object code is not cached: %s", error)
        return False
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    if ours and not stat.S_IMODE(status.st_mode) & 0o022:
        return True
    log.warning("cpu: object code is not cached: %s can be written by others", folder)
    return False


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

    def addresses(self, kernels: Iterable[Code]) -> dict[str, int]:
        """Return where the code of each kernel begins, by symbol; compile what is not known.

        Errors: CompileError, if LLVM refuses the IR
        """
        with self._lock:
            new = {k.symbol: k for k in kernels if k.symbol not in self._addresses}
            if new:
                self._link(list(new.values()), list(new))
            return self._addresses

    def functions(self, code: Code, names: Sequence[str]) -> list[int]:
        """Return where functions begin that a piece of IR defines under names of their own."""
        with self._lock:
            self._link([code], names)
            return [self._addresses[name] for name in names]

    def assembly(self, kernel: Code) -> str:
        """Return the machine code of a kernel as text."""
        machine = _machine(self.isa)
        text: str = machine.emit_assembly(_optimised(module_text(self.isa, [kernel]), machine))
        return text

    def _link(self, kernels: Sequence[Code], symbols: Sequence[str]) -> None:
        if self._engine is None:
            start_llvm()
            empty = llvm.parse_assembly("")
            self._engine = llvm.create_mcjit_compiler(empty, _machine(self.isa))
        for data in self._objects(kernels):
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()
        for symbol in symbols:
            address = self._engine.get_function_address(symbol)
            if not address:
                raise CompileError(f"cpu: LLVM lost kernel {symbol}")
            self._addresses[symbol] = address

    def _objects(self, kernels: Sequence[Code]) -> Iterable[bytes]:
        """Yield the object file of each kernel."""
        machine = None
        for kernel in kernels:
            key = hashlib.sha256(
                f"{self._key}\n{kernel.symbol}\n{kernel.text}".encode()
            ).hexdigest()
            data = self._cache.load(key)
            if data is None:
                machine = machine or _machine(self.isa)
                data = machine.emit_object(_optimised(module_text(self.isa, [kernel]), machine))
                self._cache.store(key, data)
            yield data


def module_text(isa: Isa, kernels: Sequence[Code]) -> str:
    """Return the IR of a module of kernels, under their symbols."""
    bits = isa.vector_bits
    functions = "\n".join(k.text.replace(f"@{k.name}(", f'@"{k.symbol}"(') for k in kernels)
    return (
        f"{functions}\n"
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}\n'
    )


def _machine(isa: Isa) -> Any:
    start_llvm()
    cpu, features = llvm_target(isa)
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, jit=True
    )


def _optimised(text: str, machine: Any) -> Any:
    """Parse and optimise IR. Loops are unrolled and vectorised by our generators, so variables in
    registers and combined instructions are all that is asked of LLVM: half the time of -O2, and
    kernels just as fast.
    """
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"cpu: LLVM refused a kernel: {error}") from error
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module
