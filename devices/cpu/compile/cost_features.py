"""The work of a region's kernels, in the terms that calibration fits their seconds to.

The first term is the estimate that the kernel's author wrote (`Step.seconds`, for one thread): it
knows tiles, tails and algorithms. The other terms are the place of operands and the cost of
activations. Terms shrink by the share of the chunks that the busiest thread has.

Short runs use the other threads or not, whichever is faster (executable.py). So their kernels have
both prices. The bytes that pass from core to core depend on who stole whose chunks. A simulation at
the addresses of the plan predicted no better than a share of all bytes, by family. Their cost is
the core latency, which the device measures (runtime/core_latency.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from trireme.backend.core_latency import BYTES, FLAGS
from trireme.backend.device import KernelCost
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.compile.region import Item, RegionProgram
from trireme.devices.cpu.kernels.expressions import COSTS
from trireme.devices.cpu.kernels.lowering import CONSTANTS, At, Operand, Step, Temp
from trireme.devices.cpu.runtime.step_rows import TRY_S
from trireme.ir.graph import Graph
from trireme.support.records import dataclass

_HANDED = ("bytes", "far_bytes", "remote_bytes", "cold_bytes", "remote_cold_bytes")
TERM_LIMITS = {
    "bytes": 1e-10,
    "far_bytes": 6e-11,
    "remote_bytes": 1.5e-10,
    "cold_bytes": 6e-11,
    "remote_cold_bytes": 1.5e-10,
    "activations": 4e-11,
    "joins": 80.0,
    **dict.fromkeys([BYTES + name for name in _HANDED], 1.0),
}
"""The most seconds a byte that lies near (L2), further or in memory can cost, and an instruction of
an activation for one element; flags that handing work to other threads can take; and how much of
the bytes can pass from core to core."""
_CROWDED = 0.14
"""The share of its time by which a kernel that was never measured is held up by each thread beyond
two: they share caches and memory, and pairs of logical CPUs share a core. Fitted to five models on
16 logical CPUs (docs/experiments/opencl.md); on two threads kernels take what their authors say."""
_OF_ONE_ROW = {"conv_f32": "fully_connected_f32", "gemm_q8": "gemm_q8 row"}
"""Families of products of one row, which wait for weights. A convolution on one pixel takes as long
as a fully connected layer. An int8 one takes twice the time of its multiplications."""
_COLUMNS = " columns"
"""Ends families of products whose threads each make some columns of all rows. They read values of
the other cores. Products dealt out by rows mostly read values of their own core."""
_PRODUCTS = {
    "conv_f32",
    "conv_f32_winograd",
    "direct_conv_f32",
    "fully_connected_f32",
    "matmul_f32",
    "attention_f32",
    "gemm_q8",
}
"""Families whose authors' estimates count what tiles read and write in the L2 cache."""
_WINDOWS = {"average_pool_f32", "max_pool_f32", "depthwise_f32", "depthwise_q8"}
_CONCAT = {"concat", "concat bytes"}
_NEXT = 4
"""A core's share of the cache behind the L2, in sizes of the L2: neighbours use it as well."""


@dataclass(frozen=True)
class Section:
    """Steps of a graph that are done one after another, over and over for the parts of a batch.

    graph: of one part
    """

    graph: Graph
    steps: Sequence[Step]
    parts: int = 1


def sections_of(program: RegionProgram) -> Iterator[Section]:
    """Yield a program's native steps: those of batch parts, and those between."""
    at = 0
    for start, stretch, parts in program.stretches:
        yield Section(program.graph, _native(program.items[at:start]))
        steps = _native(stretch.items)
        yield Section(stretch.graph, steps, parts)
        at = start + parts * len(steps)
    yield Section(program.graph, _native(program.items[at:]))


def _native(items: Sequence[Item]) -> list[Step]:
    return [item for item in items if isinstance(item, Step)]


def cost_features_of(
    program: RegionProgram, isa: Isa, threads: int, relative_time: float = 1.0
) -> list[KernelCost]:
    """Return the work of native steps that run one after another on so many threads.

    relative_time: how long kernels take here, over what their authors estimate
    """
    sections = list(sections_of(program))
    shared = sum(x.parts * s.seconds for x in sections for s in x.steps if s.chunks > 1)
    touches = _Touches(isa, max(map(_footprint, sections)))
    cost_features = [
        (step, _work(section.graph, step, threads, *found, relative_time))
        for section in sections
        for step, found in touches.of(section)
    ]
    if threads < 2 or not 0 < shared < TRY_S:
        return [work for _, work in cost_features]
    return [replace(work, alone=_alone(work, step, threads)) for step, work in cost_features]


def _footprint(section: Section) -> int:
    """Return the bytes of all constants of some steps, and of the values of one."""
    operands = (o for step in section.steps for o in step.reads if isinstance(o, CONSTANTS))
    values = (sum(_nbytes(section.graph, o) for o in _values(s)) for s in section.steps)
    return sum({id(o): o.nbytes for o in operands}.values()) + max(values, default=0)


Shares = tuple[float, float]
"""The shares of some bytes that have left the L2 cache, and a core's share of the next."""


class _Touches:
    """The order of touched operands, in bytes. It tells where an operand lies by now."""

    def __init__(self, isa: Isa, footprint: int) -> None:
        self._isa, self._footprint, self._total = isa, footprint, 0
        self._touched: dict[Operand, int] = {}

    def of(self, section: Section) -> Iterator[tuple[Step, tuple[Shares, Shares]]]:
        """Yield the steps of a section, parts and all, each with where its values and weights lie.

        Weights of a part are still where the part before it left them. All parts after the first
        are alike.
        """
        whole = self._footprint
        yield from self._part(section, _beyond(whole, self._isa))
        if section.parts > 1:
            before, cold = self._total, _beyond(_footprint(section), self._isa)
            again = list(self._part(section, cold))
            self._total += (section.parts - 2) * (self._total - before)
            for _ in range(section.parts - 1):
                yield from again

    def _part(self, section: Section, cold: Shares) -> Iterator[tuple[Step, tuple[Shares, Shares]]]:
        entering = set(section.graph.inputs) if section.parts > 1 else set()
        for step in section.steps:
            far = remote = 0.0
            values = _values(step)
            written = set(map(_owner, step.writes))
            for operand in values:
                size = _nbytes(section.graph, operand)
                fresh = self._total if operand in written else 0
                since = self._total - self._touched.get(operand, fresh)
                shares = _beyond(min(size + since, self._footprint), self._isa)
                far, remote = far + size * shares[0], remote + size * shares[1]
            self._total += sum(_nbytes(section.graph, o) for o in values) + _weights(step)
            again = [operand for operand in values if operand not in entering]
            self._touched.update(dict.fromkeys(again, self._total))
            yield step, ((far, remote), cold)


def _alone(work: KernelCost, step: Step, threads: int) -> KernelCost:
    """Return a kernel's work where one of the threads does all chunks."""
    share = _share_of(step, threads)
    mine = {n: amount for n, amount in work.terms.items() if n != FLAGS and BYTES not in n}
    terms = {name: amount / share for name, amount in mine.items()}
    family = work.family.removesuffix(_COLUMNS)
    guess_s = None if work.guess_s is None else work.guess_s / share / _crowding(step, threads)
    return KernelCost(work.nodes, f"{family} alone", terms, guess_s)


def _share_of(step: Step, threads: int) -> float:
    """Return how much of a step's chunks the busiest thread has."""
    return -(-step.chunks // threads) / step.chunks


def _crowding(step: Step, threads: int) -> float:
    """Return how much longer threads take side by side than their shares of one thread's time."""
    return 1 + _CROWDED * max(min(step.chunks, threads) - 2, 0)


def _beyond(nbytes: int, isa: Isa) -> tuple[float, float]:
    """Return the shares (0 to 1) of an operand that have left the L2 cache and a core's share of
    the next, after so many bytes.
    """
    near, next = isa.l2_bytes, _NEXT * isa.l2_bytes
    return _share(nbytes, near), _share(nbytes, next)


def _share(nbytes: int, cache_bytes: int) -> float:
    return min(max(2.0 * nbytes / cache_bytes - 1, 0.0), 1.0)


def _work(
    graph: Graph, step: Step, threads: int, far: Shares, cold: Shares, relative_time: float
) -> KernelCost:
    share = _share_of(step, threads)
    family = family_of(graph, step)
    nbytes = max(float(sum(_nbytes(graph, o) for o in _values(step))), 1.0)
    if step.family in _CONCAT:  # writes a part of its output: as much as it reads
        read = 2.0 * sum(_nbytes(graph, o) for o in step.reads if not isinstance(o, CONSTANTS))
        far = far[0] * read / nbytes, far[1] * read / nbytes
        nbytes = read
    weights = _weights(step)
    terms: dict[str, float] = {
        "model_s": (step.seconds - step.stores_s) * share,
        "bytes": nbytes * share,
        "far_bytes": far[0] * share,
        "remote_bytes": far[1] * share,
        "cold_bytes": weights * cold[0] * share,
        "remote_cold_bytes": weights * cold[1] * share,
        "activations": _activations(graph, step) * share,
    }
    if step.stores_s:
        terms["stores_s"] = step.stores_s * share
    if threads > 1:
        terms |= {BYTES + name: terms[name] for name in _HANDED} | {FLAGS: float(share < 1)}
        family += _COLUMNS * step.is_dealt_by_columns
    if step.family in _PRODUCTS:
        del terms["bytes"]
    guess_s = step.seconds * share * _crowding(step, threads) * relative_time
    return KernelCost(step.nodes, family, terms, guess_s)


def _weights(step: Step) -> int:
    """Return the bytes of constants that a step reads; a gather reads as much of its table as it
    writes.
    """
    if step.family == "gather":
        return 0
    return sum(o.nbytes for o in step.reads if isinstance(o, CONSTANTS))


def family_of(graph: Graph, step: Step) -> str:
    """Return the family of a step where it works: strides, one row and signs make others."""
    found = step.family
    if not step.nodes:
        return found
    first = graph.node(step.nodes[0])
    if found in _WINDOWS:
        found += " strided" * (max(first.attrs.get("strides", (1,))) > 1)
    made = graph.type(first.outputs[0])
    if made.dims and made.elements == made.dims[-1]:
        found = _OF_ONE_ROW.get(found, found)
    is_unsigned = bool(first.used) and graph.type(first.used[0]).dtype == "uint8"
    return f"{found} uint8" if is_unsigned else found


def _values(step: Step) -> list[Operand]:
    """Return the values and temps that a step reads or writes, also where only in a part."""
    return [o for o in map(_owner, (*step.reads, *step.writes)) if isinstance(o, (int, Temp))]


def _owner(operand: Operand) -> Operand:
    return operand.of if isinstance(operand, At) else operand


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
