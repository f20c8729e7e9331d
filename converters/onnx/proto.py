"""The messages of an ONNX file, without the rest of the onnx package.

Importing `onnx` takes 55 ms of CPU time, its generated messages 12. A first start converts a model,
and most models need nothing else: schemas and helpers are imported where a node asks for them. The
messages are the same classes for whoever imports `onnx` itself: protobuf makes one class a message.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_GENERATED = "onnx.onnx_ml_pb2"


def _messages() -> ModuleType:
    """Return the generated module of onnx; the whole package where its file is elsewhere."""
    known = sys.modules.get(_GENERATED)
    package = None if known is not None else find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder) / "onnx_ml_pb2.py"
        spec = spec_from_file_location(f"{__name__}.generated", file) if file.exists() else None
        if spec is not None and spec.loader is not None:
            made = module_from_spec(spec)
            spec.loader.exec_module(made)
            return made
    return known or importlib.import_module("onnx")


MESSAGES = _messages()
AttributeProto = MESSAGES.AttributeProto
FunctionProto = MESSAGES.FunctionProto
ModelProto = MESSAGES.ModelProto
NodeProto = MESSAGES.NodeProto
TensorProto = MESSAGES.TensorProto
TensorShapeProto = MESSAGES.TensorShapeProto
ValueInfoProto = MESSAGES.ValueInfoProto
