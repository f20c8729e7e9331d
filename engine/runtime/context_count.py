"""How many calls of a session run at once, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trireme.backend.device import ANY_NUMBER, Device
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ops.repeats import bodies_of
from trireme.runtime.contexts import MOST, ContextCount
from trireme.support.errors import RunError


def context_count(
    asked: int | None, graph: Graph, devices: Iterable[Device], reason: str
) -> ContextCount:
    """Return how many calls run at once.

    asked: None for as many as the devices work on, each on a thread of its own
    devices: those that tasks are on
    reason: why there is one, which the caller knows; else empty
    Errors: RunError, if more than one is asked for and cannot be
    """
    used = list(devices)
    reason = reason or _reason(graph, used)
    if reason:
        if asked is not None and asked > 1:
            raise RunError(f"{asked} contexts cannot be: {reason}", fix="leave out contexts=")
        return ContextCount(1, reason)
    busy = min((one.busy_calls for one in used), default=MOST)
    if asked is not None:
        return ContextCount(asked, "asked for", busy)
    if any(get_op(node.op).calls_python for node in _all_nodes(graph)):
        return ContextCount(1, "a Python operator may not be made for two calls at once")
    least = min(used, key=lambda one: one.calls_at_once, default=None)
    if least is None or least.calls_at_once == ANY_NUMBER:
        return ContextCount(1, "no device has threads")
    return ContextCount(
        min(least.calls_at_once, MOST), f"so many keep {least.spec.name} busy", busy
    )


def why_one_open(graph: Graph, has_ties: bool) -> str:
    """Return why calls of open shapes take turns; empty where they need not."""
    if has_ties:
        return "the session holds states, which one run after another changes"
    if any(get_op(node.op).has_body for node in graph.nodes):
        return "control flow of open shapes works on memory of its own"
    return ""


def _reason(graph: Graph, devices: Iterable[Device]) -> str:
    for device in devices:
        if not device.calls_at_once:
            return f"{device.spec.name} works on one call at a time"
    if any(get_op(node.op).effect for node in _all_nodes(graph)):
        return "the model has states, which one run after another changes"
    return ""


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes of a graph and of all bodies in it."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node).values():
            yield from _all_nodes(body)
