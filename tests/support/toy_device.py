"""Devices for tests of placement, plans and sessions: the numpy references behind the contract.

A toy counts its launches, can be given its own memory space, a set of ops, slowness and faults:
`fails` gives the error that a step ("resident", "alloc", "compile", "bind") raises.
"""

import threading
import time

import numpy as np

from trireme.backend.device import (
    HOST,
    Buffer,
    Device,
    DeviceSpec,
    Done,
    Executable,
    NodeSpan,
    host_alloc,
    host_view,
)
from trireme.ir.interpreter import interpret, is_quantized
from trireme.ir.op import get_op
from trireme.support.errors import CompileError, DeviceError


class ToyDevice(Device):
    def __init__(
        self,
        name,
        *,
        memory=None,
        ops=None,
        flops=1e9,
        bandwidth=1e9,
        launch_s=1e-6,
        link_bandwidth=1e9,
        resource_group="",
        delay_s=0.0,
        fail_compile=False,
        fail_launch=False,
        memory_bytes=0,
    ):
        memory = memory or (HOST if name == "cpu" else name)
        self.spec = DeviceSpec(
            name,
            f"toy {name}",
            {"float32": flops},
            bandwidth,
            launch_s,
            memory=memory,
            link_latency_s=0.0 if memory == HOST else 1e-6,
            link_bandwidth=link_bandwidth,
            resource_group=resource_group,
            memory_bytes=memory_bytes,
        )
        self.ops = ops
        self.delay_s = delay_s
        self.fail_compile, self.fail_launch = fail_compile, fail_launch
        self.fails = {}
        self.scratch_bytes = 0
        self.launches = 0
        self.on_launch = lambda: None
        self.closed = False
        self.busy = threading.Lock()

    def unsupported_reason(self, graph, node):
        if self.ops is not None and node.op not in self.ops:
            return f"op {node.op} has no {self.spec.name} kernel"
        if get_op(node.op).effect:
            return f"{self.spec.name} cannot keep the order of effects"
        if is_quantized(graph, node):
            return f"{self.spec.name} has no quantised kernels"
        return None

    def step(self, name):
        if name in self.fails:
            raise self.fails[name]

    def resident(self, graph, node):
        self.step("resident")
        return super().resident(graph, node)

    def compile(self, graphs):
        self.step("compile")
        if self.fail_compile:
            raise CompileError(f"{self.spec.name} was told to fail")
        return [_ToyExecutable(self, graph) for graph in graphs]

    def alloc(self, nbytes):
        self.step("alloc")
        inner = host_alloc(nbytes)
        inner.handle[:] = 0xA5
        return Buffer(self.spec.memory, inner.handle, 0, nbytes)

    def write(self, target, source):
        flat = np.ascontiguousarray(source).view(np.uint8).reshape(-1)
        target.handle[target.offset : target.offset + target.nbytes] = flat

    def read(self, source, target):
        flat = source.handle[source.offset : source.offset + source.nbytes]
        target[...] = flat.view(target.dtype).reshape(target.shape)

    def close(self):
        self.closed = True


class _ToyExecutable(Executable):
    def __init__(self, device, graph):
        self.device, self.graph = device, graph
        self.kernels = {node.id: "numpy reference" for node in graph.nodes}
        self.scratch_bytes = device.scratch_bytes
        constants = [value for value in graph.values.values() if value.is_constant]
        self.constant_bytes = sum(value.type.nbytes for value in constants)

    def bind(self, args, scratch):
        self.device.step("bind")
        assert len(args) == len(self.graph.inputs) + len(self.graph.outputs)
        assert all(arg.memory == self.device.spec.memory for arg in args)
        return _ToyCall(self, args)


class _ToyCall:
    def __init__(self, executable, args):
        self.executable, self.args = executable, args

    def launch(self, profile=False):
        device, graph = self.executable.device, self.executable.graph
        if device.fail_launch:
            raise DeviceError(f"{device.spec.name} was told to fail")
        if not device.busy.acquire(blocking=False):
            raise DeviceError(f"two tasks at once on {device.spec.name}")
        try:
            device.launches += 1
            device.on_launch()
            start = time.perf_counter()
            ids = (*graph.inputs, *graph.outputs)
            views = {
                i: host_view(arg, graph.type(i)) for i, arg in zip(ids, self.args, strict=True)
            }
            feeds = {i: views[i].copy() for i in graph.inputs}
            if device.delay_s:
                time.sleep(device.delay_s)
            results = interpret(graph, feeds)
            for i in graph.outputs:
                views[i][...] = results[i]
            nodes = tuple(node.id for node in graph.nodes)
            spans = [NodeSpan(nodes, "toy", start, time.perf_counter())] if profile else ()
            return Done(spans)
        finally:
            device.busy.release()
