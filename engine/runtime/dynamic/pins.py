"""Refuse pins that no run can honour when a session opens, and not in its first run."""

from __future__ import annotations

from collections.abc import Callable

from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.graph import Graph
from trireme.ops.repeats import pinned_inside
from trireme.runtime.dynamic.closed import why_not_closed
from trireme.runtime.dynamic.polymorphic import usual_shapes
from trireme.runtime.dynamic.stage import cut, with_symbols
from trireme.support.errors import PlacementError, TriremeError


def check_pins(graph: Graph, optimise: Callable[[Graph], Graph]) -> None:
    """Raise for a node that is pinned to a device although the host has to run it.

    The graph is cut in stages as in a run. Usual sizes stand for those that only a run tells; a
    graph that refuses them is left to its runs.
    Errors: PlacementError
    """
    if pinned_inside(graph) is None:
        return
    rest: Graph | None = graph
    while rest is not None and why_not_closed(rest):
        names = [value.name for value in rest.input_values()]
        try:
            bound = bind_shapes(rest, dict(zip(names, usual_shapes(rest), strict=True)))
            stage = cut(optimise(bound))
            rest = None if stage.rest is None else with_symbols(stage.rest, stage.most)
        except PlacementError:
            raise
        except TriremeError:
            return
