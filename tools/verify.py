"""`trireme verify`: compare a run with a peer's on the same inputs, or with the references."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trireme.runtime.compare import NodeGap, compare_nodes, gap
from trireme.support.dtypes import Array
from trireme.tools.bench.peers import peer_of, run_peer
from trireme.tools.feeds import make_feeds
from trireme.tools.output import emit
from trireme.tools.parsed import open_session


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
    """Return how two outputs differ, and whether by no more than what is allowed."""
    found = gap(ours, theirs)
    limit = tolerance if found.kind == "relative" else units
    agrees = found.largest <= limit
    return Difference(name, found.kind, found.largest, found.differing, agrees)


def compare_all(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float, units: int
) -> list[Difference]:
    """Compare outputs by name where the names agree, else in order."""
    if set(ours) != set(theirs):
        theirs = dict(zip(ours, theirs.values(), strict=False))
    return [compare(n, ours[n], theirs[n], tolerance, units) for n in ours if n in theirs]


def verify(options: argparse.Namespace) -> int:
    """Compare with the peer, or node by node with the references; exit code 1 when apart."""
    return verify_nodes(options) if options.per_node else verify_outputs(options)


def verify_nodes(options: argparse.Namespace) -> int:
    """Compare every intermediate with the numpy references and name the first that is apart."""
    units = 0 if options.units is None else options.units
    options.execution = options.execution or "interactive"
    with open_session(options) as session:
        feeds = make_feeds(options, session.inputs)
        rows = compare_nodes(session, feeds, options.tolerance, units)
    first = next((row for row in rows if not row.agrees), None)
    worst = max((row.total.largest for row in rows), default=0.0)
    lines = [f"{options.devices} against the numpy references, node by node, seed {options.seed}"]
    lines += [f"  {row}" for row in rows if options.all or not row.agrees]
    lines.append(_verdict(rows, first, worst))
    data: dict[str, Any] = {
        "agree": first is None,
        "values": [row.to_json() for row in rows],
        "first_divergence": None if first is None else first.to_json(),
    }
    emit(options, data, "\n".join(lines))
    return 0 if first is None else 1


def _verdict(rows: list[NodeGap], first: NodeGap | None, worst: float) -> str:
    if first is not None:
        return f"first divergence: {first.node.label} on {first.device}, value {first.value!r}"
    return f"  ok: {len(rows)} values agree; the furthest is {worst:.3g} from the references' run"


def verify_outputs(options: argparse.Namespace) -> int:
    """Compare the outputs with the peer's."""
    tolerance = 1e-4 if options.tolerance is None else options.tolerance
    units = 1 if options.units is None else options.units
    peer = peer_of(options.model)
    with open_session(options) as session:
        feeds = make_feeds(options, session.inputs)
        ours = session.run(feeds)
        in_stages = any(stage.steps for stage in session.stages)
        unused = {} if in_stages else dict(session.placement.unused)
        dropped = dict(session.dropped)
    rows = compare_all(ours, run_peer(options.model, feeds), tolerance, units)
    agree = all(row.agrees for row in rows) and len(rows) == len(ours)
    lines = [f"{options.devices} against {peer}, seed {options.seed}"]
    lines += [
        f"  {'ok   ' if row.agrees else 'APART'} {row.name}: largest difference "
        f"{row.largest:.3g} {row.kind}, {row.differing:.2%} of the elements differ"
        for row in rows
    ]
    lines += [f"  {name} unused: {why}" for name, why in unused.items()]
    lines += [f"  left out: {name}: {why}" for name, why in dropped.items()]
    data: dict[str, Any] = {
        "peer": peer,
        "agree": agree,
        "outputs": [vars(row) for row in rows],
        "unused": unused,
        "dropped": dropped,
    }
    emit(options, data, "\n".join(lines))
    return 0 if agree else 1
