"""Every zoo model in every mode on one placement: int8 bit for bit, floats within a tolerance.

A device cannot fuse node by node, and fusing changes how floats are rounded:
docs/explanation/execution.md.
"""

import itertools
from dataclasses import replace

import pytest
from forced import open_all, pinned_at_random
from zoo import zoo_path

import trireme
from trireme.cost.calibration import Calibration
from trireme.model_file.cache import optimised
from trireme.runtime.program.feeds import random_feeds
from trireme.runtime.program.options import AS_GIVEN, ExecutionOptions
from trireme.runtime.session.compare import gap

QUICK = ["kws_dscnn_int8", "ad01_fp32"]
MODELS = [
    "ad01_int8",
    "deeplabv3_f32",
    "kws_dscnn_f32",
    "mobilenet_v1_0.25_224_f32",
    "mobilenet_v2_1.0_224_quant",
    "resnet8_cifar10_f32",
    "resnet8_cifar10_int8",
    "ssd_mobilenet_v1_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
    "vww_96_float",
    "vww_96_int8",
    "yamnet",
]
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
TOLERANCES = {"kws_dscnn_f32": 1e-2}
"""It rounds activations to 8 bits on the fly, so that a last bit may decide a whole unit."""


@pytest.mark.parametrize("devices", ["cpu", "npu,cpu"])
@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_every_mode(name, devices):
    run_every_mode(str(zoo_path(f"{name}.tflite")), devices.split(","), TOLERANCES.get(name, 1e-5))


@pytest.mark.parametrize("name", [QUICK[0], *SLOW])
def test_every_mode_of_a_scattered_placement(name):
    """Every node on a random one of all devices: copies both ways, chains on OpenCL, overlap."""
    opened, absent = open_all()
    if absent:
        pytest.skip(str(absent))
    graph = optimised(str(zoo_path(f"{name}.tflite")), None, None, (), None)
    graph = pinned_at_random(graph, opened, 3)
    run_every_mode(graph, list(opened.values()), TOLERANCES.get(name, 1e-5), AS_GIVEN)
    for device in opened.values():
        device.close()


def run_every_mode(model, devices, tolerance, options=ExecutionOptions()):
    first = {}
    for execution, subgraphs, mode in itertools.product(
        ("sunk", "interactive"), ("merged", "split"), ("parallel", "serial")
    ):
        with trireme.Session(
            model,
            devices=devices,
            threads=2,
            calibration=Calibration(),
            mode=mode,
            execution_options=replace(options, subgraphs=subgraphs, execution=execution),
        ) as session:
            feeds = random_feeds(session.inputs, 5)
            outputs = session.run(feeds)
        want = first.setdefault(execution, outputs)
        for output, array in outputs.items():
            assert array.tobytes() == want[output].tobytes(), (execution, subgraphs, mode)
    for output, array in first["interactive"].items():
        apart = gap(array, first["sunk"][output])
        limit = tolerance if array.dtype.kind == "f" else 0
        assert apart.largest <= limit, f"{output}: {apart}"
