"""`trireme explain`: why nodes are where they are, on this machine or on a described one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trireme.ir.graph import Graph
from trireme.ir.selectors import nodes_called
from trireme.placement.explain import explain as explain_placement
from trireme.placement.kernel_advice import advice_json, advise
from trireme.placement.placement import Placement
from trireme.plan.plan import Plan, make_plan
from trireme.profiling.prediction import predict
from trireme.runtime.session.program_session import ProgramSession
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array
from trireme.support.errors import RunError
from trireme.support.fault_events import FaultEvent
from trireme.support.showing import clipped
from trireme.tools.commands import faults_of, prepared_session
from trireme.tools.described import described_placement, is_described
from trireme.tools.feeds import make_feeds
from trireme.tools.options import argument
from trireme.tools.output import emit, write_trace
from trireme.tools.parsed import plan_choices
from trireme.tools.streams import width_of, wrapped_to
from trireme.tools.usual import remark, usual_feeds, usual_inputs

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
_ZEROS = "tried on zeros, which choose the branches: --input NAME=x.npy gives others"
_MOST_OPTIONAL = 8
"""How many optional inputs are named: some exporters list every weight."""
_MOST_ADVICE = 2
"""How many pieces of advice a summary has; --all prints the others."""


def explain(options: argparse.Namespace) -> int:
    """Show where the nodes are, what they cost, and why they are not elsewhere."""
    given = bool(options.input or options.image)
    if is_described(options):
        if given:
            raise RunError("nothing runs on a described machine: leave out --input and --image")
        placement = described_placement(options)
        _show(options, placement, make_plan(placement, **plan_choices(options)))
        return 0
    with prepared_session(options) as session:
        served: ProgramSession = session
        sizes = _optional(session)
        if session.has_open_shapes:
            own = make_feeds(options, usual_inputs(session.graph)) if given else None
            feeds = _tried(session, own)
            sizes += [remark(session.graph)] if not given else []
            sizes += [_ZEROS] if not given and _chooses(session.graph) else []
            if len(session.stages) > 1 or not all(one.has_plan for one in session.stages):
                return _show_stages(options, session, sizes)
            served = session.at(feeds)
        elif given:
            raise RunError(
                "explain runs models of open shapes alone: leave out --input and --image"
            )
        _show(options, served.placement, served.plan, session, sizes)
    return 0


def _optional(session: Session) -> list[str]:
    """Return a remark for each input that a run need not feed."""
    return [
        f"optional input {value.name} {value.type}: a constant here; a run that feeds it has a "
        "session of its own"
        for value in session.optional_inputs[:_MOST_OPTIONAL]
    ]


def _chooses(graph: Graph) -> bool:
    """Whether a model chooses a branch as it runs."""
    return any(node.op == "if" for node in graph.nodes)


def _tried(session: Session, feeds: Mapping[str, Array] | None) -> Mapping[str, Array]:
    """Run a model of open shapes once, on zeros where nothing is given; return what it ran on.

    Errors: RunError, which says what to give where zeros take a branch that refuses the sizes
    """
    zeros = usual_feeds(session.graph) if feeds is None else feeds
    try:
        session.run(zeros)
    except RunError as error:
        if feeds is not None or not _chooses(session.graph):
            raise
        chosen_by = _choosers(session.graph) or list(zeros)[:1]
        given = " ".join(f"--input {name}={name}.npy" for name in chosen_by)
        raise RunError(
            f"zeros take a branch that fails: {error.summary}",
            facts=error.facts,
            fix=f"{given} gives elements that take another branch",
        ) from error
    return zeros


def _choosers(graph: Graph) -> list[str]:
    """Return the inputs from which the conditions of a model's branches are computed."""
    read: set[int] = set()
    asked = [node.used[0] for node in graph.nodes if node.op == "if"]
    while asked:
        value = asked.pop()
        if value not in read:
            read.add(value)
            maker = graph.producer(value)
            asked += maker.used if maker is not None else ()
    return [graph.values[value].name for value in graph.inputs if value in read]


def _show_stages(options: argparse.Namespace, session: Session, sizes: Sequence[str]) -> int:
    """Show what runs each stage, and why, where no one plan runs the model."""
    if options.nodes or options.plan or options.trace:
        raise RunError("a model in stages has no one plan: leave out nodes, --plan and --trace")
    stages = [str(one) for one in session.stages]
    remarks = [*sizes, *map(str, _run_events(session)), *session.unmeasured]
    data = {"stages": stages, "unmeasured": session.unmeasured, "remarks": list(sizes)}
    data |= faults_of(session)
    emit(options, data, "\n".join([*stages, *(wrapped_to(sys.stdout, one) for one in remarks)]))
    return 0


def _show(
    options: argparse.Namespace,
    placement: Placement,
    plan: Plan,
    session: Session | None = None,
    sizes: Sequence[str] = (),
) -> None:
    """Show a placement; session: what runs it, None for a described machine."""
    dropped = {} if session is None else session.dropped
    unmeasured = [] if session is None else session.unmeasured
    text, reasons = _reasons(options, placement, () if session is None else _run_events(session))
    remarks = [*sizes, *(f"left out: {name}: {why}" for name, why in dropped.items()), *unmeasured]
    lines = [text, *(wrapped_to(sys.stdout, one) for one in remarks)]
    if options.plan:
        lines.append(str(plan))
    write_trace(options, predict(plan, options.mode == "serial"))
    more = {"dropped": dict(dropped), "unmeasured": list(unmeasured), "remarks": list(sizes)}
    emit(options, lambda: {**reasons(), **more}, "\n".join(lines))


def _run_events(session: Session) -> list[FaultEvent]:
    """Return the faults of runs; those of opening stand beside the devices that are left out."""
    return [one for one in session.events if one.action != "left out"]


def _reasons(
    options: argparse.Namespace, placement: Placement, events: Sequence[FaultEvent]
) -> tuple[str, Callable[[], dict[str, Any]]]:
    """Return why nodes and copies are where they are, and advice: as text, and what makes data."""
    if options.nodes:
        called = [nodes_called(placement.source, one, f"explain {one}") for one in options.nodes]
        chosen = {node for nodes in called for node in nodes}
        explanation = explain_placement(placement, chosen, True, events)
        return explanation.pages(), explanation.to_json
    explanation, advice = explain_placement(placement, events=events), advise(placement)

    def data() -> dict[str, Any]:
        return {**explanation.to_json(), "advice": advice_json(advice)}

    if options.all:
        return "\n".join([str(explanation), *map(str, advice)]), data
    more = "  more: `trireme explain MODEL NODE` for one node, --all for every node and copy"
    width = width_of(sys.stdout)
    summary = explanation.summary([str(one) for one in advice[:_MOST_ADVICE]], width)
    return f"{summary}\n{clipped(more, width)}", data
