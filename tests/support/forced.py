"""Open every device that this machine has, and force nodes onto devices by pins, for tests."""

import random
from dataclasses import replace

from trireme.backend.registry import open_device
from trireme.support.errors import DeviceError

OPTIONS = {"cpu": {"threads": 2}}


def open_all(names=("cpu", "opencl", "npu")):
    """The devices that can be opened, by name, and why the others cannot."""
    opened, absent = {}, {}
    for name in names:
        try:
            opened[name] = open_device(name, **OPTIONS.get(name, {}))
        except DeviceError as error:
            absent[name] = str(error)
    return opened, absent


def pinned_where_supported(graph, device):
    """The graph with every node that the device supports pinned to it."""
    name = device.spec.name
    nodes = (
        node if device.unsupported_reason(graph, node) else replace(node, pin=name)
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def pinned_at_random(graph, devices, seed):
    """The graph with every node pinned to a random one of the devices that support it, if any."""
    rng = random.Random(seed)
    nodes = []
    for node in graph.nodes:
        able = [n for n, d in devices.items() if d.unsupported_reason(graph, node) is None]
        nodes.append(replace(node, pin=rng.choice(able)) if able else node)
    return replace(graph, nodes=tuple(nodes))
