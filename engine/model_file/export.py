"""Write a Graph as a file of another program's format, whole or not at all.

The file's suffix names the format. A format names its writer as a "module:function" string, so that
its libraries are imported only when it is written.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from trireme.ir.graph import Graph
from trireme.support.arguments import checked
from trireme.support.atomic import write_atomic
from trireme.support.errors import ConvertError, ModelFileError

_WRITERS = {
    ".onnx": "trireme.converters.onnx.write:export",
    ".tflite": "trireme.converters.tflite.write:export",
}
"""By suffix, the function that returns the bytes of a graph's file."""


@checked(ConvertError)
def export(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph as an .onnx or .tflite file for other programs; `save` writes a .trm file.

    Nothing is written unless all of the graph has a form in the format.

    Errors: ConvertError, naming every node that has no form in the format, and why;
        ModelFileError, if the file cannot be written
    """
    suffix = Path(path).suffix.lower()
    if suffix not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise ConvertError(
            f"{os.fspath(path)}: no format is written with suffix {suffix!r}",
            facts=[f"known suffixes: {known}; .trm of `trireme.save` and `trireme convert`"],
        )
    module, _, function = _WRITERS[suffix].partition(":")
    data: bytes = getattr(importlib.import_module(module), function)(graph)
    try:
        write_atomic(Path(path), [data])
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error.summary}") from error
