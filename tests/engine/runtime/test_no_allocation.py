"""After warm-up a run allocates no tensor memory: only the outputs handed out, and not even those
where the caller gives arrays to write into.
"""

import tracemalloc

import numpy as np
import pytest
from forced import open_all

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session

SIDE, CHANNELS = 64, 32
TENSOR_BYTES = SIDE * SIDE * CHANNELS * 4


def network(pins):
    """Six convolutions; their intermediates take half a megabyte each."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("network")
    x = b.input("x", TensorType((1, SIDE, SIDE, CHANNELS), "float32"))
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "layout": "NHWC"}
    for k in range(6):
        w = (rng.standard_normal((CHANNELS, 3, 3, CHANNELS)) * 0.05).astype(np.float32)
        x = b.add("conv", x, b.constant(f"w{k}", w), names=[f"y{k}"], pin=pins[k], **attrs)
    return b.finish(x)


@pytest.mark.parametrize("names", [("cpu",), ("cpu", "opencl")])
@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_runs_allocate_nothing(names, mode):
    opened, absent = open_all(names)
    if absent:
        pytest.skip(str(absent))
    pins = ["cpu", "cpu", names[-1], names[-1], "cpu", "cpu"]
    try:
        with Session(
            network(pins),
            devices=list(opened.values()),
            mode=mode,
            execution_options=AS_GIVEN,
            calibration=Calibration(),
        ) as session:
            feeds = {"x": np.ones((1, SIDE, SIDE, CHANNELS), np.float32)}
            out = {"y5": np.empty((1, SIDE, SIDE, CHANNELS), np.float32)}
            for _ in range(3):
                session.run(feeds, out=out)
            tracemalloc.start()
            for _ in range(5):
                session.run(feeds, out=out)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 64 << 10 < TENSOR_BYTES, f"{peak} bytes were allocated"
    finally:
        for device in opened.values():
            device.close()
