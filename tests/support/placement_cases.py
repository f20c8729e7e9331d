"""Seeded problems of placement: random graphs on random machines, and the zoo with ops struck.

A random problem is numbers only; a zoo problem has a model's graph, priced by the roofline of
invented devices. Both are the same for the same seed.
"""

import functools
import math
import random
from dataclasses import replace

from toy_device import ToyDevice
from zoo import zoo_folder

from trireme.backend.device import HOST, DeviceSpec
from trireme.cost.links import Link, Links
from trireme.cost.work import roofline_s, work_of
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.placement.problem import CALLER, Machine, Problem

KINDS = ("series-parallel", "layered", "zoo")
ZOO = (
    "kws_dscnn_f32",
    "mobilenet_v2_1.0_224_quant",
    "resnet8_cifar10_f32",
    "deeplabv3_f32",
    "ssd_mobilenet_v1_quant",
    "vww_96_float",
    "yamnet",
    "mobilenet_v1_0.25_224_f32",
)
_graphs = {}


def machine(rng, count):
    """A machine of 2 to 4 devices: a cpu, and accelerators that are faster and far away."""
    specs, launch_s, to_host, from_host = {}, {}, {}, {}
    near = rng.choice((1.0, 0.3, 0.1))
    for index in range(count):
        name = ("cpu", "gpu", "npu", "dsp")[index]
        far = index > 0
        rate = 50e9 * (2 ** rng.uniform(0.5, 5) if far else 1)
        launch_s[name] = rng.uniform(2e-6, 40e-6) * near if far else rng.uniform(0.5e-6, 3e-6)
        memory = name if far else HOST
        shared = far and rng.random() < 0.15
        specs[name] = DeviceSpec(
            name,
            "invented",
            {"float32": rate, "int8": rate * 2},
            20e9 * rng.uniform(0.7, 5),
            launch_s[name],
            memory=memory,
            resource_group="cores" if shared or not far else "",
        )
        if far:
            link = Link(near * rng.uniform(1e-6, 20e-6), 2 ** rng.uniform(0, 4) * 1e9)
            to_host[name] = link
            from_host[name] = link if rng.random() < 0.5 else Link(link.latency_s, 2e9)
    return specs, launch_s, Links(to_host, from_host)


def zoo_graph(name):
    """The optimised graph of a zoo model; None where the zoo is absent."""
    if name not in _graphs:
        path = zoo_folder() / f"{name}.tflite"
        _graphs[name] = optimise(convert(path)) if path.exists() else None
    return _graphs[name]


def zoo_problem(name, seed):
    """A zoo model's problem on a random machine, some ops struck from each accelerator's list."""
    rng = random.Random(f"{name} {seed}")
    specs, launch_s, links = machine(rng, rng.randint(2, 4))
    graph = zoo_graph(name)
    ops = sorted({node.op for node in graph.nodes})
    struck = {
        device: set(rng.sample(ops, rng.randint(0, max(len(ops) // 3, 1))))
        for device in specs
        if device != "cpu"
    }
    also = {device: rng.choice((0.0, 0.05, 0.15)) for device in specs}
    seconds = []
    for node in graph.nodes:
        work = work_of(graph, node)
        row = []
        for device, spec in specs.items():
            gone = node.op in struck.get(device, ()) or rng.random() < also[device]
            refused = device != "cpu" and gone
            row.append(None if refused else roofline_s(work, spec) * rng.uniform(0.7, 1.4))
        seconds.append(row)
    return Problem.of(graph, Machine.of(specs, launch_s, links), seconds)


def random_problem(kind, seed, n, devices=0):
    """A problem over a random graph of about n nodes, some of them refused by some devices."""
    rng = random.Random(f"{kind} {seed} {n}")
    specs, launch_s, links = machine(rng, devices or rng.randint(2, 4))
    before = (_series_parallel if kind == "series-parallel" else _layered)(rng, n)
    n = len(before)
    heavy = rng.choice((0.3, 1.0, 3.0))
    refusal = rng.choice((0.0, 0.1, 0.25))
    bulk = rng.choice((30e3, 5e3, 1e3))
    seconds, nbytes, inputs = [], {}, []
    speed = [1.0] + [2 ** rng.uniform(-0.5, 4) for _ in range(len(specs) - 1)]
    for i in range(n):
        base = 20e-6 * heavy * math.exp(rng.gauss(0, 1.2))
        row = [base / s * math.exp(rng.gauss(0, 0.5)) for s in speed]
        row = [s if d == 0 or rng.random() >= refusal else None for d, s in enumerate(row)]
        seconds.append(row)
        nbytes[i] = int(bulk * math.exp(rng.gauss(0, 1.2)))
        inputs.append([(j, j) for j in before[i]] or [(n, CALLER)])
    nbytes[n] = int(5 * bulk)
    used = {j for earlier in before for j in earlier}
    outputs = [(i, i) for i in range(n) if i not in used]
    return Problem(
        Machine.of(specs, launch_s, links), seconds, inputs, [[] for _ in range(n)], outputs, nbytes
    )


def _series_parallel(rng, n):
    before = [[]]

    def series(start, size):
        while size > 0:
            part = min(size, rng.randint(1, max(size // 2, 1)))
            parallel = part >= 4 and rng.random() < 0.6
            start = fork(start, part) if parallel else chain(start, part)
            size -= part
        return start

    def chain(start, size):
        for _ in range(size):
            before.append([start])
            start = len(before) - 1
        return start

    def fork(start, size):
        ways = rng.randint(2, 4)
        ends = [series(start, max((size - 1) // ways, 1)) for _ in range(ways)]
        before.append(sorted(set(ends)))
        return len(before) - 1

    series(0, n - 1)
    return before


def _layered(rng, n):
    width = rng.randint(2, 8)
    before, last = [], []
    while len(before) < n:
        layer = range(len(before), len(before) + rng.randint(1, width))
        for _ in layer:
            count = min(len(last), rng.choice((1, 1, 2, 3)))
            before.append(sorted(rng.sample(last, count)))
        last = list(layer) if rng.random() < 0.8 else [*last[-2:], *layer]
    return before


def to_graph(seed, n):
    """A graph of elementwise ops on toy devices, of the shape of a random problem."""
    rng = random.Random(seed)
    before = _layered(rng, n)
    b = GraphBuilder(f"random {seed}")
    x = b.input("x", TensorType((rng.randint(100, 5000),), "float32"))
    made = []
    for earlier in before:
        ends = [made[j] for j in earlier] or [x]
        made.append(functools.reduce(lambda one, two: b.add("add", one, two), ends))
        made[-1] = b.add("tanh", made[-1])
    used = {j for earlier in before for j in earlier}
    graph = b.finish(*(made[i] for i in range(len(before)) if i not in used))
    devices = {
        name: ToyDevice(name, flops=flops, launch_s=launch_s, link_bandwidth=4e9)
        for name, flops, launch_s in (("cpu", 1e9, 1e-6), ("gpu", 4e9, 8e-6), ("npu", 9e9, 2e-5))
    }
    devices["gpu"].ops = {"add"} if seed % 2 else None
    for index, device in enumerate(devices.values()):
        device.spec = replace(device.spec, power_w=1.0 + index, link_j_per_byte=1e-11)
    return graph, devices


def cases(count, most=200):
    """Yield (name, problem): seeded, a third of each kind where the zoo is there."""
    for seed in range(count):
        yield case(seed, most)


def cases_of(family, count, most=200):
    """Yield those of `cases` that are of a family; others are not made."""
    for seed in range(KINDS.index(family), count, len(KINDS)):
        yield case(seed, most)


def case(seed, most):
    """Return the name and the problem of a seed, of some nodes at most."""
    kind = KINDS[seed % 3]
    rng = random.Random(seed)
    if kind == "zoo":
        name = ZOO[seed // 3 % len(ZOO)]
        graph = zoo_graph(name)
        if graph is not None and len(graph.nodes) <= most:
            return f"{name} seed {seed}", zoo_problem(name, seed)
        kind = "layered"
    n = rng.randint(5, most)
    return f"{kind} seed {seed}", random_problem(kind, seed, n)
