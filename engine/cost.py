"""Seconds from work: what a node or a copy is predicted to take on each device.

Three sources, best first: curves measured on this machine (`calibration`), the device's own model
(the simulated NPU counts cycles), and the roofline of the device's spec. What has no kernel is
priced as the numpy reference. Every estimate says which of these it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trireme.calibration import Calibration, Curve
from trireme.device import HOST, Device, DeviceSpec
from trireme.graph import Graph, Node
from trireme.op import call_of, get_op

Source = Literal["calibration", "device", "roofline", "reference"]


REFERENCE = Curve(fixed_s=30e-6, s_per_flop=1e-9, s_per_byte=2e-9, samples=0, error=1.0)
"""What a node costs without a kernel, on the numpy reference: an order of magnitude, so that the
placement prefers any device that has a kernel."""


@dataclass(frozen=True)
class Work:
    """What a node does, whoever does it: arithmetic operations and bytes read and written."""

    kind: str
    dtype: str
    flops: int
    nbytes: int


@dataclass(frozen=True)
class Estimate:
    """Predicted seconds of a node's own work, without launch and copies."""

    seconds: float
    source: Source


@dataclass(frozen=True)
class Link:
    """A way between two memory spaces: seconds = latency_s + bytes / bandwidth."""

    latency_s: float
    bandwidth: float

    def seconds(self, nbytes: int) -> float:
        """Return the predicted seconds of one copy."""
        return self.latency_s + nbytes / self.bandwidth


@dataclass(frozen=True)
class Links:
    """Copy costs between memory spaces; two devices' spaces are joined by way of the host's."""

    to_host: Mapping[str, Link] = field(default_factory=dict)
    from_host: Mapping[str, Link] = field(default_factory=dict)

    def seconds(self, nbytes: int, source: str, target: str) -> float:
        """Return the predicted seconds to copy between two different spaces."""
        total = 0.0
        if source != HOST:
            total += self.to_host[source].seconds(nbytes)
        if target != HOST:
            total += self.from_host[target].seconds(nbytes)
        return total


def work_of(graph: Graph, node: Node) -> Work:
    """Return the work of a node of static types."""
    op, call = get_op(node.op), call_of(graph, node)
    values = {*node.used, *node.outputs}
    nbytes = sum(graph.type(value).nbytes for value in values)
    dtype = graph.type(node.used[0]).dtype if node.used else graph.type(node.outputs[0]).dtype
    return Work(_kind(graph, node, op.family), dtype, op.flops(call), nbytes)


def _kind(graph: Graph, node: Node, family: str) -> str:
    """Return the op family, with depthwise convolution a kind of its own: it is bandwidth-bound."""
    if node.op == "conv" and node.attrs["groups"] > 1:
        return "depthwise"
    return family


def roofline_s(work: Work, spec: DeviceSpec) -> float:
    """Return the seconds of the larger of compute and memory traffic.

    Source: Williams, Waterman, Patterson, "Roofline" (2009)
    """
    rate = spec.flops.get(work.dtype) or min(spec.flops.values(), default=1e9)
    return max(work.flops / rate, work.nbytes / spec.bandwidth)


class CostModel:
    """Predicts node, launch and copy seconds for a set of open devices."""

    def __init__(
        self, devices: Mapping[str, Device], calibration: Calibration | None = None
    ) -> None:
        self.devices = devices
        self.calibration = calibration or Calibration()
        self.links = self._links()

    def node(self, graph: Graph, node: Node, device: str) -> Estimate:
        """Return the estimate of a node that the device supports."""
        work = work_of(graph, node)
        spec = self.devices[device].spec
        own = self.devices[device].estimate_s(graph, node)
        if own is not None and spec.clock == "virtual":
            return Estimate(own, "device")
        if self.devices[device].kernel_note(graph, node):
            return Estimate(REFERENCE.seconds(work.flops, work.nbytes), "reference")
        measured = self.calibration.node_s(spec, work.kind, work.dtype, work.flops, work.nbytes)
        if measured is not None:
            return Estimate(measured, "calibration")
        if own is not None:
            return Estimate(own, "device")
        return Estimate(roofline_s(work, spec), "roofline")

    def launch_s(self, device: str) -> float:
        """Return the seconds a task costs beyond its nodes."""
        spec = self.devices[device].spec
        measured = self.calibration.launch_s(spec)
        return spec.launch_s if measured is None else measured

    def _links(self) -> Links:
        to_host: dict[str, Link] = {}
        from_host: dict[str, Link] = {}
        for device in self.devices.values():
            spec = device.spec
            if spec.memory == HOST:
                continue
            default = (spec.link_latency_s, spec.link_bandwidth)
            read = self.calibration.copy(spec, "read") or default
            write = self.calibration.copy(spec, "write") or default
            to_host[spec.memory] = Link(*read)
            from_host[spec.memory] = Link(*write)
        return Links(to_host, from_host)
