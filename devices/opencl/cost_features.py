"""The amounts of work of a region's kernels, as terms of calibration's curves.

The amounts are multiply-adds of vectors (repeated ones count twice), image places looked up,
vectors finished and stored, elements and bytes. A round of compute units counts in full, although
only some of them are busy.

A driver that runs work-groups on the CPU's cores passes data between cores, as the cpu's threads
do. It pays core latency for a share of the bytes of values, a different share of written bytes, and
flags where a second core takes a part. A GPU's kernels have no such terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from trireme.backend.core_latency import BYTES, FLAGS
from trireme.backend.device import WAKES, KernelCost
from trireme.devices.opencl.gpu_prices import CHAIN, GpuFacts
from trireme.devices.opencl.kernels.source import lanes_for
from trireme.devices.opencl.lowering import KernelLaunch, Lowering, Ref
from trireme.ir.graph import Node
from trireme.ir.op import get_op
from trireme.ops.activation import ACTIVATIONS

_NEAR_BYTES = 512 << 10
"""A larger operand counts as beyond the caches of a core."""
TERM_LIMITS: Mapping[str, float] = {BYTES + "bytes": 1.0, BYTES + "made_bytes": 1.0, FLAGS: 25.0}
"""Upper limits of the factors: the share of values' bytes, and of written ones, that pass between
cores; and the passes of a wake-up's flags."""
_WAKE_FLAGS = 8.0
"""Flags of waking a second core and sharing work-groups with it, relative to one flag of a pool of
threads. PoCL takes 30 where a pool takes 4, with cores near and far. Curves of one state thus price
a wake-up about right."""
_GUESS_S: Mapping[str, float] = {
    "multiplies": 0.25e-9,
    "places": 2e-9,
    "stores": 8e-9,
    "finish": 0.5e-9,
    "taps": 0.35e-9,
    "lines": 3e-9,
    "items": 15e-9,
    "bytes": 0.015e-9,
    "flops": 0.3e-9,
}
"""Rough seconds of each term on one core, to find kernels too short for a second core."""
_ALONE_S = 4e-6
"""Up to so many seconds of one core's work, a sleeping core wakes too late to take a part."""
_SHARED_S = 12e-6
"""From so many seconds of one core's work on, a second core always takes a part. A driver on a CPU
then wakes the core again for the next kernel."""


def cost_features_of(
    lowering: Lowering, units: int, on_cores: bool = False, gpu: GpuFacts | None = None
) -> list[KernelCost]:
    """Return the work of every launch, in order, on a device of so many compute units.

    on_cores: whether the units are cores of the CPU, which pass data to each other
    gpu: the facts that guesses follow, where the device is a GPU
    """
    cost_features = [_work(lowering, step, units) for step in lowering.steps]
    if gpu is not None:
        return [
            replace(work, guess_s=gpu.seconds(work.family, work.terms)) for work in cost_features
        ]
    if not on_cores or units < 2:
        return cost_features
    return [
        replace(work, terms={**work.terms, **_handed(lowering, step, work.terms[WAKES])})
        for work, step in zip(cost_features, lowering.steps, strict=True)
    ]


def _handed(low: Lowering, step: KernelLaunch, wakes: float) -> dict[str, float]:
    """Return the amounts that may pass between cores: bytes of values, and the flags of a wake-up.

    Constants do not count, because they lie in all caches.
    """
    values = [tensor for tensor in step.tensors if tensor.ref.space in ("value", "temporary")]
    made = sum(_nbytes(low, tensor.ref) for tensor in values if tensor.writes)
    read = sum(_nbytes(low, tensor.ref) for tensor in values if not tensor.writes)
    return {
        BYTES + "bytes": float(made + read),
        BYTES + "made_bytes": float(made),
        FLAGS: _WAKE_FLAGS * wakes,
    }


def _work(low: Lowering, step: KernelLaunch, units: int) -> KernelCost:
    groups = max(math.prod(step.work) // max(math.prod(step.group), 1), 1)
    rounds = -(-groups // units) * units / groups
    terms = _amounts(low, step)
    terms = {
        name: each * (1 if "bytes" in name or name == CHAIN else rounds)
        for name, each in terms.items()
    }
    guess_s = sum(_GUESS_S.get(name, 0.0) * each for name, each in terms.items())
    shared = min(max((guess_s - _ALONE_S) / (_SHARED_S - _ALONE_S), 0.0), 1.0)
    terms[WAKES] = shared if groups > 1 else 0.0
    return KernelCost(step.nodes, step.name.family, terms)


def _amounts(low: Lowering, step: KernelLaunch) -> dict[str, float]:
    """Return the work of all items of a launch."""
    node, items = low.graph.node(step.nodes[0]), math.prod(step.work)
    terms = _traffic(low, step)
    if step.name.tile is None:
        return terms | {"items": items} | _plain(low, step, items)
    if step.name.cut is not None:
        cut = step.name.cut
        finished = items * math.prod(step.name.tile) / low.tuning.vector
        return terms | {
            "multiplies": cut.busy_cycles,
            CHAIN: cut.chain_cycles,
            "stores": finished,
            "finish": finished * _finishing(low, step) * (cut.parts == 1),
        }
    rows, width = step.name.tile
    depth, positions, columns = _product(low, node)
    after = _finishing(low, step)
    if step.name.does == "depthwise":
        finished = items * rows
        return terms | {
            "taps": finished * positions,
            "items": items,
            "stores": finished,
            "finish": finished * after,
            "lines": items * low.graph.type(node.used[1]).dims[1],
        }
    lanes = lanes_for(columns, low.tuning.vector)
    share = max(lanes / low.tuning.vector, 0.5)
    finished = items * rows * -(-width // lanes)
    looks_up = any(tensor.name == "zero" for tensor in step.tensors)
    return terms | {
        "multiplies": finished * depth * positions * share,
        "stores": finished,
        "places": items * rows * positions * looks_up,
        "finish": finished * after,
    }


def _plain(low: Lowering, step: KernelLaunch, items: int) -> dict[str, float]:
    """Return the work of a launch that is no product, without moving bytes."""
    nodes = [low.graph.node(node) for node in step.nodes]
    node = nodes[0]
    if "kernel" in node.attrs:
        return {"taps": items * math.prod(node.attrs["kernel"])}
    if step.name.does in ("widen", "sum_parts"):
        return {}  # each result is read and written once, so bytes say it all
    if step.name.family == "elementwise":
        return {"finish": items * sum(_flops_each(low, one) for one in nodes)}
    return {"flops": sum(get_op(one.op).flops(low.call(one)) for one in nodes)}


def _traffic(low: Lowering, step: KernelLaunch) -> dict[str, float]:
    """Return the bytes that a launch reads and writes."""
    read = [_nbytes(low, tensor.ref) for tensor in step.tensors if not tensor.writes]
    made = [_nbytes(low, tensor.ref) for tensor in step.tensors if tensor.writes]
    sizes = {"whole": read + made, "as written": made * 2, "as read": read * 2}[step.name.traffic]
    far = sum(max(size - _NEAR_BYTES, 0) for size in sizes)
    return {"bytes": float(sum(sizes)), "far_bytes": float(far)}


def _product(low: Lowering, node: Node) -> tuple[int, int, int]:
    """Return a product's depth, kernel positions and columns."""
    b = low.graph.type(node.used[1]).dims
    if node.op == "conv":
        return b[-1], math.prod(b[1:-1]), b[0] // int(node.attrs["groups"])
    if node.op == "fully_connected":
        return b[1], 1, b[0]
    return b[-2] if len(b) > 1 else b[0], 1, b[-1] if len(b) > 1 else 1


def _finishing(low: Lowering, step: KernelLaunch) -> float:
    """Return the operations on each result of a product: its activation, and what is fused."""
    first, *others = map(low.graph.node, step.nodes)
    after = float(ACTIVATIONS[str(first.attrs.get("activation", ""))].flops)
    return after + sum(_flops_each(low, node) for node in others)


def _flops_each(low: Lowering, node: Node) -> float:
    made = max(low.graph.type(node.outputs[0]).elements, 1)
    fused = ACTIVATIONS[str(node.attrs.get("activation", ""))].flops
    return get_op(node.op).flops(low.call(node)) / made + fused


def _nbytes(low: Lowering, ref: Ref) -> int:
    if ref.space == "constant":
        return low.constants[ref.key].nbytes
    if ref.space == "temporary":
        return low.temporaries[ref.key]
    if ref.space == "report":
        return 0
    return low.graph.type(ref.key).nbytes
