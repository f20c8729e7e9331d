"""Rules of passes: the table of a pass, and its walks until no rule finds a root.

A pass gives `apply` a graph and a table of rules, and gets the graph rewritten. What a rule may do
is in `rewriter`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from trireme.ir.graph import Graph
from trireme.ir.op import OpDef, ops_with
from trireme.ir.rewriter import GraphRewriter, Rule, Rules
from trireme.ir.verify import check
from trireme.support.records import dataclass

MAX_WALKS = 20
"""The most walks of one pass; it ends earlier when none of its rules finds a root."""
Roots = Sequence[str] | Callable[[OpDef], object]
"""The ops of a rule's root: names, or a common trait."""


@dataclass(frozen=True)
class Rewritten:
    """The graph a pass made, and how often each of its rules fired."""

    graph: Graph
    counts: Mapping[str, int] = field(default_factory=dict)


def rules_by_op(*entries: tuple[Roots, Rule]) -> dict[str, list[Rule]]:
    """Return the table that `apply` reads, from lines of (ops of the root, rule)."""
    table: dict[str, list[Rule]] = {}
    for roots, rule in entries:
        for op in ops_with(roots) if callable(roots) else roots:
            table.setdefault(op, []).append(rule)
    return table


def apply(graph: Graph, rules: Rules) -> Rewritten:
    """Return the graph rewritten by the rules until none of them finds a root.

    A pass returns it so: the pipeline checks it. `rewritten` is for all others.
    """
    counts: Counter[str] = Counter()
    for _ in range(MAX_WALKS):
        if not any(node.op in rules for node in graph.nodes):
            break
        rewriter = GraphRewriter(graph)
        rewriter.walk(rules)
        if not rewriter.counts:
            break
        counts += rewriter.counts
        graph = rewriter.finish()
    return Rewritten(graph, counts)


def rewritten(graph: Graph, rules: Rules) -> Graph:
    """Return the checked graph that `apply` makes."""
    return check(apply(graph, rules).graph)
