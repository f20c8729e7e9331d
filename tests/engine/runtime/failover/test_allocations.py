"""Every allocation fails in turn: a typed error or a right result, and the next is right."""

import numpy as np
import pytest
from faults import Fault, inject
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, FaultKind

ALL = ["npu", "opencl", "cpu"]
HALF = ExecutionOptions(device_options={"npu": {"float32": "float16"}})
RNG = np.random.default_rng(23)


def chain():
    b = GraphBuilder("chain")
    value = b.input("x", TensorType((8, 64), "float32"))
    for name, op in zip("abc", ["sigmoid", "tanh", "exp"], strict=True):
        value = b.add(op, value, names=[name])
    return b.finish(value)


def products(rows=8):
    b = GraphBuilder("products")
    x = b.input("x", TensorType((rows, 64), "float32"))
    w = b.constant("w", RNG.standard_normal((64, 32)).astype(np.float32) / 8)
    y = b.add("relu", b.add("matmul", x, w), names=["a"])
    return b.finish(b.add("softmax", b.add("tanh", y, names=["b"]), names=["c"]))


MODELS = {
    "chain": (chain(), {"x": RNG.standard_normal((8, 64)).astype(np.float32)}),
    "products": (products(), {"x": RNG.standard_normal((8, 64)).astype(np.float32)}),
    "open": (products("n"), {"x": RNG.standard_normal((5, 64)).astype(np.float32)}),
}
"""Graphs with the nodes a, b, c, and feeds."""


def opened(graph, devices, fallback):
    pins = {} if len(devices) == 1 else {"a": "cpu", "b": devices[0], "c": "cpu"}
    if devices == ["npu"] or len(devices) == 1:
        pins = {}
    return Session(
        graph,
        devices=devices,
        fallback=fallback,
        placement_options=PlacementOptions(pins=pins),
        execution_options=HALF,
    )


def tries(graph, feeds, device, devices, fallback):
    """Yield what each n-th allocation that fails leads to, until none is left to fail.

    The outputs of two runs, or the error
    """
    for nth in range(1, 200):
        with inject(Fault(device, "alloc", nth)) as points:
            try:
                with opened(graph, devices, fallback) as session:
                    yield [session.run(feeds)["c"] for _ in range(2)]
            except DeviceError as error:
                yield error
            if not points.raised:
                return
    pytest.fail("there is no end of allocations")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", ["cpu", "opencl"])
def test_without_fallback_each_is_typed_and_the_next_run_is_right(device, model):
    need_opencl()
    graph, feeds = MODELS[model]
    with opened(graph, [device], False) as session:
        want = session.run(feeds)["c"]
    *failed, last = tries(graph, feeds, device, [device], False)
    assert failed
    for error in failed:
        assert isinstance(error, DeviceError)
        assert error.kind is FaultKind.OUT_OF_MEMORY and error.device == device
    for found in last:
        np.testing.assert_array_equal(found, want)
    with opened(graph, [device], False) as session:
        np.testing.assert_array_equal(session.run(feeds)["c"], want)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", ALL)
def test_with_fallback_each_result_is_right(device, model):
    need_opencl()
    graph, feeds = MODELS[model]
    with opened(graph, ["cpu"], False) as session:
        want = session.run(feeds)["c"]
    devices = ["npu", "opencl", "cpu"] if device == "npu" else ["opencl", "cpu"]
    found = list(tries(graph, feeds, device, devices, True))
    for one in found:
        assert not isinstance(one, DeviceError), one
        for outputs in one:
            np.testing.assert_allclose(outputs, want, rtol=2e-2, atol=2e-3)
