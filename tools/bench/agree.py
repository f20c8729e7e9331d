"""Do the engines of a benchmark give the same outputs, and if not, which one is apart?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.tools.bench.peers import OURS
from trireme.tools.verify import Difference, compare_all

FLOAT_TOLERANCE = 1e-3
QUANTISED_TOLERANCE = 0.1
UNITS = 16


class Tolerance(NamedTuple):
    """relative: of float outputs, to the largest value; units: of integer outputs."""

    relative: float
    units: int


def tolerance_of(graph: Graph, relative: float | None, units: int | None) -> Tolerance:
    """Return what is allowed between engines: more where a graph computes in integers.

    Runtimes round quantised values differently, and some compute them in float32; float32 engines
    differ by the order of their sums and by Winograd's transforms.
    """
    quantised = any(value.type.quant is not None for value in graph.values.values())
    default = QUANTISED_TOLERANCE if quantised else FLOAT_TOLERANCE
    return Tolerance(default if relative is None else relative, UNITS if units is None else units)


def save_arrays(file: Path, arrays: Mapping[str, Array]) -> None:
    """Store arrays as workers read and write them: by position, beside a list of the names."""
    named = {str(i): array for i, array in enumerate(arrays.values())}
    np.savez(file, allow_pickle=False, names=np.array(list(arrays), np.str_), **named)


def load_arrays(file: Path) -> dict[str, Array]:
    """Return the arrays stored in a file, by name (by position where they have no names)."""
    with np.load(file, allow_pickle=False) as stored:
        names = stored["names"].tolist()
        return {name or str(i): stored[str(i)] for i, name in enumerate(names)}


def judge(
    outputs: Mapping[str, Mapping[str, Array]], tolerance: Tolerance
) -> dict[str, tuple[str, float]]:
    """Return for each engine how it is apart ("" if it is not), and its largest difference.

    The engine that most others agree with is the reference, ours where it is as good as any.
    """
    names = sorted(outputs, key=lambda name: name != OURS)
    differences = {
        (a, b): _worst(outputs[a], outputs[b], tolerance) for a in names for b in names if a != b
    }
    agreed = {a: sum(differences[a, b].agrees for b in names if b != a) for a in names}
    reference = max(names, key=lambda name: agreed[name], default=OURS)
    verdicts = {}
    for name in names:
        if name == reference:
            verdicts[name] = ("", 0.0)
            continue
        worst = differences[reference, name]
        text = f"output {worst.name} is {worst.largest:.3g} ({worst.kind}) from {reference}'s"
        verdicts[name] = ("" if worst.agrees else text, worst.largest)
    return verdicts


def _worst(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: Tolerance
) -> Difference:
    """Return the output that differs most; a number of outputs that differs is a difference."""
    if len(ours) != len(theirs):
        return Difference(
            f"count ({len(theirs)} instead of {len(ours)})", "outputs", np.inf, 1, False
        )
    if set(ours) != set(theirs):
        theirs = dict(zip(ours, theirs.values(), strict=True))
    shaped = {
        n: a.reshape(ours[n].shape) if a.size == ours[n].size else a for n, a in theirs.items()
    }
    rows = compare_all(ours, shaped, tolerance.relative, tolerance.units)
    return max(rows, key=lambda row: (not row.agrees, row.largest))
