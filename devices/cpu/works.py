"""What the kernels of a region do, in the terms that calibration fits their seconds to.

The first term is the estimate that the kernel's author wrote (`Step.seconds`, for one thread): it
knows tiles, tails and algorithms. The others are what it leaves out: where operands lie, and what
activations cost. Terms shrink by the share of the chunks that the busiest thread has.

Short runs are done with the other threads or without, as is faster (executable.py): their kernels
have both prices. Which bytes pass from core to core depends on who stole whose chunks; simulating
it at the addresses of the plan predicted no better than a share of all, by family. What they cost
is the hand-over of the cores, which the device measures (runtime/handover.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from trireme.device import KernelWork
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.elementwise import COSTS
from trireme.devices.cpu.executable import TRY_S
from trireme.devices.cpu.kernels import CONSTANTS, Operand, Step, Temp
from trireme.graph import Graph
from trireme.handover import BYTES, FLAGS

_KNOWN = (
    "conv_f32_winograd", "direct_conv_f32", "conv_f32", "fully_connected_f32", "matmul_f32",
    "attention_f32", "gemm_q8", "depthwise_f32", "depthwise_q8", "max_pool_f32",
    "average_pool_f32", "layer_normalization_f32", "softmax_f32", "reduce", "resize", "concat",
    "transpose", "table_q8", "copy", "gather",
)  # fmt: skip
"""Starts of kernels' names: each a family. Others are elementwise, on floats or on integers."""
_HANDED = ("bytes", "far_bytes", "remote_bytes", "cold_bytes", "remote_cold_bytes")
TERM_LIMITS = {
    "bytes": 1e-10, "far_bytes": 6e-11, "remote_bytes": 1.5e-10, "cold_bytes": 6e-11,
    "remote_cold_bytes": 1.5e-10, "activations": 4e-11, "joins": 80.0,
    **dict.fromkeys([BYTES + name for name in _HANDED], 1.0),
}  # fmt: skip
"""The most seconds a byte that lies near (L2), further or in memory can cost, and an instruction of
an activation for one element; flags that handing work to other threads can take; and how much of
the bytes can pass from core to core."""
_NEXT = 4
"""A core's share of the cache behind the L2, in sizes of the L2: neighbours use it as well."""
_APART = re.compile(r"_?\d+x\d+|__.*")


def works_of(graph: Graph, steps: Sequence[Step], isa: Isa, threads: int) -> list[KernelWork]:
    """Return the work of native steps that run one after another on so many threads."""
    constants = {id(o): o.nbytes for s in steps for o in s.reads if isinstance(o, CONSTANTS)}
    values = max((sum(_nbytes(graph, o) for o in _values(s)) for s in steps), default=0)
    footprint = sum(constants.values()) + values
    cold = _beyond(footprint, isa)
    touched: dict[Operand, int] = {}
    total, works = 0, []
    has_choice = threads > 1 and 0 < sum(s.seconds for s in steps if s.chunks > 1) < TRY_S
    for step in steps:
        far = remote = 0.0
        for operand in _values(step):
            size = _nbytes(graph, operand)
            since = total - touched.get(operand, total if operand in step.writes else 0)
            shares = _beyond(min(size + since, footprint), isa)
            far, remote = far + size * shares[0], remote + size * shares[1]
        total += sum(_nbytes(graph, o) for o in _values(step)) + _weights(step)
        touched.update(dict.fromkeys(_values(step), total))
        work = _work(graph, step, threads, (far, remote), cold)
        works.append(replace(work, alone=_alone(work, step, threads)) if has_choice else work)
    return works


def _alone(work: KernelWork, step: Step, threads: int) -> KernelWork:
    """Return a kernel's work where one of the threads does all chunks."""
    share = _share_of(step, threads)
    mine = {n: amount for n, amount in work.terms.items() if n != FLAGS and BYTES not in n}
    terms = {name: amount / share for name, amount in mine.items()}
    return KernelWork(work.nodes, f"{work.family} alone", terms, step.seconds)


def _share_of(step: Step, threads: int) -> float:
    """Return how much of a step's chunks the busiest thread has."""
    return -(-step.chunks // threads) / step.chunks


def _beyond(nbytes: int, isa: Isa) -> tuple[float, float]:
    """Return how much of an operand has left the L2 cache after so many bytes, and how much a
    core's share of the next: none to all."""
    near, next = isa.l2_bytes, _NEXT * isa.l2_bytes
    return _share(nbytes, near), _share(nbytes, next)


def _share(nbytes: int, cache_bytes: int) -> float:
    return min(max(2.0 * nbytes / cache_bytes - 1, 0.0), 1.0)


def _work(
    graph: Graph, step: Step, threads: int, far: tuple[float, float], cold: tuple[float, float]
) -> KernelWork:
    share = _share_of(step, threads)
    family = family_of(graph, step)
    nbytes = max(float(sum(_nbytes(graph, o) for o in _values(step))), 1.0)
    if family.startswith("concat"):  # writes a part of its output: as much as it reads
        read = 2.0 * sum(_nbytes(graph, o) for o in step.reads if not isinstance(o, CONSTANTS))
        far = far[0] * read / nbytes, far[1] * read / nbytes
        nbytes = read
    weights = _weights(step)
    terms: dict[str, float] = {
        "model_s": step.seconds * share,
        "bytes": nbytes * share,
        "far_bytes": far[0] * share,
        "remote_bytes": far[1] * share,
        "cold_bytes": weights * cold[0] * share,
        "remote_cold_bytes": weights * cold[1] * share,
        "activations": _activations(graph, step) * share,
    }
    if threads > 1:
        terms |= {BYTES + name: terms[name] for name in _HANDED} | {FLAGS: float(share < 1)}
    return KernelWork(step.nodes, family, terms, step.seconds * share)


def _weights(step: Step) -> int:
    """Return the bytes of constants that a step reads; a gather reads as much of its table as it
    writes.
    """
    if "gather" in step.code.name:
        return 0
    return sum(o.nbytes for o in step.reads if isinstance(o, CONSTANTS))


def family_of(graph: Graph, step: Step) -> str:
    """Return the family of a step's kernel: its name less sizes; strides and signs may make two."""
    name = _APART.sub("", step.code.name)
    found = next((known for known in _KNOWN if name.startswith(known)), "")
    if not found:
        found = "elementwise_q8" if "q8" in name else "elementwise_f32"
    if not step.nodes:
        return found
    first = graph.node(step.nodes[0])
    if found in ("concat", "transpose"):
        found += " bytes" * ("b8" in name)
    if "pool" in found or "depthwise" in found:
        found += " strided" * (max(first.attrs.get("strides", (1,))) > 1)
    is_unsigned = bool(first.used) and graph.type(first.used[0]).dtype == "uint8"
    return f"{found} uint8" if is_unsigned else found


def _values(step: Step) -> list[Operand]:
    return [o for o in (*step.reads, *step.writes) if isinstance(o, (int, Temp))]


def _nbytes(graph: Graph, operand: Operand) -> int:
    if isinstance(operand, int):
        return graph.type(operand).nbytes
    return operand.nbytes if isinstance(operand, (*CONSTANTS, Temp)) else 0


def _activations(graph: Graph, step: Step) -> float:
    """Return the outputs that pass an activation at a kernel's end, times what that costs."""
    total = 0.0
    for node in map(graph.node, step.nodes):
        cost = COSTS.get(str(node.attrs.get("activation") or ""), 0)
        total += cost * graph.type(node.outputs[0]).elements
    return total
