"""Run the kernels of a program with every operand between two pages that nobody may touch.

Operands (inputs and constants, which are read-only then; outputs; memory between steps; a thread's
own memory) begin right after the first page, or end right before the second. A read or write
outside ends the process: the last call that faulthandler shows is named for the kernel and chunk.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    Extents,
    InPlace,
    KernelFault,
    StateMemory,
    Step,
    Temp,
)
from trireme.ir.effects import uses_state, writes_state
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array, numpy_dtype

POISON = 0xA5
NATIVE = sys.platform == "linux"
"""Whether this system can guard memory; elsewhere the checks do nothing."""
_LIBC = ctypes.CDLL(None, use_errno=True) if NATIVE else None
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


class Guarded:
    """Bytes between two guard pages; poison fills the rest of their pages.

    data: what the memory holds at first; poison when None
    """

    def __init__(
        self, nbytes: int, at_end: bool, data: Array | None = None, read_only: bool = False
    ) -> None:
        page = mmap.PAGESIZE
        room = -(-max(nbytes, 1) // page) * page
        self.map = mmap.mmap(-1, room + 2 * page)
        self.whole: Array = np.frombuffer(self.map, np.uint8)
        self.whole[:] = POISON
        self.start = page + (room - nbytes if at_end else 0)
        self.bytes = self.whole[self.start : self.start + nbytes]
        if data is not None:
            self.bytes[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.base, self.page, self.room = self.whole.ctypes.data, page, room
        self.address = self.base + self.start
        self.read_only = read_only

    def protect(self) -> None:
        """Forbid the pages around the bytes, and writes to the bytes themselves if read-only."""
        self._allow(0, self.page, 0)
        self._allow(self.page + self.room, self.page, 0)
        if self.read_only:
            self._allow(self.page, self.room, mmap.PROT_READ)

    def release(self) -> None:
        """Allow everything again."""
        self._allow(0, self.room + 2 * self.page, mmap.PROT_READ | mmap.PROT_WRITE)

    def _allow(self, offset: int, size: int, mode: int) -> None:
        assert _LIBC is not None, "guards are used where NATIVE only"
        done = _LIBC.mprotect(ctypes.c_void_p(self.base + offset), ctypes.c_size_t(size), mode)
        assert done == 0, ctypes.get_errno()

    def check(self, what: str) -> None:
        """See that the poison around the bytes is untouched."""
        around = [self.whole[: self.start], self.whole[self.start + self.bytes.size :]]
        assert all((part == POISON).all() for part in around), f"{what}: written outside its bytes"


def run_guarded(executable: Any, feeds: Mapping[int, Array], at_end: bool) -> list[Array] | None:
    """Return the outputs of a program whose steps are all native, None if some are not.

    at_end: operands end at a guard page instead of beginning at one; chunks run last to first
    """
    program = executable._program
    if not NATIVE or not all(isinstance(item, Step) for item in program.items):
        return None
    places = _places(program, feeds, at_end)
    local = Guarded(program.local_bytes, at_end)
    guarded = (*places.values(), local)
    for place in guarded:
        place.protect()
    try:
        _run(program, executable._code, places, local, at_end)
    finally:
        for place in guarded:
            place.release()
    for key, place in places.items():
        place.check(f"{key} of {[item.code.name for item in program.items]}")
    local.check("a thread's own memory")
    parts = {key: place.bytes for key, place in places.items()}
    return [output_of(program, parts, value) for value in program.graph.outputs]


def _places(program: Any, feeds: Mapping[int, Array], at_end: bool) -> dict[Any, Guarded]:
    """Memory for every operand, by what names it."""
    graph = program.graph
    places: dict[Any, Guarded] = {
        ("state", name): Guarded(data.nbytes, at_end, data)
        for name, data in initial_states(graph).items()
    }
    for value in (*graph.inputs, *graph.outputs):
        if value not in places and not graph.values[value].is_constant:
            data = feeds.get(value)
            places[value] = Guarded(graph.type(value).nbytes, at_end, data, data is not None)
    for step in program.items:
        for operand in (*step.reads, *step.writes):
            operand = operand.of if isinstance(operand, At) else operand
            key = key_of(program, operand)
            if key in places:
                continue
            if isinstance(operand, CONSTANTS):
                data = program.constants[key[1]]
                places[key] = Guarded(data.nbytes, at_end, data, True)
            elif isinstance(operand, Extents):
                data = operand.words[operand.at :]
                places[key] = Guarded(data.nbytes, at_end, data, True)
            elif isinstance(operand, InPlace):
                data = span_of(operand)
                places[key] = Guarded(data.nbytes, at_end, data, True)
            else:
                fresh = np.zeros(2, np.int64) if isinstance(operand, KernelFault) else None
                places[key] = Guarded(size_of(graph, key, operand), at_end, fresh)
    return places


def key_of(program: Any, operand: Any) -> Any:
    """What names the memory of an operand."""
    if isinstance(operand, At):
        return key_of(program, operand.of)
    if isinstance(operand, CONSTANTS):
        return "constant", id(operand)
    if isinstance(operand, InPlace):
        return "in place", id(operand)
    if isinstance(operand, KernelFault):
        return "fault", id(operand)
    if isinstance(operand, Extents):
        return "extents", operand.at
    if isinstance(operand, StateMemory):
        return "state", operand.state
    if isinstance(operand, Temp):
        return "temp", operand.key
    home = program.buffer_aliases[operand]
    return ("state", program.states.views[home]) if home in program.states.views else home


def initial_states(graph: Graph) -> dict[str, Array]:
    """What the memory of each state holds before the first run, by name."""
    first: dict[str, Array] = {}
    for node in graph.nodes:
        if uses_state(node) and not writes_state(node):
            data = graph.values[node.used[0]].data
            assert data is not None, "the cpu keeps states that begin as a constant"
            first[node.attrs["state"]] = data
    return first


def span_of(operand: InPlace) -> Array:
    """The bytes from the first to the last of a constant that is read where it lies."""
    low, high = np.lib.array_utils.byte_bounds(operand.data)
    assert low == operand.data.ctypes.data, "strides go backwards"
    return np.frombuffer(ctypes.string_at(low, high - low), np.uint8)


def size_of(graph: Graph, key: Any, operand: Any) -> int:
    """How many bytes an operand that is not packed constants takes."""
    if isinstance(operand, KernelFault):
        return 16
    return operand.nbytes if isinstance(operand, Temp) else graph.type(key).nbytes


def _run(
    program: Any, code: Sequence[int], places: Mapping[Any, Guarded], local: Guarded, at_end: bool
) -> None:
    """Run every step, each chunk by a function whose name says which it is."""
    for number, step in enumerate(program.items):
        kernel = _KERNEL(code[number])
        operands = [
            places[key_of(program, o)].address + (o.offset if isinstance(o, At) else 0)
            for o in (*step.reads, *step.writes)
        ]
        args = (ctypes.c_int64 * max(len(operands), 1))(*operands)
        chunks = range(step.chunks)
        for chunk in reversed(chunks) if at_end else chunks:
            where = "end" if at_end else "start"
            what = f"<{step.code.name}, chunk {chunk}, operands at their {where}>"
            named = FunctionType(_call.__code__.replace(co_name=what), globals())
            named(kernel, ctypes.addressof(args), chunk, local.address)


def _call(kernel: Any, args: int, chunk: int, local: int) -> None:
    kernel(args, chunk, local)


def output_of(program: Any, parts: Mapping[Any, Array], value: int) -> Array:
    """A graph's output as an array, from the bytes of every operand."""
    graph = program.graph
    if graph.values[value].is_constant:
        array: Array = graph.values[value].data
        return array
    home = program.buffer_aliases[value]
    type = graph.type(value)
    return parts[home].view(numpy_dtype(type.dtype)).reshape(type.dims).copy()
