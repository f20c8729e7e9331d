"""Find the converter of a model by what its bytes say, and call it.

Converters are listed as "module:function" strings, like devices, so that a format's libraries are
imported only when a model of that format comes along.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.graph import Graph
from trireme.model_file import is_model_file, load, loads
from trireme.model_file.notes import OnNote, log_note
from trireme.support.arguments import checked
from trireme.support.errors import ConvertError, ModelFileError
from trireme.support.mapped import OnOpen, ignore_file

_CONVERTERS: dict[str, str] = {
    "onnx": "trireme.converters.onnx:convert",
    "tflite": "trireme.converters.tflite.walk:convert",
}
_OF_SEVERAL_GRAPHS = {"tflite"}
"""Formats whose files may hold several graphs: their converters take `signature` and `on_note`."""
_SUFFIXES = {".onnx": "onnx", ".tflite": "tflite", ".trm": "trm"}
_TFLITE = b"TFL3"
"""The FlatBuffers identifier of a TFLite file, from byte 4 on."""


def register_converter(name: str, suffix: str, function: str) -> None:
    """Make "module:function" the converter of files with a suffix, for formats from outside.

    It is called as function(source, shapes=shapes, use_mmap=mmap, on_open=on_open), which mean what
    they mean to `convert`; a session keeps what it makes until a file that `on_open` was told of
    changes.
    """
    _CONVERTERS[name] = function
    _SUFFIXES[suffix] = name


@checked(ConvertError)
def convert(
    source: str | os.PathLike[str] | bytes,
    *,
    format: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    signature: str | None = None,
    mmap: bool = True,
    on_open: OnOpen = ignore_file,
    on_note: OnNote = log_note,
) -> Graph:
    """Return the graph of a model: a path or the bytes of a .trm, .tflite or .onnx file.

    `shapes` fixes the shapes of inputs that the model leaves open. The constants are views of the
    file, which is mapped: it may be replaced, but must not be truncated or overwritten in place
    while the graph is in use. mmap=False reads it instead. `on_open` is told of every file that the
    graph is made of. `signature` chooses one of the graphs that a .tflite file may hold; without it
    the first is taken, and `on_note` is told which others there are (a warning is logged).
    Errors: ModelFileError, if the file is damaged or of no known kind; ConvertError, listing every
    op that is not supported; either names the file; ShapeError, if `shapes` does not fit a .trm
    """
    kind = format or _format_of(source)
    if signature is not None and kind not in _OF_SEVERAL_GRAPHS:
        raise ConvertError(f"a .{kind} model has no signatures, {signature!r} was asked for")
    if kind == "trm":
        if isinstance(source, bytes):
            return bind_shapes(loads(source), shapes or {})
        return bind_shapes(load(source, mmap=mmap, on_open=on_open), shapes or {})
    if kind not in _CONVERTERS:
        raise ConvertError(
            f"unknown model format {kind!r}", facts=[f"known: trm, {', '.join(_CONVERTERS)}"]
        )
    module, _, function = _CONVERTERS[kind].partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
        more = {"signature": signature, "on_note": on_note} if kind in _OF_SEVERAL_GRAPHS else {}
        graph: Graph = make(source, shapes=shapes, use_mmap=mmap, on_open=on_open, **more)
    except (ConvertError, ModelFileError) as error:
        if isinstance(source, bytes) or os.fspath(source) in error.summary:
            raise
        summary = f"{os.fspath(source)}: {error.summary}"
        raise type(error)(summary, facts=error.facts, fix=error.fix) from error
    return graph


def _format_of(source: str | os.PathLike[str] | bytes) -> str:
    """Return the format by the file's identifier, else by its suffix, else "onnx" for bytes."""
    if not isinstance(source, bytes):
        path = Path(source)
        try:
            if path.exists() and not path.is_file():
                raise ModelFileError(f"{path} cannot be read: it is not a regular file")
            with path.open("rb") as file:
                head = file.read(8)
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise ModelFileError(f"{path} cannot be read: {why}") from error
        name, suffix = str(path), path.suffix.lower()
    else:
        head, name, suffix = source[:8], "what is given", ".onnx"
    if is_model_file(head):
        return "trm"
    if head[4:8] == _TFLITE:
        return "tflite"
    if suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise ModelFileError(f"{name} is of no known kind", facts=[f"known suffixes: {known}"])
    return _SUFFIXES[suffix]
