"""Optimised graphs of model files, kept so that a model is converted and optimised only once.

A Session gives a path and gets the optimised graph, from the cache if that very file was optimised
before by this very code. An entry holds no weights: constants that are views of the model's file
are stored as where they lie in it. What the passes computed (folded constants) is stored.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import trireme
from trireme.convert import convert
from trireme.disk_cache import DiskCache
from trireme.dtypes import Array, numpy_dtype
from trireme.errors import TriremeError
from trireme.graph import Graph, Value
from trireme.mapped import map_file, offset_in_file
from trireme.model_file import dumps, loads
from trireme.op import all_ops
from trireme.optimise import optimise
from trireme.user_files import cache_folder

_log = logging.getLogger(__name__)
Model = Graph | str | os.PathLike[str] | bytes
USERS_CACHE = Path("~")
"""As a folder: this user's cache folder."""
MOST_MODELS = 200
LARGE_BYTES = 256
"""The least bytes of a constant worth a place in the file instead of a copy."""
_LENGTH = struct.Struct("<Q")


def optimised(
    model: Model,
    shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[str] | None = None,
    disable: Collection[str] = (),
    folder: Path | None = USERS_CACHE,
) -> Graph:
    """Return the optimised graph of a model; that of a file is kept in `folder` for the next time.

    Errors: those of `convert` and `optimise`
    """
    if not isinstance(model, str | os.PathLike):
        graph = model if isinstance(model, Graph) else convert(model, shapes=shapes)
        return optimise(graph, passes=passes, disable=disable)
    path, folder = Path(model), cache_folder("models") if folder is USERS_CACHE else folder
    cache = DiskCache(folder, ".graph", MOST_MODELS)
    options = [sorted((k, list(map(int, v))) for k, v in (shapes or {}).items()), passes,
               sorted(disable)]  # fmt: skip
    key = _key(path, options)
    stored = cache.load(key) if key else None
    if stored is not None:
        try:
            return _decode(stored, path)
        except (TriremeError, ValueError, KeyError, TypeError, OSError, struct.error) as error:
            _log.warning("an optimised graph of %s could not be used: %s", path, error)
    graph = optimise(convert(path, shapes=shapes), passes=passes, disable=disable)
    if key and key == _key(path, options):  # not changed meanwhile
        try:
            cache.store(key, _encode(graph, path))
        except TriremeError as error:  # Python operators have no form in a file
            _log.debug("the optimised graph of %s is not kept: %s", path, error)
    return graph


def _key(path: Path, options: Any) -> str:
    """Return what tells an entry from others: the file as the system knows it, options, code."""
    try:
        status = path.stat()
    except OSError:
        return ""
    file = [str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
            status.st_ctime_ns]  # fmt: skip
    text = json.dumps([file, options, code_version(), len(all_ops())])
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def code_version() -> str:
    """Return a digest of when the code that makes graphs was changed, file by file."""
    roots = [Path(trireme.__file__).parent]
    spec = importlib.util.find_spec("trireme.converters")
    places = spec.submodule_search_locations if spec else None
    roots += [Path(place) for place in places or ()]
    files = sorted(file for root in roots for file in root.rglob("*.py"))
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _encode(graph: Graph, path: Path) -> bytes:
    """Return an entry: the length of a table, the table of views, the graph without them."""
    views: dict[int, tuple[int, tuple[int, ...]]] = {}
    for value in graph.values.values():
        data = value.data
        if data is None or data.nbytes < LARGE_BYTES or min(data.strides, default=0) < 0:
            continue
        offset = offset_in_file(data, path)
        if offset is not None and value.id not in graph.outputs:
            views[value.id] = (offset, data.strides)
    values = {i: replace(v, data=None) if i in views else v for i, v in graph.values.items()}
    table = json.dumps({"inputs": len(graph.inputs), "views": views}).encode()
    bare = replace(graph, inputs=(*graph.inputs, *views), values=values)
    return _LENGTH.pack(len(table)) + table + dumps(bare)


def _decode(stored: bytes, path: Path) -> Graph:
    """Return the graph of an entry, with its weights as views of the model's file."""
    (size,) = _LENGTH.unpack_from(stored)
    head = json.loads(stored[_LENGTH.size : _LENGTH.size + size])
    bare = loads(stored[_LENGTH.size + size :])
    file = map_file(path)
    values: dict[int, Value] = dict(bare.values)
    for text, (offset, strides) in head["views"].items():
        value = values[int(text)]
        values[value.id] = replace(value, data=_view(file, value, offset, strides))
    return replace(bare, inputs=bare.inputs[: head["inputs"]], values=values)


def _view(file: Array, value: Value, offset: int, strides: Sequence[int]) -> Array:
    """Return part of a file as an array; numpy refuses what is not inside it."""
    dtype = numpy_dtype(value.dtype)
    rest: Any = file[offset:].data
    data = np.ndarray(value.type.dims, dtype, rest, strides=tuple(strides))
    data.flags.writeable = False
    return data
