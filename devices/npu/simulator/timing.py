"""Execute a stream for its cycles: three engines, each in order; only barriers make them wait.

The cycles depend on the stream alone, not on values, so they are computed once a compiled task.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trireme.devices.npu.simulator.cycles import work_cost
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import ENGINE_OF, ENGINES, Barrier, CommandStream


@dataclass
class NodeCycles:
    """The cycles of one node of a task.

    start, end: the first cycle of its first command, and the last cycle of its last one
    added: the node's delay of the task's end; the delays of all nodes add up to the total
    busy: cycles by engine
    macs: multiply-adds
    dram_bytes: bytes to and from DRAM
    """

    start: int = -1
    end: int = 0
    added: int = 0
    macs: int = 0
    dram_bytes: int = 0
    busy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENGINES, 0))


@dataclass(frozen=True)
class Timeline:
    """Cycles of a task, by node (as in CommandStream.nodes) and by command: (start, end)."""

    cycles: int
    nodes: tuple[NodeCycles, ...]
    commands: tuple[tuple[int, int], ...]


def simulate_cycles(spec: NpuSpec, task: CommandStream) -> Timeline:
    """Return when every command of a verified stream starts and ends."""
    free = dict.fromkeys(ENGINES, 0)
    done: dict[str, list[int]] = {engine: [0] for engine in ENGINES}
    nodes = [NodeCycles() for _ in task.nodes]
    spans: list[tuple[int, int]] = []
    for command in task.commands:
        work = command.work
        if isinstance(work, Barrier):
            counts = zip(ENGINES, (work.dma, work.matrix, work.vector), strict=True)
            ready = max(done[engine][count] for engine, count in counts)
            free[work.engine] = max(free[work.engine], ready)
            spans.append((free[work.engine], free[work.engine]))
            continue
        engine, cost = ENGINE_OF[type(work)], work_cost(spec, work)
        start = free[engine]
        end = start + cost.cycles
        free[engine] = end
        done[engine].append(end)
        spans.append((start, end))
        node = nodes[command.node]
        node.start = start if node.start < 0 else min(node.start, start)
        node.end = max(node.end, end)
        node.macs += cost.macs
        node.dram_bytes += cost.dram_bytes
        node.busy[engine] += cost.cycles
    total = 0
    for node in nodes:
        node.added = max(node.end - total, 0)
        total += node.added
        node.start = max(node.start, 0)
    return Timeline(total, tuple(nodes), tuple(spans))
