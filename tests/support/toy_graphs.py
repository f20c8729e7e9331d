"""Random graphs with random pins for three toy devices, and orders that a plan allows."""

import numpy as np
from toy_device import ToyDevice

import trireme.ops  # noqa: F401
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

F32 = TensorType((3, 8), "float32")
PINNED = ("cpu", "gpu", "npu")
SOME_FREE = (*PINNED, None)
"""For tests of the search. That of the makespan takes seconds, even where all nodes are pinned, for
it orders tasks; tests of anything else place by the objective "serial"."""


def devices():
    return {
        "cpu": ToyDevice("cpu", resource_group="cores"),
        "gpu": ToyDevice("gpu", flops=1e10, resource_group="cores"),
        "npu": ToyDevice("npu", flops=1e11, launch_s=5e-6),
    }


def random_graph(rng, nodes, pins=PINNED):
    """A graph whose nodes are on devices of `pins`, each at random."""
    b = GraphBuilder("random")
    live = [b.input("x", F32), b.input("y", F32)]
    for k in range(nodes):
        pin = rng.choice(pins)
        options = {"source": f"n{k}", "pin": pin}
        if rng.random() < 0.5:
            live.append(b.add("add", rng.choice(live), rng.choice(live), **options))
        else:
            live.append(b.add(rng.choice(["relu", "tanh"]), rng.choice(live), **options))
    outputs = dict.fromkeys([live[-1], rng.choice(live), rng.choice(live[2:])])
    return b.finish(*outputs)


def feeds_of(graph, seed):
    rng = np.random.default_rng(seed)
    return {
        v.name: rng.standard_normal(v.type.dims).astype("float32") for v in graph.input_values()
    }


def any_order(tasks, rng):
    """A random order of task indices that respects the waits."""
    done, left = [], set(range(len(tasks)))
    while left:
        ready = [i for i in sorted(left) if set(tasks[i].waits) <= set(done)]
        done.append(rng.choice(ready))
        left.discard(done[-1])
    return done
