"""Make the image of a compiled region, which `runtime/image.py` runs in a later process.

A region has one when native code runs all of it: no node is on numpy, there are no states, no
output is an input, a constant or listed twice, and every kernel's object code is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trireme.backend.image import TaskImage
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.link import can_link, lay_out
from trireme.devices.cpu.compile.region import OpenOrigin, RegionProgram
from trireme.devices.cpu.kernels.lowering import (
    CONSTANTS,
    At,
    Extents,
    InPlace,
    KernelFault,
    Operand,
    Step,
    Temp,
)
from trireme.devices.cpu.runtime.compiled import runtime_code
from trireme.devices.cpu.runtime.image import NUMBER
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.devices.cpu.runtime.step_rows import call_flags, step_rows
from trireme.ir.dim_values import Numbers
from trireme.support.dtypes import Array

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.sized_image import SizedParts

_TRIED_NUMBERS = (7654321, -7654321, 0)
"""Numbers that a fault's sentence is asked with, to see that it only repeats them."""


def image_of(
    program: RegionProgram, jit: Jit, pool: StepPool, of: OpenOrigin | None = None
) -> TaskImage | None:
    """Return the image of a program with its constants, None where it has none.

    of: the open program that it is one shape of; the image serves others too where it can
    """
    steps = program.steps
    graph = program.graph
    ends = (*graph.inputs, *graph.outputs)
    twice = len({*ends}) < len(ends) or any(graph.values[value].is_constant for value in ends)
    if program.states.names or twice or len(steps) < len(program.items) or not steps:
        return None
    runtime = runtime_code(jit, pool.futex)
    sized = None if of is None else _sized_parts(program, of)
    codes = program.codes if of is None or sized is None else of.program.codes
    objects = jit.kept_objects([runtime.code, *codes])
    if objects is None or not all(map(can_link, objects)):
        return None
    places = _Places(program)
    try:
        pointers = [places.of(o) for step in steps for o in (*step.reads, *step.writes)]
    except _NoImage:
        return None
    layout = lay_out(objects)
    rows = step_rows(steps)
    table = [(layout.symbols[row.step.code.symbol], *row.words) for row in rows]
    facts: dict[str, Any] = {
        **call_flags(rows),
        "symbols": {name: layout.symbols[name] for name in runtime.functions},
        "runtime": runtime.functions,
        "externals": layout.externals,
        "threads": pool.threads,
        "futex": pool.futex,
        "local_bytes": program.local_bytes,
        "scratch_bytes": program.scratch_bytes,
        "faults": places.faults,
    }
    tables = {
        "code": layout.code,
        "moved": layout.moved,
        "steps": np.array(table, np.int64),
        "pointers": places.numbered(pointers),
    }
    if of is None or sized is None:
        return TaskImage(facts, tables, tuple(places.constants))
    numbers = [places.number_of(graph.values[value].data) for value in sized.decided]
    facts["sized"] = {
        **sized.facts,
        "words_at": places.number_of(steps[0].reads[0]),
        "decided_at": [(at, len(places.constants) + k) for k, at in enumerate(numbers)],
    }
    tables |= sized.tables
    tables["slots"] = places.slots(steps, of)
    tables["variants"] = _variants(of, layout.symbols)
    return TaskImage(facts, tables, (*places.constants, *sized.decided.values()))


def _sized_parts(program: RegionProgram, of: OpenOrigin) -> SizedParts | None:
    from trireme.devices.cpu.compile.sized_image import sized_parts

    return sized_parts(of, _sizes(program, of))


def _sizes(program: RegionProgram, of: OpenOrigin) -> Numbers:
    """Return the sizes of the symbols at the shape of a program."""
    known = {
        dim: size
        for value in of.program.graph.input_values()
        for dim, size in zip(value.shape, program.graph.type(value.id).dims, strict=True)
    }
    return tuple([known[name] for name in of.contents.names])


def _variants(of: OpenOrigin, symbols: Mapping[str, int]) -> Array:
    """Return the addresses of the kernels of each step, by variant."""
    steps = of.program.steps
    table = np.zeros((len(steps), max(len(step.codes) for step in steps)), np.int64)
    for k, step in enumerate(steps):
        table[k, : len(step.codes)] = [symbols[code.symbol] for code in step.codes]
    return table


class _NoImage(Exception):
    """An operand has no place in an image."""


Place = tuple[str, int, int]
"""What an operand is in (an argument, the scratch memory, a fault, a constant), its number, the
offset in bytes."""


def _in_order(data: Array) -> Array:
    """Return an array with its axes in the order of memory; a kernel knows the strides."""
    return data.transpose(np.argsort([-stride for stride in data.strides], kind="stable"))


class _Places:
    """Where operands are, without addresses."""

    def __init__(self, program: RegionProgram) -> None:
        graph = program.graph
        self._program = program
        self._arguments = {v: k for k, v in enumerate((*graph.inputs, *graph.outputs))}
        self._numbers: dict[int, int] = {}
        self._fault_numbers: dict[int, int] = {}
        self.constants: list[Array] = []
        self.faults: list[str] = []

    def of(self, operand: Operand) -> Place:
        """Return where an operand is. Errors: _NoImage"""
        if isinstance(operand, CONSTANTS):
            return self._constant(id(operand), self._program.constants[id(operand)])
        if isinstance(operand, InPlace):
            return self._constant(id(operand), _in_order(operand.data))
        if isinstance(operand, Extents):
            kind, number, _ = self._constant(id(operand.words), operand.words)
            return kind, number, operand.words.itemsize * operand.at
        if isinstance(operand, At):
            kind, number, offset = self.of(operand.of)
            return kind, number, offset + operand.offset
        if isinstance(operand, Temp):
            return "scratch", 0, self._program.offsets[operand.key]
        if isinstance(operand, KernelFault):
            return self._fault(operand)
        if not isinstance(operand, int):
            raise _NoImage
        home = self._program.buffer_aliases[operand]
        if home in self._arguments:
            return "argument", self._arguments[home], 0
        return "scratch", 0, self._program.offsets[home]

    def numbered(self, places: Sequence[Place]) -> Array:
        """Return places as rows (number of the memory, offset): arguments, scratch, faults,
        constants.
        """
        counts = {
            "argument": len(self._arguments),
            "scratch": 1,
            "fault": len(self.faults),
            "constant": len(self.constants),
        }
        starts, total = {}, 0
        for kind, count in counts.items():
            starts[kind] = total
            total += count
        return np.array([(starts[kind] + k, offset) for kind, k, offset in places], np.int64)

    def number_of(self, operand: object) -> int:
        """Return the number of a constant, or of the words of a step."""
        return self._numbers[id(operand.words if isinstance(operand, Extents) else operand)]

    def slots(self, steps: Sequence[Step], of: OpenOrigin) -> Array:
        """Return rows (slot of the scratch memory, offset in it) by pointer; slot -1 for others."""
        slot_of = {m: k for k, slot in enumerate(of.program.slots) for m in slot.members}
        rows = []
        for operand in (o for step in steps for o in (*step.reads, *step.writes)):
            inner = operand.of if isinstance(operand, At) else operand
            home = self._program.buffer_aliases[inner] if isinstance(inner, int) else None
            offset = operand.offset if isinstance(operand, At) else 0
            rows.append((-1, 0) if home not in slot_of else (slot_of[home], offset))
        return np.array(rows, np.int64)

    def _constant(self, key: int, data: Array) -> Place:
        if not data.flags.c_contiguous:
            raise _NoImage
        if key not in self._numbers:
            self._numbers[key] = len(self.constants)
            self.constants.append(data)
        return "constant", self._numbers[key], 0

    def _fault(self, fault: KernelFault) -> Place:
        sentence = _sentence(fault.message)
        if sentence is None:
            raise _NoImage
        if id(fault) not in self._fault_numbers:
            self._fault_numbers[id(fault)] = len(self.faults)
            self.faults.append(sentence)
        return "fault", self._fault_numbers[id(fault)], 0


def _sentence(message: Callable[[int], str]) -> str | None:
    """Return the sentence of a fault with NUMBER for its number, None where that is not all."""
    first, *others = _TRIED_NUMBERS
    sentence = message(first).replace(str(first), NUMBER)
    same = all(sentence.replace(NUMBER, str(number)) == message(number) for number in others)
    return sentence if same else None
