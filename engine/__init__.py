"""trireme: convert, place, plan and run a static graph on CPU, OpenCL and a simulated NPU.

graph = trireme.convert("model.onnx")
with trireme.Session(graph, devices=["npu", "opencl", "cpu"]) as session:
    outputs = session.run({"input": x})
"""

if __name__ != "trireme":
    raise ImportError("import trireme: the folder engine/ is that package, under that name")

from trireme.errors import (
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

__all__ = [
    "CompileError",
    "ConvertError",
    "DeviceError",
    "GraphError",
    "InternalError",
    "ModelFileError",
    "PlacementError",
    "PlanError",
    "RunError",
    "ShapeError",
    "TriremeError",
]
