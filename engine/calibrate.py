"""Measure what op families, launches and copies take on this machine's real devices.

Nodes are measured through the same compile, bind and launch path as real runs; the smallest of
several rounds is kept, which neighbours disturb least. Simulated devices are not measured: their
own model is their clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.builder import GraphBuilder
from trireme.calibration import Calibration, Curve, DeviceCalibration, fit
from trireme.cost import Work, work_of
from trireme.device import HOST, BoundCall, Device, Executable, host_alloc
from trireme.graph import Graph, Quant, TensorType

Progress = Callable[[str, int, int], None]
_ROUNDS, _ROUND_S = 5, 0.004


@dataclass(frozen=True)
class Probe:
    """One graph of one node to measure."""

    name: str
    graph: Graph


def calibrate(devices: Mapping[str, Device], progress: Progress | None = None) -> Calibration:
    """Return the measured calibration of the open devices.

    `progress(device, done, total)` is called after each probe. Takes a few seconds a device.
    """
    measured = {}
    for name, device in devices.items():
        if device.spec.clock == "wall":
            measured[name] = _calibrate_device(name, device, progress)
    return Calibration(measured)


def _calibrate_device(name: str, device: Device, progress: Progress | None) -> DeviceCalibration:
    probes = [
        probe
        for probe in _probes()
        if device.unsupported_reason(probe.graph, probe.graph.nodes[0]) is None
        and not device.kernel_note(probe.graph, probe.graph.nodes[0])
    ]
    executables = device.compile([probe.graph for probe in probes])
    rows: dict[str, list[tuple[Work, float]]] = {}
    empty = _probe("identity", "identity", (1, 8), "float32", {}).graph
    launch_s = 0.0
    if device.unsupported_reason(empty, empty.nodes[0]) is None:
        launch_s = _seconds(_bind(device, empty, device.compile([empty])[0]))
    for done, (probe, executable) in enumerate(zip(probes, executables, strict=True), 1):
        work = work_of(probe.graph, probe.graph.nodes[0])
        seconds = _seconds(_bind(device, probe.graph, executable))
        own = max(seconds - launch_s, 0.0)
        rows.setdefault(f"{work.kind}/{work.dtype}", []).append((work, own))
        if progress:
            progress(name, done, len(probes))
    curves = {key: _fit(samples, launch_s) for key, samples in rows.items()}
    copies = _measure_copies(device) if device.spec.memory != HOST else {}
    return DeviceCalibration(device.spec.description, launch_s, curves, copies)


def _fit(samples: Sequence[tuple[Work, float]], launch_s: float) -> Curve:
    works = [work for work, _ in samples]
    seconds = [seconds for _, seconds in samples]
    flops, nbytes = [work.flops for work in works], [work.nbytes for work in works]
    return fit(flops, nbytes, seconds, launch_s)


def _bind(device: Device, graph: Graph, executable: Executable) -> BoundCall:
    args = [device.alloc(graph.type(v).nbytes) for v in (*graph.inputs, *graph.outputs)]
    rng = np.random.default_rng(0)
    for value, buffer in zip(graph.inputs, args, strict=False):
        type = graph.type(value)
        data = rng.standard_normal(type.dims) * (30 if type.quant else 1)
        device.write(buffer, np.ascontiguousarray(data.astype(type.dtype)))
    scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
    return executable.bind(args, scratch)


def _seconds(call: BoundCall) -> float:
    """Return the best seconds of a launch with its wait, over rounds of a few milliseconds."""
    start = time.perf_counter()
    call.launch().wait()
    once = max(time.perf_counter() - start, 1e-7)
    repeats = min(max(int(_ROUND_S / once), 1), 1000)
    best = float("inf")
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(repeats):
            call.launch().wait()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def _measure_copies(device: Device) -> dict[str, tuple[float, float]]:
    sizes = [256, 16 << 10, 256 << 10, 4 << 20]
    target = device.alloc(max(sizes))
    host = host_alloc(max(sizes)).handle
    figures = {}
    for direction in ("read", "write"):
        seconds = []
        for size in sizes:
            part, array = target.at(0, size), host[:size]
            best = float("inf")
            for _ in range(_ROUNDS * 4):
                start = time.perf_counter()
                if direction == "read":
                    device.read(part, array)
                else:
                    device.write(part, array)
                best = min(best, time.perf_counter() - start)
            seconds.append(best)
        curve = fit([0] * len(sizes), sizes, seconds)
        figures[direction] = (curve.fixed_s, 1 / max(curve.s_per_byte, 1e-15))
    return figures


_CONVS = [  # height, in, out, kernel, stride, groups
    (112, 3, 32, 3, 2, 1), (56, 24, 144, 1, 1, 1), (28, 64, 64, 3, 1, 1), (14, 96, 576, 1, 1, 1),
    (14, 256, 256, 3, 1, 1), (7, 320, 1280, 1, 1, 1), (8, 16, 16, 1, 1, 1),
]  # fmt: skip
_DEPTHWISE = [
    (112, 32, 32, 3, 1, 32), (56, 144, 144, 3, 2, 144), (14, 576, 576, 3, 1, 576),
    (7, 960, 960, 3, 1, 960), (8, 16, 16, 3, 1, 16),
]  # fmt: skip
_SHAPES = [(1, 64), (1, 14, 14, 96), (1, 56, 56, 64), (1, 112, 112, 96)]
_MATRICES = [(1, 256, 64), (1, 1280, 1000), (128, 256, 1024), (197, 192, 768)]
_ELEMENTWISE: Mapping[str, int] = {"add": 2, "mul": 2, "relu": 1, "sigmoid": 1}


def _probes() -> Iterator[Probe]:
    for dtype in ("float32", "int8"):
        for row in (*_CONVS, *_DEPTHWISE):
            yield _conv_probe(row, dtype)
        for m, k, n in _MATRICES:
            yield _fully_connected_probe(m, k, n, dtype)
        for shape in _SHAPES:
            for op, arity in _ELEMENTWISE.items():
                if dtype == "float32" or op in ("add", "mul"):
                    yield _probe(f"{op}", op, shape, dtype, {}, arity)
            if len(shape) == 4:
                pool = {"kernel": (2, 2), "strides": (2, 2), **_NO_PADS}
                yield _probe("max_pool", "max_pool", shape, dtype, pool)
                yield _probe("average_pool", "average_pool", shape, dtype, pool)
                yield _probe("transpose", "transpose", shape, dtype, {"perm": (0, 3, 1, 2)})
                yield _probe("concat", "concat", shape, dtype, {"axis": -1}, 2)
                yield _reduce_probe(shape, dtype)
            if dtype == "float32":
                yield _probe("softmax", "softmax", shape, dtype, {})


_NO_PADS = {"pads": (0, 0, 0, 0), "dilations": (1, 1)}
_X_QUANT = Quant((0.05,), (-3,))
_Y_QUANT = Quant((0.1,), (5,))


def _x_type(shape: Sequence[int], dtype: str) -> TensorType:
    return TensorType(tuple(shape), dtype, _X_QUANT if dtype == "int8" else None)


def _finish(b: GraphBuilder, op: str, inputs: Sequence[int], attrs: Mapping[str, object],
            dtype: str, keep: bool = False) -> Probe:  # fmt: skip
    quant = (_X_QUANT if keep else _Y_QUANT) if dtype == "int8" else None
    (out,) = b.add_node(op, inputs, attrs, quants=[quant], source="calibrate")
    return Probe(op, b.finish(out))


def _probe(
    name: str,
    op: str,
    shape: Sequence[int],
    dtype: str,
    attrs: Mapping[str, object],
    arity: int = 1,
) -> Probe:
    b = GraphBuilder(name)
    inputs = [b.input(f"x{i}", _x_type(shape, dtype)) for i in range(arity)]
    return _finish(b, op, inputs, attrs, dtype, keep=op not in ("add", "mul"))


def _reduce_probe(shape: Sequence[int], dtype: str) -> Probe:
    b = GraphBuilder("reduce_mean")
    x = b.input("x", _x_type(shape, dtype))
    axes = b.constant("axes", np.array([1, 2], np.int64))
    return _finish(b, "reduce_mean", [x, axes], {"keepdims": 1}, dtype)


def _conv_probe(row: tuple[int, int, int, int, int, int], dtype: str) -> Probe:
    size, channels, out, kernel, stride, groups = row
    b = GraphBuilder("conv")
    x = b.input("x", _x_type((1, size, size, channels), dtype))
    w, bias = _weights(b, (out, kernel, kernel, channels // groups), dtype)
    pad = kernel // 2
    attrs = {
        "strides": (stride, stride), "pads": (pad,) * 4, "groups": groups, "layout": "NHWC",
        "dilations": (1, 1), "activation": "relu6",
    }  # fmt: skip
    return _finish(b, "conv", [x, w, bias], attrs, dtype)


def _fully_connected_probe(m: int, k: int, n: int, dtype: str) -> Probe:
    b = GraphBuilder("fully_connected")
    x = b.input("x", _x_type((m, k), dtype))
    w, bias = _weights(b, (n, k), dtype)
    return _finish(b, "fully_connected", [x, w, bias], {}, dtype)


def _weights(b: GraphBuilder, shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
    rng = np.random.default_rng(0)
    if dtype == "float32":
        w = b.constant("w", rng.standard_normal(shape).astype(np.float32) * 0.1)
        return w, b.constant("b", np.zeros(shape[0], np.float32))
    scales = (0.01,) * shape[0]
    zeros = (0,) * shape[0]
    data = rng.integers(-127, 128, shape, dtype=np.int8)
    w = b.constant("w", data, Quant(scales, zeros, 0))
    product = tuple(_X_QUANT.scale * s for s in scales)
    return w, b.constant("b", np.zeros(shape[0], np.int32), Quant(product, zeros, 0))
