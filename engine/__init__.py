"""trireme: convert, place, plan and run a static graph on CPU, OpenCL and a simulated NPU.

graph = trireme.convert("model.onnx")
with trireme.Session(graph, devices=["npu", "opencl", "cpu"]) as session:
    outputs = session.run({"input": x})
"""

if __name__ != "trireme":
    raise ImportError("import trireme: the folder engine/ is that package, under that name")

from trireme.support.interrupts import end_on_interrupt, is_command

if is_command():
    end_on_interrupt()  # the imports below take a while

from trireme import ops
from trireme.ir.graph import Graph
from trireme.model_file import load, save
from trireme.model_file.convert import convert
from trireme.placement.explain import explain
from trireme.runtime.session import Session
from trireme.runtime.streams.replicas import Replicas
from trireme.support.errors import (
    CompileError,
    ConvertError,
    DeviceError,
    GraphError,
    InternalError,
    ModelFileError,
    PlacementError,
    PlanError,
    RunError,
    ShapeError,
    TriremeError,
)
from trireme.version import __version__

__all__ = [
    "CompileError",
    "ConvertError",
    "DeviceError",
    "Graph",
    "GraphError",
    "InternalError",
    "ModelFileError",
    "PlacementError",
    "PlanError",
    "Replicas",
    "RunError",
    "Session",
    "ShapeError",
    "TriremeError",
    "__version__",
    "convert",
    "explain",
    "load",
    "ops",
    "save",
]
