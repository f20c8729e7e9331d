"""Optimise a graph for any device: run every pass in order, until nothing changes.

Each pass is a pure function with a name and a switch. The graph is checked after each pass that
changed it: it keeps the rules of graphs, its inputs and its outputs. The passes also reach the
bodies of loops and branches.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from trireme.ir.bind_shapes import retyped
from trireme.ir.graph import Graph, TensorType, Value
from trireme.ir.partial_types import tells_as_much
from trireme.ir.rules import Rewritten
from trireme.ir.verify import check
from trireme.passes.batch_norm import batch_norm
from trireme.passes.bodies import narrow_bodies
from trireme.passes.branches import known_branches
from trireme.passes.canonicalise import canonicalise
from trireme.passes.cleanup import common_subexpressions, dead_code, simplify
from trireme.passes.constants import FOLD_LIMIT_BYTES, constant_folding, most_bytes
from trireme.passes.counted_loops import counted_loops
from trireme.passes.fusion import fuse_activation, fuse_pad, fuse_residual
from trireme.passes.invariants import loop_invariants
from trireme.passes.layout import layout
from trireme.passes.move_chains import move_chains
from trireme.passes.patterns import patterns
from trireme.passes.quantize_folding import quantize_folding
from trireme.passes.set_rows import set_rows
from trireme.passes.symbolic_shapes import symbolic_shapes
from trireme.support.errors import GraphError, InternalError, ShapeError
from trireme.support.records import dataclass
from trireme.support.units import time_text

MAX_ROUNDS = 6
"""The most rounds through the list of passes; two or three are usual."""

Run = Callable[[Graph], Rewritten]
PASSES: Mapping[str, Run] = {
    run.__name__: run
    for run in (
        dead_code,
        symbolic_shapes,
        known_branches,
        narrow_bodies,
        loop_invariants,
        counted_loops,
        set_rows,
        simplify,
        constant_folding,
        quantize_folding,
        common_subexpressions,
        patterns,
        batch_norm,
        canonicalise,
        fuse_pad,
        layout,
        move_chains,
        fuse_residual,
        fuse_activation,
    )
}
"""The passes by name, in the order in which they run."""


_BODY_PASSES = tuple(
    one.__name__ for one in (narrow_bodies, loop_invariants, counted_loops, set_rows)
)
"""Passes that change bodies, which may then be optimised further."""


@dataclass(frozen=True)
class PassReport:
    """The work of one pass in one round: nodes before and after, rules that fired, seconds."""

    name: str
    nodes_before: int
    nodes_after: int
    counts: Mapping[str, int]
    time_s: float


@dataclass(frozen=True)
class OptimiseReport:
    """The reports of the passes of one `optimise`, in order."""

    graph: Graph
    passes: tuple[PassReport, ...] = field(default=())

    def __str__(self) -> str:
        lines = []
        for one in self.passes:
            if one.counts:
                rules = ", ".join(f"{n} x {rule}" for rule, n in one.counts.items())
                nodes = f"{one.nodes_before} -> {one.nodes_after} nodes"
                lines.append(f"{one.name}: {nodes} ({time_text(one.time_s)}): {rules}")
        return "\n".join(lines) or "nothing to do"


def optimise(
    graph: Graph,
    *,
    passes: Sequence[str] | None = None,
    disable: Collection[str] = (),
    fold_limit_bytes: int = FOLD_LIMIT_BYTES,
) -> Graph:
    """Return the optimised graph: same inputs, outputs and results.

    passes: the passes to run, in that order, instead of all
    disable: passes to leave out
    fold_limit_bytes: the most bytes that folding one node may add to the constants
    Errors: GraphError, if there is no pass of a name, or sizes that follow contradict each other;
        InternalError, if a pass made a graph that breaks a rule
    """
    report = optimise_report(
        graph, passes=passes, disable=disable, fold_limit_bytes=fold_limit_bytes
    )
    return report.graph


def optimise_report(
    graph: Graph,
    *,
    passes: Sequence[str] | None = None,
    disable: Collection[str] = (),
    fold_limit_bytes: int = FOLD_LIMIT_BYTES,
) -> OptimiseReport:
    """Return the graph of `optimise`, and the report on each pass."""
    chosen = _chosen(passes, disable, fold_limit_bytes, most_bytes(graph))
    names = [name for name, _ in chosen]

    def inner(body: Graph) -> Graph:
        return optimise(body, passes=names, fold_limit_bytes=fold_limit_bytes)

    graph = _with_bodies(graph, inner)
    done: list[PassReport] = []
    for _ in range(MAX_ROUNDS):
        reports = []
        for name, run in chosen:
            graph, report = _run(name, run, graph)
            reports.append(report)
        done += reports
        if not any(report.counts for report in reports):
            break
        if any(report.counts for report in reports if report.name in _BODY_PASSES):
            graph = _with_bodies(graph, inner)
    return OptimiseReport(graph, tuple(done))


def _chosen(
    passes: Sequence[str] | None, disable: Collection[str], fold_limit_bytes: int, total_bytes: int
) -> list[tuple[str, Run]]:
    unknown = sorted({*(passes or ()), *disable} - set(PASSES))
    if unknown:
        raise GraphError(
            f"unknown pass {', '.join(unknown)}", facts=[f"known: {', '.join(PASSES)}"]
        )
    runs: dict[str, Run] = {
        **PASSES,
        constant_folding.__name__: partial(
            constant_folding, limit_bytes=fold_limit_bytes, total_bytes=total_bytes
        ),
    }
    names = PASSES if passes is None else passes
    return [(name, runs[name]) for name in names if name not in disable]


def _run(name: str, run: Run, graph: Graph) -> tuple[Graph, PassReport]:
    start = time.perf_counter()
    try:
        made = run(graph)
        if made.graph is not graph:
            _check_kept(graph, check(made.graph))
    except ShapeError as error:
        raise ShapeError(
            f"pass {name}: {error.summary}", facts=error.facts, fix=error.fix
        ) from error
    except GraphError as error:
        check(graph)  # a graph that was broken before is no fault of the pass
        raise InternalError(
            f"pass {name}: {error.summary}",
            facts=error.facts,
            fix=f"please report it with the model; passes_off={[name]} leaves the pass out",
        ) from error
    spent = time.perf_counter() - start
    counts = len(graph.nodes), len(made.graph.nodes)
    return made.graph, PassReport(name, *counts, dict(made.counts), spent)


def _check_kept(before: Graph, after: Graph) -> None:
    """Raise GraphError if a graph has not the inputs and outputs that it had before a pass.

    An input keeps its name and type. So does an output, of whose open dimensions more may be known;
    one of a body may have no name, and get that of another value.
    """
    _check_ends("inputs", before.input_values(), after.input_values(), operator.eq)
    _check_ends("outputs", before.output_values(), after.output_values(), tells_as_much)


def _check_ends(
    what: str,
    before: Iterable[Value],
    after: Iterable[Value],
    keeps: Callable[[TensorType, TensorType], bool],
) -> None:
    old, new = list(before), list(after)
    if len(old) != len(new) or not all(
        one.name in ("", other.name) and keeps(other.type, one.type)
        for one, other in zip(old, new, strict=True)
    ):
        lists = [", ".join(f"{value.name} {value.type}" for value in ends) for ends in (old, new)]
        facts = [f"before: {lists[0]}", f"after: {lists[1]}"]
        raise GraphError(f"the {what} are no longer the same", facts=facts)


def _with_bodies(graph: Graph, inner: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with `inner` applied to the bodies of its nodes.

    All types are inferred anew: a body may know more of its results than before.
    """
    nodes = []
    for node in graph.nodes:
        attrs = {k: inner(v) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        same = all(attrs[key] is value for key, value in node.attrs.items())
        nodes.append(node if same else replace(node, attrs=attrs))
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    made = replace(graph, nodes=tuple(nodes))
    return retyped(made, [value.type for value in graph.input_values()])
