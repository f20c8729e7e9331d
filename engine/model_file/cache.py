"""Cache the optimised graphs of model files: a model is converted and optimised only once.

A Session gives a path and gets the optimised graph. The graph comes from the cache if this code
optimised this very file before. A model may lie in several files (external data). An entry lists
all of them and is valid while each is the same.

An entry holds no weights: a constant that is a view of a file is stored as its place in that file.
An entry holds the constants that passes computed, such as folded ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.bind_shapes import Shapes
from trireme.ir.graph import Graph, Value
from trireme.ir.op import all_ops
from trireme.ir.python_op import PythonOp
from trireme.model_file import dumps, loads
from trireme.model_file.branches import bound_at, convert_at
from trireme.model_file.notes import OnNote, log_note
from trireme.passes.pipeline import optimise
from trireme.support.code_version import code_version
from trireme.support.disk_cache import DiskCache
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import ConvertError, TriremeError
from trireme.support.mapped import OnOpen, OpenFile, ignore_file, offset_in, open_file, stamp_of
from trireme.support.user_files import USERS_CACHE, cache_folder

_log = logging.getLogger(__name__)
Model = Graph | str | os.PathLike[str] | bytes
MOST_MODELS = 200
LARGE_BYTES = 256
"""The least bytes of a constant that an entry stores as a place in a file."""
_LENGTH = struct.Struct("<Q")


def optimised(
    model: Model,
    shapes: Shapes | None = None,
    passes: Sequence[str] | None = None,
    disable: Collection[str] = (),
    folder: str | os.PathLike[str] | None = USERS_CACHE,
    mmap: bool = True,
    signature: str | None = None,
    python_ops: Mapping[str, PythonOp] | None = None,
    optional_inputs: Sequence[str] = (),
    on_open: OnOpen = ignore_file,
    on_note: OnNote = log_note,
) -> Graph:
    """Return the optimised graph of a model; a file's graph is cached in `folder`.

    python_ops, optional_inputs: as in `convert`; a graph that calls functions is not cached
    signature: selects one graph of a .tflite file with several
    mmap: map the model's files; False to read them
    on_open, on_note: called with every file that the graph is of, and with notes for the user
    Errors: those of `convert` and `optimise`
    """
    if isinstance(model, Graph):
        if signature is not None:
            raise ConvertError(f"a Graph has no signatures, {signature!r} was asked for")
        if optional_inputs:
            raise ConvertError("a Graph has no optional inputs: its constants are constants")
        return optimise(bound_at(model, shapes), passes=passes, disable=disable)
    how: dict[str, Any] = {"signature": signature, "python_ops": python_ops}
    how["optional_inputs"] = optional_inputs
    if isinstance(model, bytes):
        graph = convert_at(model, shapes, **how)
        return optimise(graph, passes=passes, disable=disable)
    path, own = Path(model), cache_folder("models") if folder is USERS_CACHE else folder
    own = None if python_ops else own
    cache = DiskCache(None if own is None else Path(own), ".graph", MOST_MODELS)
    choices = [passes, sorted(disable), signature, list(optional_inputs)]
    key = _key(path, [_plain(shapes or {}), *choices])
    stored = cache.load(key)
    kept = None if stored is None else _decode(stored, path, mmap, on_open, on_note)
    if kept is not None:
        return kept
    files: list[OpenFile] = []
    notes: list[str] = []
    graph = convert_at(path, shapes, mmap=mmap, on_open=files.append, on_note=notes.append, **how)
    for file in files:
        on_open(file)
    for note in notes:
        on_note(f"{path}: {note}")
    graph = optimise(graph, passes=passes, disable=disable)
    if all(stamp_of(file.path) == file.stamp for file in files):  # not changed meanwhile
        try:
            cache.store(key, _encode(graph, files, notes))
        except TriremeError as error:
            _log.debug("the optimised graph of %s is not kept: %s", path, error)
    return graph


def _plain(shapes: Shapes) -> list[tuple[str, list[int | str]]]:
    """Return shapes as JSON has them."""
    return sorted(
        (name, [dim if isinstance(dim, str) else int(dim) for dim in shape])
        for name, shape in shapes.items()
    )


def _key(path: Path, options: Any) -> str:
    """Return the key of an entry: the model's file and its stamp, the options, the code."""
    file = [str(path.resolve()), stamp_of(path)]
    text = json.dumps([file, options, code_version(), len(all_ops())])
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(graph: Graph, files: Sequence[OpenFile], notes: Sequence[str]) -> bytes:
    """Return an entry: the length of a table, the table of files and views, the graph without them.

    A view is the number of its file, the offset in bytes, and the strides.
    """
    views: dict[int, tuple[int, int, tuple[int, ...]]] = {}
    for value in graph.values.values():
        place = None if graph.is_output(value.id) else _place(value.data, files)
        if place is not None:
            views[value.id] = place
    values = {i: replace(v, data=None) if i in views else v for i, v in graph.values.items()}
    head = {
        "inputs": len(graph.inputs),
        "files": [(str(file.path.absolute()), file.stamp) for file in files],
        "views": views,
        "notes": list(notes),
    }
    table = json.dumps(head).encode()
    bare = replace(graph, inputs=(*graph.inputs, *views), values=values)
    return _LENGTH.pack(len(table)) + table + dumps(bare)


def _place(
    data: Array | None, files: Sequence[OpenFile]
) -> tuple[int, int, tuple[int, ...]] | None:
    """Return a constant's place in the model's files; None for one that the entry holds."""
    if data is None or data.nbytes < LARGE_BYTES or min(data.strides, default=0) < 0:
        return None
    for number, file in enumerate(files):
        offset = offset_in(data, file)
        if offset is not None:
            return number, offset, data.strides
    return None


def _decode(
    stored: bytes, path: Path, mmap: bool, on_open: OnOpen, on_note: OnNote
) -> Graph | None:
    """Return the graph of an entry, or None where it is damaged or a file of the model changed."""
    try:
        return _decoded(stored, path, mmap, on_open, on_note)
    except (TriremeError, ValueError, KeyError, TypeError, OSError, struct.error) as error:
        _log.warning("an optimised graph of %s could not be used: %s", path, error)
    return None


def _decoded(
    stored: bytes, path: Path, mmap: bool, on_open: OnOpen, on_note: OnNote
) -> Graph | None:
    """Return the graph of an entry, its weights views of the files; None where a file changed."""
    (size,) = _LENGTH.unpack_from(stored)
    head = json.loads(stored[_LENGTH.size : _LENGTH.size + size])
    try:
        files = [open_file(Path(name), mmap) for name, _ in head["files"]]
    except OSError:  # converting reports the error
        return None
    if any(
        file.stamp != tuple(stamp) for file, (_, stamp) in zip(files, head["files"], strict=True)
    ):
        return None
    bare = loads(stored[_LENGTH.size + size :])
    values: dict[int, Value] = dict(bare.values)
    for text, (number, offset, strides) in head["views"].items():
        value = values[int(text)]
        view = _view(files[number].data, value, offset, strides)
        values[value.id] = replace(value, data=view)
    for file in files:
        on_open(file)
    for note in head["notes"]:
        on_note(f"{path}: {note}")
    return replace(bare, inputs=bare.inputs[: head["inputs"]], values=values)


def _view(file: Array, value: Value, offset: int, strides: Sequence[int]) -> Array:
    """Return part of a file as an array; numpy refuses a part outside the file."""
    dtype = numpy_dtype(value.dtype)
    rest: Any = file[offset:].data
    data = np.ndarray(value.type.dims, dtype, rest, strides=tuple(strides))
    data.flags.writeable = False
    return data
