"""Run a random graph where no search would put it: all that a device takes is on that device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from forced import pinned_at_random, pinned_where_supported

from lab.fuzz.campaign import QUICK, Runner
from lab.fuzz.check import Failure, allowed, run_placed
from trireme.backend.registry import open_device
from trireme.ir.graph import Graph
from trireme.model_file.cache import optimised
from trireme.placement.options import PlacementOptions
from trireme.support.errors import TriremeError

Ran = Counter[tuple[str, str]]
"""How many nodes ran: (op, device) -> number."""
MIXED = "mixed"


def on_forced_devices(devices: Mapping[str, Any], ran: Ran) -> Runner:
    """Return what runs a graph, from bytes, once for each device but cpu and once mixed.

    A device gets every node that it takes, cpu and host get the others. Mixed, every node is on a
    random device of those that take it. A way that is as cpu alone is left out.
    ran: counts what ran where
    """
    able = {**devices, "host": open_device("host")}
    others = [name for name in devices if name != "cpu"]

    def pinned(graph: Graph, way: str) -> Graph:
        if way == MIXED:
            return pinned_at_random(graph, able, len(graph.nodes))
        return pinned_where_supported(graph, devices[way])

    def run(grown: Any, wanted: Any) -> tuple[str, list[Failure]]:
        way = "converted"
        try:
            graph = optimised(grown.content)
            ways = {}
            for way in (*others, MIXED):
                ways[way] = pinned(graph, way)
        except TriremeError as error:
            kind = allowed(error)
            return kind, [] if kind else [Failure(way, "refused", str(error))]
        except Exception as error:
            return "", [Failure(way, "untyped", f"{type(error).__name__}: {error}")]
        for way, forced in ways.items():
            used = list(able.values()) if way == MIXED else [able[n] for n in (way, "cpu", "host")]
            if any(node.pin in others for node in forced.nodes):
                options = {"ran": ran, "placement_options": PlacementOptions(objective=QUICK)}
                kind, found, _ = run_placed(way, forced, grown.feeds, wanted, used, **options)
                if kind or found:
                    return kind, found
        return "", []

    return run


def shares(ran: Ran, device: str) -> str:
    """Return what ran on a device as text: how many nodes of each op."""
    counts = Counter({op: n for (op, where), n in ran.items() if where == device})
    total = sum(n for (_, where), n in ran.items())
    listed = ", ".join(f"{op} {n}" for op, n in counts.most_common())
    return f"{device}: {counts.total()} of {total} nodes, {len(counts)} ops: {listed}"
