"""Build kernels and keep the binaries: in memory by kernel, on disk by program, behind a digest.

A binary that does not match its digest, or that the driver refuses, is removed and built again.
Writing is atomic and best effort: a full disk costs time, not the run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trireme.errors import CompileError

log = logging.getLogger(__name__)

VERSION = "1"
"""Part of the key; changes when what a cache entry holds changes."""

_ERROR_LINE = (
    re.compile(r":(\d+):\d+: (?:fatal )?error"),
    re.compile(r"error: [^\n]*?:(\d+):\d+: "),
    re.compile(r"line (\d+): error"),
    re.compile(r"\((\d+)\)\s*: error"),
)
_LOG_LINES = 12


def default_folder() -> Path | None:
    """Return the user's cache folder, None where there is no home."""
    try:
        return Path.home() / ".cache" / "trireme" / "opencl"
    except RuntimeError:
        return None


class Programs:
    """Built kernels of one device. Safe to use from several threads."""

    def __init__(
        self, context: Any, device: Any, identity: str, options: list[str], folder: Path | None
    ) -> None:
        self.context, self.device = context, device
        self.identity, self.options = identity, options
        self.folder = folder / f"v{VERSION}" if folder is not None else None
        self.built: dict[str, Any] = {}
        self.lock = threading.Lock()

    def build(self, kernels: Mapping[str, str], prelude: str) -> dict[str, Any]:
        """Return the program of each kernel, by name; those not built yet go into one program.

        `kernels` maps names to source; the same name always means the same source.
        Errors: CompileError, with the head of the log and the source line
        """
        with self.lock:
            missing = sorted(name for name in kernels if name not in self.built)
            if missing:
                source = "\n".join([prelude, *(kernels[name] for name in missing)])
                program = self._program(source)
                self.built.update(dict.fromkeys(missing, program))
            return {name: self.built[name] for name in kernels}

    def _program(self, source: str) -> Any:
        key = "\0".join([VERSION, self.identity, *self.options, source])
        path = None
        if self.folder is not None:
            path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()}.bin"
            cached = self._load(path)
            if cached is not None:
                return cached
        program = self._compile(source)
        if path is not None:
            self._store(path, program)
        return program

    def _compile(self, source: str) -> Any:
        import pyopencl as cl

        try:
            return cl.Program(self.context, source).build(
                self.options, [self.device], cache_dir=False
            )
        except cl.RuntimeError as error:
            raise build_error(str(error), source) from error

    def _load(self, path: Path) -> Any:
        import pyopencl as cl

        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, binary = data[:32], data[32:]
        if hashlib.sha256(binary).digest() != digest:
            log.warning("opencl: a damaged program was removed from the cache: %s", path.name)
            path.unlink(missing_ok=True)
            return None
        try:
            return cl.Program(self.context, [self.device], [binary]).build(cache_dir=False)
        except cl.Error as error:
            log.warning("opencl: the driver refused a cached program (%s)", error)
            path.unlink(missing_ok=True)
            return None

    def _store(self, path: Path, program: Any) -> None:
        import pyopencl as cl

        try:
            binary = program.get_info(cl.program_info.BINARIES)[0]
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(binary).digest() + binary)
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except (OSError, cl.Error) as error:
            log.warning("opencl: a program is not cached: %s", error)


def build_error(message: str, source: str) -> CompileError:
    """Return a CompileError with the head of a build log and the source line of its first error."""
    lines = [line for line in message.splitlines() if line.strip()]
    facts = [f"log: {line}" for line in lines[:_LOG_LINES]]
    for pattern in _ERROR_LINE:
        match = pattern.search(message)
        if match:
            number = int(match.group(1))
            texts = source.splitlines()
            if 1 <= number <= len(texts):
                facts.append(f"source line {number}: {texts[number - 1].strip()}")
            break
    return CompileError("the OpenCL driver did not build a kernel", facts=facts)
