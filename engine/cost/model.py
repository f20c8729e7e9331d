"""Seconds from work: the predicted time of a node or a copy on each device.

There are three sources, best first. They are curves measured on this machine (`calibration`), the
device's own model (the simulated NPU counts cycles), and the roofline of the device's spec. A node
without a kernel is priced as the numpy reference. Every estimate names its source and interval.

A measured device describes the kernels of the whole graph (`Device.cost_features`), and so does an
unmeasured one that guesses their seconds. The seconds of a kernel of several nodes are shared out,
so that the nodes' seconds add up to their region's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy

from trireme.backend.device import HOST, Device, DeviceSpec, KernelCost
from trireme.cost.calibration import Calibration, Curve, DeviceCalibration, Sharing
from trireme.cost.estimate import SPREAD, Estimate, Source
from trireme.cost.links import Link, Links
from trireme.cost.work import (
    Work,
    generic_works,
    node_signature,
    reference_classes,
    roofline_s,
    supported_part,
    work_of,
)
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ir.python_op import PythonOp
from trireme.ops.repeats import bodies_of, turns_of
from trireme.support.records import dataclass

ASSUMED_TURNS = 10
"""Turns of a loop whose number only the run knows."""
TURN_S, NATIVE_TURN_S = 2e-6, 2e-8
"""Seconds that the host adds to an iteration that it drives, and native code to one of its own."""


@dataclass(frozen=True)
class BodyCost:
    """Seconds of one run of a body of control flow, and where most of them come from.

    turn_s: what a turn adds
    """

    seconds: float
    source: Source
    turn_s: float = TURN_S


REFERENCE = Curve(fixed_s=30e-6, per={"flops": 1e-9, "bytes": 2e-9})
"""Unmeasured cost of a node on the numpy reference: an order of magnitude. The placement thus
prefers any device that has a kernel."""


class CostModel:
    """Predicts node, launch and copy seconds for a set of open devices."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        calibration: Calibration | None = None,
        timed: Mapping[tuple[str, Hashable], Estimate] | None = None,
    ) -> None:
        self.devices = devices
        self.bodies: Mapping[Graph, BodyCost] = {}
        """Cost of one run of a placed body of control flow."""
        self.timed = timed or {}
        """Estimates of nodes that were timed alone, by device and `node_signature`."""
        self.calibration = calibration or Calibration()
        self._known: dict[str, tuple[Graph, dict[int, Estimate]]] = {}
        self.links = self._links()

    def node(self, graph: Graph, node: Node, device: str, note: str | None = None) -> Estimate:
        """Return the estimate of a node that the device supports.

        note: the device's kernel note on the node, where the caller has it already
        """
        spec = self.devices[device].spec
        if self.timed and (known := self.timed.get((device, node_signature(graph, node)))):
            return known
        bodies = [self.bodies.get(body) for body in bodies_of(node).values()]
        if bodies and None not in bodies:
            return self._driven(graph, node, [one for one in bodies if one is not None])
        own = self.devices[device].estimate_s(graph, node)
        if own is not None and spec.clock == "virtual":
            return Estimate(own, self.devices[device].estimate_source)
        work = work_of(graph, node)
        if self.devices[device].kernel_note(graph, node) if note is None else note:
            return self._reference(graph, node, work)
        if self.calibration.of(spec) or self.devices[device].guesses_kernels:
            return self._measured(graph, device)[node.id]
        if own is not None:
            return Estimate(own, "device")
        return Estimate(roofline_s(work, spec), "roofline")

    def with_bodies(self, bodies: Mapping[Graph, BodyCost]) -> CostModel:
        """Return the same prices, for a graph whose bodies of control flow cost this."""
        made = copy(self)
        made.bodies = bodies
        return made

    def _driven(self, graph: Graph, node: Node, bodies: Sequence[BodyCost]) -> Estimate:
        """Return the estimate of control flow that the host drives: its bodies and its turns."""
        source = bodies[0].source
        if len(bodies) > 1:
            low, high = (end(one.seconds for one in bodies) for end in (min, max))
            return Estimate(TURN_S + (low + high) / 2, source, TURN_S + low, TURN_S + high)
        turns, (one,) = turns_of(graph, node), bodies
        turn_s = one.turn_s + one.seconds
        if turns is None:
            return Estimate(ASSUMED_TURNS * turn_s, "assumed")
        return Estimate(turns * turn_s, source)

    def _reference(self, graph: Graph, node: Node, work: Work) -> Estimate:
        """Return the estimate of a node on the numpy reference, measured by op or by family.

        A Python function is priced by the times of its own calls, once there are any.
        """
        if get_op(node.op).calls_python:
            return self._function(graph, node, work)
        measured = self.calibration.reference
        curves = measured.curves if measured else {}
        for name in reference_classes(graph, node):
            if name in curves:
                curve, seconds = curves[name], curves[name].seconds(work.terms)
                return Estimate(seconds, "calibration", seconds * curve.low, seconds * curve.high)
        return Estimate(REFERENCE.seconds(work.terms), "reference")

    def _function(self, graph: Graph, node: Node, work: Work) -> Estimate:
        operator: PythonOp = node.attrs["operator"]
        inputs = [None if i is None else graph.type(i) for i in node.inputs]
        known = operator.seconds(inputs, node.attrs["arguments"])
        if known is None:
            return Estimate(REFERENCE.seconds(work.terms), "function")
        low, usual, high = known
        return Estimate(usual, "calibration", low, high)

    def _measured(self, graph: Graph, device: str) -> Mapping[int, Estimate]:
        """Return the estimates of all nodes that a measured device supports; cached by graph."""
        known = self._known.get(device)
        if known is None or known[0] is not graph:
            known = self._known[device] = (graph, self._by_kernel(graph, device))
        return known[1]

    def _by_kernel(self, graph: Graph, device: str) -> dict[int, Estimate]:
        """Price the kernels of a graph; a kernel's nodes share its seconds by the roofline."""
        part = supported_part(graph, self.devices[device])
        spec, measured = self.devices[device].spec, self.calibration.of(self.devices[device].spec)
        kernels = self.devices[device].cost_features(part)
        kernels = generic_works(part) if kernels is None else kernels
        kernels = _fastest(kernels, measured)
        found: dict[int, list[tuple[float, float, float, bool]]] = {n.id: [] for n in part.nodes}
        for kernel in kernels:
            weights = [roofline_s(work_of(part, part.node(n)), spec) for n in kernel.nodes]
            curve = measured.curves.get(kernel.family) if measured else None
            seconds = measured.seconds(kernel) if measured and curve else kernel.guess_s
            if seconds is None:
                seconds = sum(weights)
            low, high = (curve.low, curve.high) if curve else SPREAD["roofline"]
            seconds += measured.kernel_s if measured else 0.0
            whole = sum(weights) or 1.0
            for node, weight in zip(kernel.nodes, weights, strict=True):
                mine = seconds * weight / whole
                found[node].append((mine, mine * low, mine * high, curve is not None))
        return {node: _sum(parts) for node, parts in found.items()}

    def launch_s(self, device: str) -> float:
        """Return the seconds of a task beyond its nodes."""
        spec = self.devices[device].spec
        measured = self.calibration.of(spec)
        if measured is None or measured.launch_s is None:
            return spec.launch_s
        return measured.launch_s + spec.handover_s

    def issue_s(self) -> dict[str, float]:
        """Return the seconds of launching a task behind another, by device that can do so."""
        found = {name: self.calibration.of(d.spec) for name, d in self.devices.items()}
        return {n: one.issue_s for n, one in found.items() if one and one.issue_s is not None}

    def _links(self) -> Links:
        to_host: dict[str, Link] = {}
        from_host: dict[str, Link] = {}
        for device in self.devices.values():
            spec = device.spec
            if spec.memory == HOST:
                continue
            default = (spec.link_latency_s, spec.link_bandwidth)
            sharing, measured = self._sharing(spec), self.calibration.of(spec)
            shared = sharing.link(measured.core_latency if measured else None) if sharing else None
            copies = measured.copies if measured else {}
            read = shared or copies.get("read") or default
            write = shared or copies.get("write") or default
            to_host[spec.memory] = Link(*read)
            from_host[spec.memory] = Link(*write)
        return Links(to_host, from_host)

    def _sharing(self, spec: DeviceSpec) -> Sharing | None:
        """Return the cost of turns with a host device on the same silicon, None without one.

        Of several host devices, the one with the slowest copies counts.
        """
        if spec.memory == HOST:
            return None
        here = [self.calibration.of(d.spec) for d in self.devices.values() if d.spec.memory == HOST]
        shared = [one.sharing[spec.kind] for one in here if one and spec.kind in one.sharing]
        return max(shared, key=lambda one: one.latency_s, default=None)


def variants_of(cost_features: Sequence[KernelCost]) -> dict[bool, list[KernelCost]]:
    """Return the kernels of a region for each variant: alone on one thread, or with all threads."""
    apart = [work.alone for work in cost_features if work.alone]
    return {False: list(cost_features)} | (
        {True: apart} if cost_features and len(apart) == len(cost_features) else {}
    )


def _fastest(
    kernels: Sequence[KernelCost], measured: DeviceCalibration | None
) -> Sequence[KernelCost]:
    """Return the kernels of the fastest measured variant."""
    if measured is None:
        return kernels
    variants = [
        variant
        for variant in variants_of(kernels).values()
        if all(k.family in measured.curves for k in variant)
    ]
    return min(variants, key=lambda own: sum(map(measured.seconds, own)), default=kernels)


def _sum(parts: Iterable[tuple[float, float, float, bool]]) -> Estimate:
    """Return a node's estimate from its parts: seconds, low, high, whether measured."""
    rows = list(parts)
    source: Source = "calibration" if all(row[3] for row in rows) else "roofline"
    seconds, low_s, high_s = (sum(row[k] for row in rows) for k in range(3))
    return Estimate(seconds, source, low_s, high_s)
