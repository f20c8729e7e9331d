"""Make the image of a compiled region, which `runtime/image.py` runs in a later process.

A region has one when native code runs all of it: no node is on numpy, there are no states, no
output is an input, a constant or listed twice, and every kernel's object code is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trireme.backend.image import TaskImage
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.link import can_link, lay_out
from trireme.devices.cpu.compile.program import RegionProgram
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
from trireme.support.dtypes import Array

_TRIED_NUMBERS = (7654321, -7654321, 0)
"""Numbers that a fault's sentence is asked with, to see that it only repeats them."""


def image_of(program: RegionProgram, jit: Jit, pool: StepPool) -> TaskImage | None:
    """Return the image of a program with its constants, None where it has none."""
    steps = [item for item in program.items if isinstance(item, Step)]
    graph = program.graph
    ends = (*graph.inputs, *graph.outputs)
    twice = len({*ends}) < len(ends) or any(graph.values[value].is_constant for value in ends)
    if program.states.names or twice or len(steps) < len(program.items) or not steps:
        return None
    runtime = runtime_code(jit, pool.futex)
    objects = jit.kept_objects([runtime.code, *program.codes])
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
    return TaskImage(facts, tables, tuple(places.constants))


class _NoImage(Exception):
    """An operand has no place in an image."""


Place = tuple[str, int, int]
"""What an operand is in (an argument, the scratch memory, a fault, a constant), its number, the
offset in bytes."""


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
            return self._constant(id(operand), operand.data)
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
