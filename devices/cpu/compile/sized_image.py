"""What the image of an open program adds for shapes that it was not made at.

The sizes of steps are recorded code (recording.py), which is stored as Python's code objects. A
shape is served if each step has recorded code that goes the way of the shape.
Operands that shapes decide are windows of contents that no size changes (ir/prefixes.py); their
contents are stored for larger sizes, and a shape takes its part. runtime/sized_image.py reads this.
"""

from __future__ import annotations

import marshal
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trireme.devices.cpu.compile.alike_steps import ARRAYS, WORDS, AlikeSteps
from trireme.devices.cpu.compile.region import OpenOrigin
from trireme.devices.cpu.compile.resizing import Resizer
from trireme.devices.cpu.runtime.sized_image import CALLS, SEARCHES
from trireme.ir.dim_values import Numbers, evaluator
from trireme.support.dtypes import Array
from trireme.support.errors import TriremeError

MOST_WAYS = 32
"""Recordings of a step; the attention of a BERT goes 10 ways."""
_QUIET = 128
"""So many shapes one after another that teach nothing end the recording."""
_SHAPES = 768
"""The most shapes at which recorded code is made."""
_SCALE = 512
"""Shapes at which code is made are drawn up to here, or up to twice those of the image."""
_MOST_ELEMENTS = 1 << 22
"""The most elements of an operand that shapes decide; few differ, and only those are stored."""


@dataclass(frozen=True, eq=False)
class SizedParts:
    """What the image of one shape adds.

    facts, tables: as of a TaskImage
    decided: contents for larger sizes, by operand that shapes decide; along an axis on which all
        are equal, one
    """

    facts: Mapping[str, Any]
    tables: Mapping[str, Array]
    decided: Mapping[int, Array]


def sized_parts(of: OpenOrigin, sizes: Numbers) -> SizedParts | None:
    """Return what serves other shapes; None where steps do not allow it.

    sizes: of the symbols, at the shape of the image
    """
    program, contents = of.program, of.contents
    steps = program.steps
    resizer = Resizer(program, steps, contents)
    if len(steps) < len(program.items) or resizer.has_temps:
        return None
    windows = contents.windows
    if any(value not in windows or any(windows[value]) for value in resizer.decided):
        return None
    most = _largest(of, sizes, resizer.decided)
    resizer.recordings, resizer.most_ways = len(resizer.groups), MOST_WAYS
    try:
        first = resizer.at(sizes)
        decided = {value: _distinct(contents.array(value, most)) for value in resizer.decided}
    except TriremeError:
        return None
    if any(row[ARRAYS] for row in first.rows):
        return None
    _learn(resizer, _samples(sizes, most))
    codes = [_codes(group) for group in resizer.groups]
    if not all(codes):
        return None
    graph, names = program.graph, contents.names
    dims = dict.fromkeys(dim for value in graph.values.values() for dim in value.shape)
    facts = {
        "names": names,
        "dims": list(dims),
        "most": most if decided else None,
        "groups": resizer.group_of.tolist(),
        "words": [len(row[WORDS]) for row in first.rows],
        "pointers": [1 + len(step.reads) + len(step.writes) for step in steps],
        "slots": [
            list(
                dict.fromkeys(
                    (graph.type(m).dtype, graph.type(m).shape)
                    for m in slot.members
                    if isinstance(m, int)
                )
            )
            for slot in program.slots
        ],
        "below": [slot.below for slot in program.slots],
        "decided": [graph.type(value).shape for value in decided],
    }
    recorded = np.frombuffer(marshal.dumps(codes), np.uint8)
    return SizedParts(facts, {"recorded": recorded}, decided)


def _learn(resizer: Resizer, shapes: Iterator[Numbers]) -> None:
    """Record the sizes of steps at shapes until these teach nothing more."""
    quiet = 0
    for sizes in shapes:
        before = resizer.resized
        try:
            resizer.at(sizes)
        except TriremeError:
            continue
        quiet = quiet + 1 if resizer.resized == before else 0
        if quiet == _QUIET:
            break


def _distinct(data: Array) -> Array:
    """Return contents with one part of those along an axis that are all equal, bit for bit."""
    if data.itemsize > np.dtype(np.uint64).itemsize:  # complex numbers
        return data
    numbers = data.view(f"u{data.itemsize}")
    for axis in range(data.ndim):
        one = numbers[(*[slice(None)] * axis, slice(1))]
        if np.array_equal(np.broadcast_to(one, numbers.shape), numbers):
            numbers = one
    return numbers.view(data.dtype)


def _codes(group: AlikeSteps) -> list[Any]:
    """Return the code of a group, each with the searches that it calls: first arguments.

    Code that calls another function of this process is left out.
    """
    found = []
    for one in group.codes:
        code = one.__code__
        named = {name: one.__globals__[name] for name in code.co_names if name not in CALLS}
        numbers = named.pop("inf", math.inf)
        searches = {
            name: (f.func.__name__, f.args)
            for name, f in named.items()
            if isinstance(f, partial) and f.func in SEARCHES.values()
        }
        if numbers == math.inf and len(searches) == len(named):
            found.append((code, searches))
    return found


def _largest(of: OpenOrigin, sizes: Numbers, decided: Sequence[int]) -> Numbers:
    """Return sizes for which contents are stored: powers of two, as far as they are allowed."""
    graph, names = of.program.graph, of.contents.names
    shapes = [evaluator(graph.type(value).shape, names) for value in decided]
    bounds = [graph.symbols.get(name, (0, None))[1] for name in names]
    most, left = list(sizes), {*range(len(sizes))}
    while left:
        for k in sorted(left):
            bound = bounds[k]
            larger = 1 << most[k].bit_length()
            tried = [*most[:k], larger if bound is None else min(larger, bound), *most[k + 1 :]]
            if tried[k] == most[k] or not _allowed(of, tuple(tried), shapes, decided):
                left.remove(k)
            else:
                most = tried
    return tuple(most)


def _allowed(of: OpenOrigin, sizes: Numbers, shapes: Sequence[Any], decided: Sequence[int]) -> bool:
    """Whether contents for these sizes are no more than is stored, and nothing refuses them."""
    most = max((math.prod(shape(*sizes)) for shape in shapes), default=0)
    if max(most, *sizes) > _MOST_ELEMENTS:
        return False
    try:
        for value in decided:
            of.contents.array(value, sizes)
    except TriremeError:
        return False
    return True


def _samples(sizes: Numbers, most: Numbers) -> Iterator[Numbers]:
    """Yield shapes: near those of the image, the least, and drawn ones at all scales and evenly.

    A third of them keeps sizes of the image, and a third has sizes of 1.
    """
    rng = random.Random(len(sizes))
    limits = [min(limit, max(2 * size, _SCALE)) for size, limit in zip(sizes, most, strict=True)]
    for change in (lambda n: n - 1, lambda n: n + 1, lambda n: n // 2, lambda n: 1):
        yield tuple(max(1, change(size)) for size in sizes)
    for k in range(_SHAPES):
        drawn = [rng.randint(1, n) if k % 2 else round(n ** rng.random()) for n in limits]
        kept = sizes if k % 3 == 1 else [1] * len(sizes) if k % 3 == 2 else drawn
        yield tuple(
            old if rng.random() < 0.5 else new for old, new in zip(kept, drawn, strict=True)
        )
