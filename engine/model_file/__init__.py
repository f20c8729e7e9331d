"""The .trm file: save a Graph, load it with its weights mapped from the file, never copied.

docs/reference/file-format.md has the layout, schema/trireme.fbs the graph part. Loading any file
gives a graph that keeps every rule, or a ModelFileError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trireme.ir.graph import Graph
from trireme.ir.python_op import PythonOp
from trireme.model_file.layout import ALIGNMENT, MAGIC
from trireme.model_file.reader import read
from trireme.model_file.writer import encode
from trireme.support.arguments import checked
from trireme.support.atomic import write_atomic
from trireme.support.errors import ModelFileError
from trireme.support.mapped import OnOpen, aligned, ignore_file, open_file

__all__ = ["dumps", "is_model_file", "load", "loads", "save"]


@checked(ModelFileError)
def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write the graph to a file, whole or not at all: an old file stays until the new one is safe.

    Errors: ModelFileError, if the file cannot be written or the graph has no form in a file
    """
    try:
        write_atomic(Path(path), encode(graph))
    except ModelFileError as error:
        raise _named(path, error) from error


@checked(ModelFileError)
def dumps(graph: Graph) -> bytes:
    """Return the bytes that `save` would write; the same graph gives the same bytes."""
    return b"".join(encode(graph))


@checked(ModelFileError)
def load(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    verify_weights: bool = False,
    on_open: OnOpen = ignore_file,
    python_ops: Mapping[str, PythonOp] | None = None,
) -> Graph:
    """Return the graph of a file, with constants that are read-only views of it.

    mmap: map the file instead of reading it. A mapped file may be replaced (`save` does that) or
        removed while the graph is in use. The system ends the process if the file is truncated or
        overwritten in place; read the file (False) where that may happen.
    verify_weights: also check the weights' checksums, which reads all of them
    on_open: called with the file
    python_ops: by name, the functions that the graph calls; a file holds no code
    Errors: ModelFileError, naming the file and the field, or every function that is missing
    """
    try:
        file = open_file(Path(path), mmap)
        on_open(file)
        return read(file.data, verify_weights, python_ops or {})
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise ModelFileError(f"{os.fspath(path)}: cannot be read: {text}") from error
    except ModelFileError as error:
        raise _named(path, error) from error


@checked(ModelFileError)
def loads(
    data: bytes | memoryview,
    *,
    verify_weights: bool = False,
    python_ops: Mapping[str, PythonOp] | None = None,
) -> Graph:
    """Return the graph of a file's bytes.

    data: bytes, or a view of any memory. Constants are views of it where it is
        read-only and begins at a multiple of 64, as an array in Ray's store does; else the bytes
        are copied once. Its elements must stay as they are while the graph is in use
    python_ops: by name, the functions that the graph calls
    Errors: ModelFileError, naming the field, or every function that is missing
    """
    given = np.frombuffer(data, np.uint8)
    if not given.flags.writeable and given.ctypes.data % ALIGNMENT == 0:
        return read(given, verify_weights, python_ops or {})
    raw = aligned(given.size)
    raw[:] = given
    raw.flags.writeable = False
    return read(raw, verify_weights, python_ops or {})


def is_model_file(start: bytes) -> bool:
    """Whether bytes from the start of a file are those of a .trm file."""
    return start[: len(MAGIC)] == MAGIC


def _named(path: str | os.PathLike[str], error: ModelFileError) -> ModelFileError:
    summary = f"{os.fspath(path)}: {error.summary}"
    return ModelFileError(summary, facts=error.facts, fix=error.fix)
