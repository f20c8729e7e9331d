"""What the kernels of a region do, in the terms that calibration fits their seconds to."""

from __future__ import annotations

import math
import re

from trireme.device import KernelWork
from trireme.devices.opencl.kernels.expressions import ROWS
from trireme.devices.opencl.lowering import Lowering, Ref, Step
from trireme.op import get_op

_NEAR_BYTES = 512 << 10
"""An operand of more is taken to come from beyond the caches of a core."""
_TILE = re.compile(r"_\d+x\d+")


def works_of(lowering: Lowering) -> list[KernelWork]:
    """Return the work of every launch, in order."""
    return [_work(lowering, step) for step in lowering.steps]


def _work(low: Lowering, step: Step) -> KernelWork:
    sizes = [_nbytes(low, tensor.ref) for tensor in step.tensors]
    if "concat" in step.label:  # writes a part of its output: as much as it reads
        sizes = [_nbytes(low, t.ref) for t in step.tensors if not t.writes] * 2
    nodes = [low.graph.node(node) for node in step.nodes]
    terms = {
        "flops": float(sum(get_op(node.op).flops(low.call(node)) for node in nodes)),
        "bytes": float(sum(sizes)),
        "far_bytes": float(sum(max(size - _NEAR_BYTES, 0) for size in sizes)),
        "items": float(math.prod(step.work)),
    }
    return KernelWork(step.nodes, family_of(step.label), terms)


def family_of(label: str) -> str:
    """Return the family of a kernel: its label less its tile and epilogue; maps are one family."""
    name = _TILE.sub("", label.split("+")[0])
    return "elementwise" if name in ROWS else name


def _nbytes(low: Lowering, ref: Ref) -> int:
    if ref.space == "constant":
        return low.constants[ref.key].nbytes
    if ref.space == "temporary":
        return low.temporaries[ref.key]
    return low.graph.type(ref.key).nbytes
