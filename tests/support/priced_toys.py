"""A calibration of a toy device, and a graph to price with it."""

from trireme.cost.calibration import (
    Calibration,
    Curve,
    DeviceCalibration,
    Sharing,
)
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def toy_calibration():
    curve = Curve(1e-6, {"flops": 1e-11, "bytes": 1e-10}, 0.9, 1.2, 5, 0.1)
    return Calibration.of_devices(
        DeviceCalibration(
            "cpu",
            "toy cpu",
            2e-6,
            1e-7,
            {"elementwise/float32": curve},
            {"read": (1e-5, 1e9)},
            {"gpu": Sharing(1e-5, 1e9, 100.0, 0.1, 1.1)},
        )
    )


def relu():
    b = GraphBuilder("g")
    return b.finish(b.add("relu", b.input("x", TensorType((100,), "float32"))))
