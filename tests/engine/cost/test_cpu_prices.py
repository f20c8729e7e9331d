"""A CPU that was never measured is priced by its kernels, and these are the ones that run."""

import numpy as np
import pytest

from trireme.backend.registry import open_device
from trireme.calibration.net_builder import Net, build
from trireme.cost.calibration import (
    Calibration,
    DeviceCalibration,
)
from trireme.cost.model import CostModel
from trireme.passes.pipeline import optimise
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session


def test_an_unmeasured_cpu_is_priced_by_what_its_kernels_are_estimated_to_take():
    """Winograd's algorithm takes a third of a sum of products; a roofline knows no algorithms."""
    graph = optimise(build(Net("n", "float32", (1, 28, 28, 64), [("conv", 64, 3), ("conv", 64)])))
    cpu, direct = open_device("cpu", threads=1), open_device("cpu", threads=1, winograd=False)
    try:
        costs = CostModel({"cpu": cpu}), CostModel({"cpu": direct})
        by_kernel, by_products = (
            [cost.node(graph, node, "cpu").seconds for node in graph.nodes] for cost in costs
        )
        guesses = sum(kernel.guess_s for kernel in cpu.cost_features(graph))
    finally:
        cpu.close()
        direct.close()
    assert sum(by_kernel) == pytest.approx(guesses)
    first = next(k for k, node in enumerate(graph.nodes) if node.op == "conv")
    assert by_kernel[first] < 0.6 * by_products[first]
    assert by_kernel[first + 1 :] == pytest.approx(by_products[first + 1 :])


def test_many_threads_of_an_unmeasured_cpu_hold_each_other_up():
    """16 threads were priced at a sixteenth of one, so that a GPU of half the time was not used."""
    graph = optimise(build(Net("n", "float32", (1, 64, 64, 64), [("conv", 64, 3)])))
    seconds = {}
    for threads in (1, 2, 16):
        device = open_device("cpu", threads=threads)
        (kernel, *_) = (one for one in device.cost_features(graph) if one.family.startswith("conv"))
        seconds[threads] = kernel.guess_s
        assert threads == 1 or kernel.alone.guess_s == pytest.approx(seconds[1])
        device.close()
    assert seconds[2] == pytest.approx(seconds[1] / 2, rel=0.02)
    assert 2 < seconds[16] / (seconds[1] / 16) < 4


def test_priced_kernels_are_those_compiled():
    """Lowered once to be priced, once not: the same results, also where another region cuts."""
    net = Net("n", "int8", (1, 12, 12, 8), [("inverted", 8), ("conv", 12, 3), ("mean",)])
    graph = optimise(build(net))
    x = np.random.default_rng(0).integers(-128, 128, (1, 12, 12, 8)).astype(np.int8)
    results = []
    for calibration in (
        Calibration(),
        Calibration.of_devices(_known("cpu", 2)),
    ):
        with Session(
            graph, devices=["cpu"], threads=2, execution_options=AS_GIVEN, calibration=calibration
        ) as session:
            results.append(list(session.run({"x": x}).values())[0])
    np.testing.assert_array_equal(*results)


def _known(name, threads):
    device = open_device(name, threads=threads)
    device.close()
    return DeviceCalibration(name, device.spec.description, 1e-6)
