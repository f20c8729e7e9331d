"""`trireme verify`: compare a run with a peer's on the same inputs, or with the references."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from trireme.ir.graph import Graph
from trireme.ir.op import get_op
from trireme.quantiser.compare_models import compare_models
from trireme.runtime.session.compare import NodeGap, compare_nodes, gap
from trireme.support.dtypes import Array
from trireme.support.errors import RunError
from trireme.tools.bench.peers import peer_of, run_peer
from trireme.tools.commands import load
from trireme.tools.feeds import make_feeds
from trireme.tools.output import emit
from trireme.tools.parsed import open_session

TOLERANCE = 1e-4
"""The default for floats that no quantised value makes."""
STEPS = 3
"""The default in steps of quantisation, for floats that a quantised value makes. Two runtimes that
round a tie in different ways are a step apart there. ONNX Runtime and trireme are 1 or 2 steps
apart on ResNet-18 and MobileNet v2 with random weights."""


@dataclass(frozen=True)
class Difference:
    """How far one output is from the peer's.

    largest: for floats relative to the peer's largest value, for integers in units
    differing: share of the elements that are not equal
    limit: the most that `largest` may be
    """

    name: str
    kind: str
    largest: float
    differing: float
    limit: float

    @property
    def agrees(self) -> bool:
        """Whether the output is no further than allowed."""
        return self.largest <= self.limit


def compare(name: str, ours: Array, theirs: Array, tolerance: float, units: int) -> Difference:
    """Return how two outputs differ, and by how much they may."""
    found = gap(ours, theirs)
    limit = tolerance if found.kind == "relative" else units
    return Difference(name, found.kind, found.largest, found.differing, limit)


def compare_all(
    ours: Mapping[str, Array],
    theirs: Mapping[str, Array],
    tolerance: float | None,
    units: int,
    steps: Mapping[str, float] = MappingProxyType({}),
) -> list[Difference]:
    """Compare outputs by name where the names agree, else in order.

    tolerance: of floats; TOLERANCE, or STEPS where an output has a step, when None
    units: of integers
    steps: of outputs that quantised values make, by name (`quantisation_steps`)
    """
    if set(ours) != set(theirs):
        theirs = dict(zip(ours, theirs.values(), strict=False))
    rows = []
    for name in ours:
        if name in theirs:
            limit = tolerance
            if limit is None:
                limit = max(TOLERANCE, STEPS * steps.get(name, 0.0) / _largest(theirs[name]))
            rows.append(compare(name, ours[name], theirs[name], limit, units))
    return rows


def _largest(array: Array) -> float:
    """Return the largest finite value of floats, 1.0 for other arrays and where all are zero."""
    if array.dtype.kind != "f":
        return 1.0
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) or 1.0


def quantisation_steps(graph: Graph) -> dict[str, float]:
    """Return, by name, the step of each float output that is a quantised value made float.

    Ops that only move elements may follow. Any other op may stretch or shrink a step, so that its
    output has none.
    """
    found: dict[str, float] = {}
    for output in graph.outputs:
        value, maker = output, graph.producer(output)
        while maker and graph.type(value).quant is None:
            is_plain = maker.op == "dequantize" or get_op(maker.op).moves
            value = maker.used[0]
            maker = graph.producer(value) if is_plain else None
            quant = graph.type(value).quant
            if is_plain and quant is not None:
                found[graph.values[output].name] = max(quant.scales)
    return found


def verify(options: argparse.Namespace) -> int:
    """Compare with a model, the peer, or the references by node; exit code 1 when apart."""
    if options.against_model:
        return verify_models(options)
    if options.data:
        raise RunError(
            "--data gives samples to --against MODEL; give --input to compare with others"
        )
    return verify_nodes(options) if options.per_node else verify_outputs(options)


def verify_models(options: argparse.Namespace) -> int:
    """Compare the values of two models node by node, and name the first that is bad."""
    if not options.data:
        raise RunError("--against compares two models on samples", fix="give --data FILE")
    found = compare_models(
        load(options),
        options.against_model,
        options.data,
        limit_db=options.limit_db,
        seed=options.seed,
    )
    first = found.first_bad
    data: dict[str, Any] = {
        "agree": found.agrees,
        "samples": found.samples,
        "nodes": [vars(row) for row in found.nodes],
        "outputs": dict(found.outputs),
        "first_bad": None if first is None else vars(first),
    }
    emit(options, data, str(found))
    return 0 if found.agrees else 1


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
    units = 1 if options.units is None else options.units
    peer = peer_of(options.model)
    with open_session(options) as session:
        feeds = make_feeds(options, session.inputs)
        ours = session.run(feeds)
        in_stages = not all(stage.has_plan for stage in session.stages)
        unused = {} if in_stages else dict(session.placement.unused)
        dropped = dict(session.dropped)
        steps = quantisation_steps(session.graph if in_stages else session.placement.source)
    rows = compare_all(ours, run_peer(options.model, feeds), options.tolerance, units, steps)
    agree = all(row.agrees for row in rows) and len(rows) == len(ours)
    lines = [f"{options.devices} against {peer}, seed {options.seed}"]
    lines += [
        f"  {'ok   ' if row.agrees else 'APART'} {row.name}: largest difference "
        f"{row.largest:.3g} {row.kind} ({row.limit:.3g} allowed), "
        f"{row.differing:.2%} of the elements differ"
        for row in rows
    ]
    lines += [f"  {name} unused: {why}" for name, why in unused.items()]
    lines += [f"  left out: {name}: {why}" for name, why in dropped.items()]
    data: dict[str, Any] = {
        "peer": peer,
        "agree": agree,
        "outputs": [vars(row) | {"agrees": row.agrees} for row in rows],
        "unused": unused,
        "dropped": dropped,
    }
    emit(options, data, "\n".join(lines))
    return 0 if agree else 1
