"""Sessions whose devices fail, for tests of failover."""

import itertools
from contextlib import contextmanager

import numpy as np
from faults import inject

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

SEED = 15
SHAPE = (64, 256)
ALL = ["npu", "opencl", "cpu"]
X = np.random.default_rng(SEED).standard_normal(SHAPE).astype(np.float32)


def chain(names=("a", "b", "c", "d"), shape=SHAPE):
    """Four nodes, of which a placement with pins makes four tasks."""
    b = GraphBuilder("chain")
    value = b.input("x", TensorType(shape, "float32"))
    ops = itertools.cycle(["sigmoid", "tanh", "exp", "softmax"])
    for name in names:
        value = b.add(next(ops), value, names=[name])
    return b.finish(value)


HALF = ExecutionOptions(device_options={"npu": {"float32": "float16"}})
PINS = PlacementOptions(pins={"a": "cpu", "b": "opencl", "c": "npu", "d": "cpu"})


def open_mixed(graph, **more):
    more.setdefault("execution_options", HALF)
    return Session(graph, devices=ALL, placement_options=PINS, fallback=True, **more)


@contextmanager
def failing(*faults, graph=None, devices=("cpu", "opencl"), **more):
    """A session that may fail over, and the points of its devices."""
    graph = chain() if graph is None else graph
    with (
        inject(*faults) as points,
        Session(graph, devices=list(devices), fallback=True, **more) as session,
    ):
        yield session, points


def without(graph, device, **more):
    """The outputs of a session that never had the device: pins to it are gone."""
    pins = {name: where for name, where in PINS.pins.items() if where != device}
    left = [name for name in ALL if name != device]
    options = PlacementOptions(pins=pins)
    more.setdefault("execution_options", HALF)
    with Session(graph, devices=left, placement_options=options, **more) as session:
        return session.run({"x": X})


def sums():
    """A running sum; the state is written before a later task of another device."""
    b = GraphBuilder("sums")
    x = b.input("x", TensorType(SHAPE, "float32"))
    zero = b.constant("zero", np.zeros(SHAPE, np.float32))
    y = b.add("add", b.add("variable", zero, state="sum"), x, names=["y"])
    b.add("assign", y, state="sum")
    return b.finish(b.add("tanh", y, names=["z"]))
