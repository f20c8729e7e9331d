"""Two nodes on two devices whose estimates and intervals are round numbers, to redo by hand."""

from dataclasses import replace

from toy_device import ToyDevice

from trireme.cost.calibration import Calibration, Curve, DeviceCalibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

US = 1e-6


def chain_of_two(gpu_us=95.0, low=0.8, high=1.25, clock="wall"):
    """Two nodes of 100 us each on the cpu; on the gpu, with no copies, of 300 us and gpu_us."""
    b = GraphBuilder("two")
    x = b.input("x", TensorType((8, 8), "float32"))
    graph = b.finish(b.add("tanh", b.add("matmul", x, x)))
    toys = {name: ToyDevice(name, memory="host", launch_s=0.0) for name in ("cpu", "gpu")}
    for toy in toys.values():
        toy.spec = replace(toy.spec, clock=clock)
    entries = []
    for name, first, second in (("cpu", 100.0, 100.0), ("gpu", 300.0, gpu_us)):
        families = {"matmul/float32": first, "elementwise/float32": second}
        curves = {family: Curve(us * US, {}, low, high) for family, us in families.items()}
        entries.append(DeviceCalibration(name, f"toy {name}", 0.0, 0.0, curves))
    return graph, CostModel(toys, Calibration.of_devices(*entries))
