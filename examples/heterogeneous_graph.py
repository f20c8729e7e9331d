"""Nine kernels on CPU, GPU, NPU and Python: five subgraphs, run in every way with the same bits.

Kernels 1, 2, 5 and 9 are for the cpu, 3 and 4 for the GPU, 7 and 8 for the NPU; kernel 6 is a
Python function. The textbook's figure: openmlsys, "Compute scheduling and execution".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

import trireme
from trireme.backend.device import HOST
from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType

SIZE = 64
DEVICES = ["cpu", "opencl", "npu"]
MODES = list(
    itertools.product(("split", "merged"), ("serial", "parallel"), ("interactive", "sunk"))
)


@trireme.python_op(inputs=["float32"], cost=lambda x: 20 * x[0] * x[1])
def kernel_6(x: np.ndarray) -> np.ndarray:
    """Return the rows in the order of their sums."""
    return x[np.argsort(x.sum(axis=1), kind="stable")]


def nine_kernels() -> Graph:
    """Return the graph; 1 and 2 need nothing of each other, nor do 3 and 4."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("nine kernels")
    x = b.input("x", TensorType((SIZE, SIZE), "float32"))
    weights = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 8 for _ in range(2))
    first, second = (b.constant(f"w{i}", data) for i, data in enumerate(weights))
    with trireme.device("cpu"):
        k1 = b.add("relu", x, names=["Kernel_1"])
        k2 = b.add("tanh", x, names=["Kernel_2"])
    with trireme.device("opencl"):
        k3 = b.add("matmul", k1, first, names=["Kernel_3"])
        k4 = b.add("sigmoid", k2, names=["Kernel_4"])
    with trireme.device("cpu"):
        k5 = b.add("add", k3, k4, names=["Kernel_5"])
    k6 = b.add("python", k5, **kernel_6.attrs(), names=["Kernel_6"])
    with trireme.device("npu"):
        k7 = b.add("matmul", k6, second, names=["Kernel_7"])
        k8 = b.add("relu", k7, names=["Kernel_8"])
    with trireme.device("cpu"):
        k9 = b.add("softmax", k8, names=["Kernel_9"])
    return b.finish(k9)


def opened(graph: Graph, subgraphs: str, mode: str, execution: str) -> trireme.Session:
    """Return a session that runs the graph as it is, in one of the ways."""
    return trireme.Session(
        graph,
        devices=DEVICES,
        threads=2,
        mode=mode,
        execution_options=trireme.ExecutionOptions(
            passes=(),
            subgraphs=subgraphs,
            execution=execution,
            device_options={"npu": {"float32": "float16"}},
        ),
    )


def partition(session: trireme.Session) -> Iterator[tuple[str, list[str]]]:
    """Yield the memory space and the kernels of each subgraph: what runs between two copies."""
    graph, placed = session.placement.graph, session.placement.device_of
    depth = dict.fromkeys(graph.values, 0)
    found: dict[tuple[int, str], list[str]] = {}
    for node in graph.nodes:
        at = max((depth[value] for value in node.used), default=0)
        depth.update(dict.fromkeys(node.outputs, at + (node.op == "copy")))
        if node.op != "copy":
            device = placed[node.id]
            memory = session.devices[device].spec.memory
            name = graph.values[node.outputs[0]].name
            found.setdefault((at, memory), []).append(f"{name} on {device}")
    for (_, memory), kernels in sorted(found.items()):
        yield "cpu" if memory == HOST else memory, kernels


def main() -> None:
    """Print the five subgraphs and the tasks of each way to run them; compare the bits."""
    try:
        open_device("opencl").close()
    except trireme.DeviceError as error:
        print(f"not run, for want of a GPU: {error.summary}")
        return
    graph = nine_kernels()
    x = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)
    made: dict[tuple[str, ...], bytes] = {}
    for way in MODES:
        with opened(graph, *way) as session:
            if not made:
                for number, (memory, kernels) in enumerate(partition(session), 1):
                    print(f"Graph_{number}_{memory}: {', '.join(kernels)}")
            made[way] = session.run({"x": x})["Kernel_9"].tobytes()
            tasks = session.plan.tasks
            copies = sum(task.is_copy for task in tasks)
            print(f"{' '.join(way)}: {len(tasks)} tasks, {copies} of them copies")
    print(f"the same bits in {len(made)} ways: {len(set(made.values())) == 1}")


if __name__ == "__main__":
    main()
