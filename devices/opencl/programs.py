"""Build kernels and cache the binaries: in memory by kernel, on disk by program (disk_cache.py).

A damaged or refused binary is removed and built again.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trireme.support.disk_cache import DiskCache
from trireme.support.errors import CompileError

log = logging.getLogger(__name__)

VERSION = "1"
"""A part of the key, changed with the content of entries."""

_ERROR_LINE = (
    re.compile(r":(\d+):\d+: (?:fatal )?error"),
    re.compile(r"error: [^\n]*?:(\d+):\d+: "),
    re.compile(r"line (\d+): error"),
    re.compile(r"\((\d+)\)\s*: error"),
)
_LOG_LINES = 12
_MOST_PROGRAMS = 2_000
"""The most programs on disk; one takes some 100 kilobytes, and a network has one a region."""


class Programs:
    """Built kernels of one device. Safe to use from several threads."""

    def __init__(
        self, context: Any, device: Any, identity: str, options: list[str], folder: Path | None
    ) -> None:
        self.context, self.device = context, device
        self.identity, self.options = identity, options
        folder = None if folder is None else folder / f"v{VERSION}"
        self.cache = DiskCache(folder, ".bin", _MOST_PROGRAMS)
        self.built: dict[str, Any] = {}
        self.lock = threading.Lock()

    def build(self, kernels: Mapping[str, str], prelude: str) -> dict[str, Any]:
        """Return the program of each kernel, by name; kernels without one are built as one program.

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
        text = "\0".join([VERSION, self.identity, *self.options, source])
        key = hashlib.sha256(text.encode()).hexdigest()
        program = self._load(key)
        if program is None:
            program = self._compile(source)
            self._store(key, program)
        return program

    def _compile(self, source: str) -> Any:
        import pyopencl as cl

        program = cl.Program(self.context, source)
        try:
            return self._quietly(
                lambda: program.build(self.options, [self.device], cache_dir=False)
            )
        except cl.RuntimeError as error:
            raise build_error(str(error), source) from error

    def _quietly(self, build: Callable[[], Any]) -> Any:
        """Return the built program; its compiler's remarks go to the log at DEBUG.

        NVIDIA's compiler remarks on every program, and pyopencl warns the user of each remark.
        """
        import pyopencl as cl

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program = build()
        if log.isEnabledFor(logging.DEBUG):
            remarks = str(program.get_build_info(self.device, cl.program_build_info.LOG)).strip()
            if remarks:
                log.debug("opencl: the compiler's remarks: %s", remarks)
        return program

    def _load(self, key: str) -> Any:
        import pyopencl as cl

        binary = self.cache.load(key)
        if binary is None:
            return None
        try:
            program = cl.Program(self.context, [self.device], [binary])
            return self._quietly(lambda: program.build(cache_dir=False))
        except cl.Error as error:
            log.warning("opencl: the driver refused a cached program (%s)", error)
            self.cache.remove(key)
            return None

    def _store(self, key: str, program: Any) -> None:
        import pyopencl as cl

        try:
            self.cache.store(key, program.get_info(cl.program_info.BINARIES)[0])
        except cl.Error as error:
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
