"""Memory that a plan needs beside its arenas: weights, code, and scratch inside tasks.

`plan` calls this module with the devices' figures of single nodes, `program` with the compiled
code's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trireme.backend.arena import LiveRange, MemoryUse, align_up, peak_bytes
from trireme.backend.device import Executable, Resident, added_weights
from trireme.ir.graph import Graph, Node
from trireme.placement.placement import Placement, largest_values
from trireme.support.errors import PlanError

Region = tuple[str, Sequence[Node], Sequence[int]]
"""A task: its device, its nodes, and the values that other tasks or the caller read."""


def beside_arena(placement: Placement, regions: Iterable[Region], memory: str) -> MemoryUse:
    """Return the predicted need of a memory space, without the arena."""
    specs = {name: spec for name, spec in placement.specs.items() if spec.memory == memory}
    limit = min((s.memory_bytes for s in specs.values() if s.memory_bytes), default=0)
    weights, code, scratch = 0, 0, dict.fromkeys(specs, 0)
    for device, nodes, leaving in regions:
        if device not in specs:
            continue
        kept = [placement.choices[node.id].resident.get(device, Resident()) for node in nodes]
        weights += sum(added_weights(kept))
        code += sum(one.code for one in kept)
        if limit:
            inside = _inside_bytes(placement.graph, nodes, leaving, specs[device].alignment)
            scratch[device] = max(scratch[device], inside - specs[device].sram_bytes)
    found = next((use for use in placement.memory if use.memory == memory), MemoryUse(memory, 0))
    return MemoryUse(
        memory,
        limit,
        0,
        weights,
        sum(scratch.values()),
        code,
        found.streamed,
        found.streamed_s,
        any(spec.streams_weights for spec in specs.values()),
    )


def _inside_bytes(
    graph: Graph, nodes: Sequence[Node], leaving: Sequence[int], alignment: int
) -> int:
    """Return the most bytes that live at once, of the values that live and die inside a task."""
    first = {v: step for step, node in enumerate(nodes) for v in node.outputs if v not in leaving}
    last = dict(first)
    for step, node in enumerate(nodes):
        last.update((v, step) for v in node.used if v in first)
    return peak_bytes(
        [LiveRange(v, first[v], last[v], align_up(graph.type(v).nbytes, alignment)) for v in first]
    )


def compiled_use(
    use: MemoryUse, executables: Mapping[int, Executable], devices: Mapping[int, str]
) -> MemoryUse:
    """Return the need of a memory space by compiled tasks.

    executables: by task
    devices: of each task
    """
    scratch: dict[str, int] = {}
    for task, made in executables.items():
        scratch[devices[task]] = max(scratch.get(devices[task], 0), made.scratch_bytes)
    return MemoryUse(
        use.memory,
        use.limit,
        use.arena,
        sum(e.constant_bytes for e in executables.values()),
        sum(scratch.values()),
        sum(e.code_bytes for e in executables.values()),
        use.streamed,
        use.streamed_s,
        use.can_stream,
    )


def check_fits(placement: Placement, use: MemoryUse, least_arena: int) -> None:
    """Raise PlanError, naming the three largest values, if a memory space is too small.

    least_arena: a lower bound of the arena's bytes, for any packing
    """
    specs = [spec for spec in placement.specs.values() if spec.memory == use.memory]
    piece = min((spec.buffer_bytes for spec in specs if spec.buffer_bytes), default=0)
    largest = max(use.arena, use.scratch)
    if not use.excess and not 0 < piece < largest:
        return
    problem = f"{use.needed} bytes are needed of {use.memory}, its memory has {use.limit}"
    if not use.excess:
        problem = f"{largest} bytes in one piece are needed of {use.memory}, which gives {piece}"
    mine = [node for spec in specs for node in placement.nodes_on(spec.name)]
    raise PlanError(
        problem,
        facts=[
            str(use),
            f"no order of packing the arena takes less than {least_arena} bytes",
            "largest: " + ", ".join(largest_values(placement.source, mine)),
        ],
        fix="leave out the device, or give it more memory",
    ).of_device(specs[0].name)
