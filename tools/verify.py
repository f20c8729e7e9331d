"""`trireme verify`: run a model here and on a peer with the same inputs, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.dtypes import FLOATS, Array, dtype_name
from trireme.tools.commands import emit
from trireme.tools.options import make_feeds, open_session
from trireme.tools.peers import peer_of, run_peer


@dataclass(frozen=True)
class Difference:
    """How far one output is from the peer's.

    largest: for floats relative to the peer's largest value, for integers in units
    differing: share of the elements that are not equal
    """

    name: str
    kind: str
    largest: float
    differing: float
    agrees: bool


def compare(name: str, ours: Array, theirs: Array, tolerance: float, units: int) -> Difference:
    """Return how two outputs differ; NaN agrees with NaN, a shape never with another."""
    if ours.shape != theirs.shape:
        return Difference(name, f"shape {ours.shape} against {theirs.shape}", np.inf, 1.0, False)
    if not ours.size:
        return Difference(name, "empty", 0.0, 0.0, True)
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(same, 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    differing = float(1 - same.mean())
    if dtype_name(theirs.dtype) in FLOATS:
        finite = np.abs(b[np.isfinite(b)])
        largest = float(gap.max()) / max(float(finite.max(initial=0.0)), 1e-30)
        return Difference(name, "relative", largest, differing, largest <= tolerance)
    largest = float(gap.max())
    return Difference(name, "units", largest, differing, largest <= units)


def compare_all(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float, units: int
) -> list[Difference]:
    """Compare outputs by name where the names agree, else in order."""
    if set(ours) != set(theirs):
        theirs = dict(zip(ours, theirs.values(), strict=False))
    return [compare(n, ours[n], theirs[n], tolerance, units) for n in ours if n in theirs]


def verify(options: argparse.Namespace) -> int:
    """Compare with the peer; exit code 1 when an output is further apart than allowed."""
    peer = peer_of(options.model)
    with open_session(options) as session:
        feeds = make_feeds(options, session.inputs)
        ours = session.run(feeds)
        unused = dict(session.placement.unused)
        dropped = dict(session.dropped)
    rows = compare_all(ours, run_peer(options.model, feeds), options.tolerance, options.units)
    agree = all(row.agrees for row in rows) and len(rows) == len(ours)
    lines = [f"{options.devices} against {peer}, seed {options.seed}"]
    lines += [
        f"  {'ok   ' if row.agrees else 'APART'} {row.name}: largest difference "
        f"{row.largest:.3g} {row.kind}, {row.differing:.2%} of the elements differ"
        for row in rows
    ]
    lines += [f"  {name} has nothing to do: {why}" for name, why in unused.items()]
    lines += [f"  left out: {name}: {why}" for name, why in dropped.items()]
    data: dict[str, Any] = {
        "peer": peer, "agree": agree, "outputs": [vars(row) for row in rows],
        "unused": unused, "dropped": dropped,
    }  # fmt: skip
    emit(options, data, "\n".join(lines))
    return 0 if agree else 1
