"""`trireme explain`: why nodes are where they are, on this machine or on a described one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trireme.ir.selectors import nodes_called
from trireme.placement.explain import explain as explain_placement
from trireme.placement.kernel_advice import advice_json, advise
from trireme.placement.placement import Placement
from trireme.plan.plan import Plan, make_plan
from trireme.profiling.prediction import predict
from trireme.tools.commands import prepared_session
from trireme.tools.described import described_placement, is_described
from trireme.tools.options import argument
from trireme.tools.output import emit, write_trace
from trireme.tools.parsed import plan_choices
from trireme.tools.streams import clipped_to, wrapped_to

ARGUMENTS = (
    argument(
        "nodes",
        nargs="*",
        default=[],
        metavar="NODE",
        help="print the page of a node (its name, #12, FIRST..LAST, * or op:softmax), and what "
        "each alternative comes to with all others placed anew",
    ),
    argument("--all", action="store_true", help="print every node and copy"),
    argument("--plan", action="store_true", help="print the tasks and arenas as well"),
    argument(
        "--trace",
        metavar="FILE",
        help="write the predicted timeline as a Chrome trace (open it in ui.perfetto.dev)",
    ),
)
_MOST_ADVICE = 2
"""How many pieces of advice a summary has; --all prints the others."""


def explain(options: argparse.Namespace) -> int:
    """Show where the nodes are, what they cost, and why they are not elsewhere."""
    if is_described(options):
        placement = described_placement(options)
        _show(options, placement, make_plan(placement, **plan_choices(options)), {}, [])
        return 0
    with prepared_session(options) as session:
        _show(options, session.placement, session.plan, session.dropped, session.unmeasured)
    return 0


def _show(
    options: argparse.Namespace,
    placement: Placement,
    plan: Plan,
    dropped: Mapping[str, str],
    unmeasured: Sequence[str],
) -> None:
    text, data = _reasons(options, placement)
    remarks = [*(f"left out: {name}: {why}" for name, why in dropped.items()), *unmeasured]
    lines = [text, *(wrapped_to(sys.stdout, one) for one in remarks)]
    if options.plan:
        lines.append(str(plan))
    write_trace(options, predict(plan, options.mode == "serial"))
    data |= {"dropped": dict(dropped), "unmeasured": list(unmeasured)}
    emit(options, data, "\n".join(lines))


def _reasons(options: argparse.Namespace, placement: Placement) -> tuple[str, dict[str, Any]]:
    """Return why nodes and copies are where they are, and advice: as text and as data."""
    if options.nodes:
        called = [nodes_called(placement.source, one, f"explain {one}") for one in options.nodes]
        chosen = {node for nodes in called for node in nodes}
        explanation = explain_placement(placement, chosen, free=True)
        return explanation.pages(), explanation.to_json()
    explanation, advice = explain_placement(placement), advise(placement)
    data = {**explanation.to_json(), "advice": advice_json(advice)}
    if options.all:
        return "\n".join([str(explanation), *map(str, advice)]), data
    more = "  more: `trireme explain MODEL NODE` for one node, --all for every node and copy"
    summary = explanation.summary([str(one) for one in advice[:_MOST_ADVICE]])
    return clipped_to(sys.stdout, f"{summary}\n{more}"), data
