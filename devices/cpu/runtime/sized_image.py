"""The image of an open program at other shapes than the one that it was made at.

compile/sized_image.py makes what this module reads. Recorded code gives the words, chunks and code
of each step, so no kernel is lowered and none of their modules is imported.
"""

from __future__ import annotations

import marshal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from trireme.backend.image import TaskImage
from trireme.devices.cpu.codegen.aligned_memory import aligned_copy
from trireme.devices.cpu.runtime.product_blocks import block_words
from trireme.devices.cpu.runtime.slot_places import slot_places
from trireme.devices.cpu.runtime.step_rows import call_flags, step_rows
from trireme.devices.cpu.runtime.window_blocks import even_chunks, window_words
from trireme.devices.cpu.runtime.winograd_blocks import winograd_words
from trireme.ir.dim_values import Numbers, evaluator, most_bytes
from trireme.ir.graph import TensorType

CALLS: Mapping[str, Any] = {call.__name__: call for call in (max, round, math.ceil, math.floor)}
"""What recorded code calls."""
SEARCHES: Mapping[str, Any] = {
    call.__name__: call for call in (block_words, even_chunks, window_words, winograd_words)
}
"""Searches whose calls a recording notes, with their first arguments."""


@dataclass(frozen=True)
class _SizedStep:
    """A step at one shape; reads: its pointers."""

    chunks: int
    seconds: float
    reads: range
    writes: range = range(0)


class SizedImage:
    """An image that serves other shapes too."""

    def __init__(self, image: TaskImage) -> None:
        self._image, self._facts = image, image.facts["sized"]
        facts, names = self._facts, self._facts["names"]
        codes = marshal.loads(image.tables["recorded"].tobytes())  # noqa: S302  our own cache
        self._recorded = [[_function(*one) for one in group] for group in codes]
        self._numbers = evaluator([*facts["dims"]], names)
        self._is_open = [isinstance(dim, str) for dim in facts["dims"]]
        types = [
            [TensorType(tuple(dims), dtype) for dtype, dims in slot] for slot in facts["slots"]
        ]
        self._slot_bytes = most_bytes(types, names)
        self._parts = [evaluator(dims, names) for dims in facts["decided"]]

    def at(self, sizes: Numbers) -> TaskImage | None:
        """Return the image at some sizes of the symbols, None where it does not serve them."""
        facts, image = self._facts, self._image
        most = facts["most"]
        if most is not None and any(n > m for n, m in zip(sizes, most, strict=True)):
            return None
        numbers = self._numbers(*sizes)
        if any(n < 1 for n, is_open in zip(numbers, self._is_open, strict=True) if is_open):
            return None
        rows = [_row(group, numbers) for group in self._recorded]
        groups, words = facts["groups"], facts["words"]
        if any(row is None or len(row[0]) != n for row, n in zip(rows, words, strict=True)):
            return None
        each = [rows[group] for group in groups]
        steps = [
            _SizedStep(row[1], row[2], range(n))
            for row, n in zip(each, facts["pointers"], strict=True)
        ]
        table_rows = step_rows(steps)
        codes = image.tables["variants"]
        table = [(codes[row.number, each[row.number][4]], *row.words) for row in table_rows]
        offsets, scratch_bytes = slot_places(self._slot_bytes(*sizes), facts["below"])
        begins = np.array(offsets, np.int64)
        pointers, slots = image.tables["pointers"].copy(), image.tables["slots"]
        inside = slots[:, 0] >= 0
        pointers[inside, 1] = begins[slots[inside, 0]] + slots[inside, 1]
        constants = list(image.constants)
        constants[facts["words_at"]] = np.array(
            [w for row in each for w in row[0]] or [0], np.int64
        )
        for (at, whole), part in zip(facts["decided_at"], self._parts, strict=True):
            shape = part(*sizes)
            cut = image.constants[whole][tuple(slice(size) for size in shape)]
            constants[at] = aligned_copy(np.broadcast_to(cut, shape))
        sized = {
            **image.facts,
            **call_flags(table_rows),
            "local_bytes": max(row[3] for row in rows),
            "scratch_bytes": scratch_bytes,
        }
        tables = {**image.tables, "steps": np.array(table, np.int64), "pointers": pointers}
        return TaskImage(sized, tables, tuple(constants))


def _function(code: CodeType, searches: Mapping[str, tuple[str, tuple[Any, ...]]]) -> Any:
    """Return recorded code as a function; searches: those that it calls, and first arguments."""
    calls = {name: partial(SEARCHES[what], *args) for name, (what, args) in searches.items()}
    return FunctionType(code, {"__builtins__": {}, "inf": math.inf, **CALLS, **calls})


def _row(recorded: Sequence[Any], numbers: Numbers) -> Any:
    """Return what recorded code has at some numbers, None where none goes their way."""
    for code in recorded:
        row = code(numbers)
        if row is not None:
            return row
    return None
