"""Time the few estimates that decide a placement, on this machine, in a second or two.

Each node is compiled alone for its device and launched as a run launches it. The measurement
replaces the estimate of every node of the same op, types and attributes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from trireme.backend.device import Device
from trireme.calibration.samples import bind, timed
from trireme.cost.estimate import Estimate
from trireme.cost.model import CostModel
from trireme.cost.work import node_signature
from trireme.ir.graph import Graph, Node, graph_of
from trireme.placement.deciding import Deciding
from trireme.support.errors import TriremeError

_log = logging.getLogger(__name__)
LIMIT_S = 2.0
"""No further node is timed after so many seconds."""
SPREAD = (0.85, 1.15)
"""Factors of the interval: a node's time in a run, relative to its time alone."""


def measure_deciding(graph: Graph, costs: CostModel, found: Sequence[Deciding]) -> CostModel:
    """Return the cost model with measured times of the nodes that decide the placement.

    found: the deciding estimates, the likeliest first. An estimate stays where the time is over or
        the device's clock is virtual.
    """
    known = dict(costs.timed)
    end = time.perf_counter() + LIMIT_S
    for device, node in _nodes(graph, costs, found):
        key = (device, node_signature(graph, node))
        if key not in known and time.perf_counter() < end:
            seconds = _time(costs.devices[device], graph, node, costs.launch_s(device))
            if seconds is not None:
                low, high = (seconds * factor for factor in SPREAD)
                known[key] = Estimate(seconds, "calibration", low, high)
    return CostModel(costs.devices, costs.calibration, known)


def _nodes(graph: Graph, costs: CostModel, found: Sequence[Deciding]) -> Iterator[tuple[str, Node]]:
    """Yield each deciding node, with the device that times it."""
    for one in found:
        if costs.devices[one.device].spec.clock == "wall":
            yield from ((one.device, graph.node(node)) for node in one.nodes)


def _time(device: Device, graph: Graph, node: Node, launch_s: float) -> float | None:
    """Return the seconds of one node's work on a device; None where the node does not run alone."""
    try:
        return max(timed(bind(device, graph_of(graph, node))) - launch_s, 1e-7)
    except (TriremeError, ValueError) as error:
        _log.warning("%s could not be timed on %s: %s", node.label, device.spec.name, error)
        return None
