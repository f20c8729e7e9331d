"""The entry of a program of open shapes, and what it tells of the shapes that its graph allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trireme.ir.graph import Dim, Graph
from trireme.ir.op import get_op
from trireme.runtime.dynamic.resizable import ResizableGraph, ShapeRun
from trireme.runtime.program_session import ProgramSession
from trireme.runtime.stored import Entry, entry_of
from trireme.support.mapped import OpenFile


def open_entry(
    run: ShapeRun,
    graph: Graph,
    files: Sequence[OpenFile],
    notes: Sequence[str],
    is_mapped: bool,
) -> Entry | None:
    """Return the entry of a program at the shapes of a run; None where it has none.

    graph: with open shapes; the others are as of `entry_of`
    """
    opened = run.open_session()
    try:
        if not isinstance(opened, ProgramSession):
            return None
        sizing = sizing_facts(run.whole)
        return entry_of(opened.ready.latest().context, files, notes, is_mapped, graph, sizing)
    finally:
        opened.close()


def sizing_facts(whole: ResizableGraph) -> dict[str, Any] | None:
    """Return the symbols, their bounds and what must agree; None where inference must be asked.

    agree: pairs of dimensions, of which the first is 1 or the second: nodes broadcast them
    """
    graph, agree = whole.closed.graph, list[tuple[Dim, Dim]]()
    if whole.ports.others:
        return None
    for node in whole.checks.nodes:
        if node.op != "expand" and not get_op(node.op).elementwise:
            return None
        made = graph.type(node.outputs[0]).shape
        for value in node.used[: 1 if node.op == "expand" else None]:
            shape = graph.type(value).shape
            pairs = zip(shape, made[len(made) - len(shape) :], strict=True)
            agree += [pair for pair in pairs if pair[0] not in (1, pair[1])]
    bounds = [graph.symbols.get(name, (0, None)) for name in whole.contents.names]
    return {"names": whole.contents.names, "bounds": bounds, "agree": list(dict.fromkeys(agree))}
