"""trireme: convert, place, plan and run a static graph on CPU, OpenCL and a simulated NPU.

graph = trireme.convert("model.onnx")
with trireme.Session(graph, devices=["npu", "opencl", "cpu"]) as session:
    outputs = session.run({"input": x})

The names below are imported when they are first used: `import trireme` alone loads the errors.
"""

if __name__ != "trireme":
    raise ImportError("import trireme: the folder engine/ is that package, under that name")

from trireme.support.interrupts import end_on_interrupt, is_command

if is_command():
    end_on_interrupt()  # the imports below take a while

import importlib
from typing import TYPE_CHECKING, Any

from trireme.support.errors import (
    CancelledError,
    CompileError,
    ConvertError,
    DeadlineError,
    DeviceError,
    GraphError,
    InternalError,
    ModelFileError,
    PlacementError,
    PlanError,
    QueueFullError,
    RunError,
    ShapeError,
    TriremeError,
)
from trireme.version import __version__

if TYPE_CHECKING:
    from trireme import ops
    from trireme.ir.device_scope import device
    from trireme.ir.graph import Graph
    from trireme.ir.python_op import python_op
    from trireme.model_file import load, save
    from trireme.model_file.convert import convert
    from trireme.model_file.export import export
    from trireme.placement.explain import explain
    from trireme.placement.options import PlacementOptions
    from trireme.quantiser.quantize import quantize
    from trireme.runtime.eager import eager
    from trireme.runtime.program.options import ExecutionOptions
    from trireme.runtime.session.batcher import Batcher
    from trireme.runtime.session.replicas import Replicas
    from trireme.runtime.session.session import Session
    from trireme.runtime.states.rules import State

_LATER = {
    "Batcher": "trireme.runtime.session.batcher",
    "ExecutionOptions": "trireme.runtime.program.options",
    "Graph": "trireme.ir.graph",
    "PlacementOptions": "trireme.placement.options",
    "Replicas": "trireme.runtime.session.replicas",
    "Session": "trireme.runtime.session.session",
    "State": "trireme.runtime.states.rules",
    "capture": "trireme.converters.python.capture",
    "compile": "trireme.converters.python.compile",
    "convert": "trireme.model_file.convert",
    "device": "trireme.ir.device_scope",
    "eager": "trireme.runtime.eager",
    "explain": "trireme.placement.explain",
    "export": "trireme.model_file.export",
    "load": "trireme.model_file",
    "python_op": "trireme.ir.python_op",
    "quantize": "trireme.quantiser.quantize",
    "save": "trireme.model_file",
    "trace": "trireme.converters.python.trace",
}
"""Where the names are that are imported when they are first used."""

__all__ = [
    "Batcher",
    "CancelledError",
    "CompileError",
    "ConvertError",
    "DeadlineError",
    "DeviceError",
    "ExecutionOptions",
    "Graph",
    "GraphError",
    "InternalError",
    "ModelFileError",
    "PlacementError",
    "PlacementOptions",
    "PlanError",
    "QueueFullError",
    "Replicas",
    "RunError",
    "Session",
    "ShapeError",
    "State",
    "TriremeError",
    "__version__",
    "capture",
    "compile",
    "convert",
    "device",
    "eager",
    "explain",
    "export",
    "load",
    "ops",
    "python_op",
    "quantize",
    "save",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("trireme.ops")
    if name not in _LATER:
        raise AttributeError(f"module 'trireme' has no attribute {name!r}")
    where = importlib.import_module(_LATER[name])
    if not hasattr(where, name):
        importlib.import_module(f"{_LATER[name]}.{name}")
    found = globals()[name] = getattr(where, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
