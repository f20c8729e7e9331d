"""One shape of a program for every shape: the words that kernels read, chunks and offsets."""

from __future__ import annotations

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.compile.region import Item, RegionProgram
from trireme.devices.cpu.kernels.lowering import Extents, Operand, Sized, SizedTemp, Step, Temp
from trireme.devices.cpu.runtime.slot_places import slot_places
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, InternalError


def program_at(program: RegionProgram, graph: Graph) -> RegionProgram:
    """Return the program for a graph of the same nodes with static types.

    Errors: CompileError, if the kernels do not serve the shape
    """
    opened = program.opened
    if opened is None:
        raise InternalError("cpu: a program of one shape has no other shapes")
    opened.check_shape(graph)
    sized = [(item, sized_for(item, graph)) for item in program.items if isinstance(item, Step)]
    words = np.array([word for _, one in sized for word in one.words] or [0], np.int64)
    extra: dict[int, Array] = {}

    def operand_of(operand: Operand) -> Operand:
        if isinstance(operand, int) and operand in program.decided:
            data = graph.values[operand].data
            if data is not None:
                extra[id(data)] = as_kernels_read(data)
                return data
        if isinstance(operand, SizedTemp):
            return Temp(operand.key, operand.bytes_at(graph))
        return operand

    made: dict[Item, Step] = {}
    at = 0
    for step, one in sized:
        reads, writes = step.reads, step.writes
        decided = not program.decided.isdisjoint(o for o in reads if isinstance(o, int))
        if decided or program.temps:
            reads, writes = (tuple(map(operand_of, ends)) for ends in (reads, writes))
        extra |= {id(array): as_kernels_read(array) for array in one.arrays}
        made[step] = Step(
            step.codes[one.variant],
            (Extents(words, at), *one.arrays, *reads),
            writes,
            one.chunks,
            one.local_bytes,
            one.seconds,
            step.nodes,
            one.columns,
            family=step.family,
        )
        at += len(one.words)
    offsets, nbytes = _offsets(program, graph)
    return RegionProgram(
        graph,
        tuple(made.get(item, item) for item in program.items),
        program.buffer_aliases,
        program.kernels,
        offsets,
        nbytes,
        constants={**program.constants, **extra} if extra else program.constants,
    )


def sized_for(step: Step, graph: Graph) -> Sized:
    """Return what a shape decides of a step.

    Errors: CompileError, if it reads or makes an empty tensor, and not only moves elements
    """
    sized = step.sized(graph)
    values = graph.values
    if sized.chunks and any(
        values[operand].type.elements == 0
        for operand in (*step.reads, *step.writes)
        if isinstance(operand, int)
    ):
        label = graph.node(step.nodes[-1]).label
        raise CompileError(f"cpu: {label} has no kernel of all shapes for empty tensors")
    return sized


def _offsets(program: RegionProgram, graph: Graph) -> tuple[dict[int | str, int], int]:
    """Return the offsets in scratch memory for a shape, and its bytes."""
    room = [
        max(
            program.temps[member].bytes_at(graph)
            if isinstance(member, str)
            else graph.values[member].type.nbytes
            for member in slot.members
        )
        for slot in program.slots
    ]
    begins, nbytes = slot_places(room, [slot.below for slot in program.slots])
    pairs = zip(program.slots, begins, strict=True)
    return {member: begin for slot, begin in pairs for member in slot.members}, nbytes
