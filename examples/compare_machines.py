"""Compare machines that are not here: one model placed on every described machine."""

from importlib.resources import files

import trireme
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.devices.described import load_soc, soc_names
from trireme.passes.pipeline import optimise
from trireme.placement.place import place


def main() -> None:
    """Print the predicted milliseconds and the devices that are used."""
    model = files("trireme.tools") / "demo" / "digits.onnx"
    graph = optimise(trireme.convert(str(model)))
    for name in soc_names():
        placement = place(graph, CostModel(load_soc(name).devices(), Calibration()))
        used = [device for device in placement.specs if placement.nodes_on(device)]
        print(f"{name:16} {placement.makespan_s * 1e3:8.3f} ms on {', '.join(used)}")


if __name__ == "__main__":
    main()
