"""Price one node: an estimate for each device, or the reason why a device refuses the node.

`pricing` asks for every node of a graph.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from trireme.backend.device import HOST, Device, Resident, kind_of
from trireme.backend.refusal import host_reason
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.cost.estimate import Estimate
from trireme.cost.model import CostModel
from trireme.ir.bind_shapes import shape_advice
from trireme.ir.graph import Graph, Node
from trireme.support.errors import PlacementError, PlanError, from_device
from trireme.support.limits import host_memory_bytes


class NodePricing(NamedTuple):
    """Of one node: its estimate per device, the refusals of the others, remarks, and what it keeps
    in each device's memory.
    """

    estimates: dict[str, Estimate]
    refusals: dict[str, str]
    notes: dict[str, str]
    resident: dict[str, Resident]


def price_node(graph: Graph, node: Node, costs: CostModel) -> NodePricing:
    """Return what placing needs to know of one node.

    Errors: PlacementError, if no device is left or the pinned one refuses
    """
    estimates: dict[str, Estimate] = {}
    refusals: dict[str, str] = {}
    notes: dict[str, str] = {}
    resident: dict[str, Resident] = {}
    for name, device in costs.devices.items():
        with from_device(name, f"price {node.label}"):
            reason = _refusal(graph, node, name, device)
            if reason is not None:
                refusals[name] = reason
                continue
            note = device.kernel_note(graph, node)
            estimates[name] = costs.node(graph, node, name, note)
            resident[name] = device.resident(graph, node)
            if note:
                notes[name] = note
    if not estimates:
        types = ", ".join(str(graph.type(value)) for value in node.used)
        raise PlacementError(
            f"no device can run {node.label} on {types or 'no inputs'}",
            facts=[f"{name:8} {reason}" for name, reason in refusals.items()],
            fix="" if node.pin else _device_advice(graph, node, costs.devices),
        )
    return NodePricing(estimates, refusals, notes, resident)


def _refusal(graph: Graph, node: Node, name: str, device: Device) -> str | None:
    if node.pin is not None and node.pin != name:
        return f"the node is pinned to {node.pin}"
    return _too_large(graph, node, device) or device.unsupported_reason(graph, node)


def _device_advice(graph: Graph, node: Node, devices: Collection[str]) -> str:
    """Return which device to add for a node that all these refuse."""
    types = [graph.type(value) for value in (*node.used, *node.outputs)]
    is_of_host = host_reason(node, DEFAULT_DEVICE) or any(one.dtype == "string" for one in types)
    if not is_of_host and DEFAULT_DEVICE not in map(kind_of, devices):
        return f"add {DEFAULT_DEVICE} to the devices"
    return "" if HOST in devices else f"add {HOST} to the devices: it has every op, slowly"


def _too_large(graph: Graph, node: Node, device: Device) -> str | None:
    """Say which operand alone is larger than the device's memory.

    Asked before the device is: it would tile the operand, piece after piece.
    """
    spec = device.spec
    limit = spec.memory_bytes or host_memory_bytes()
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        flows = not graph.values[value].is_constant and type.is_static
        if flows and type.dtype != "string" and type.nbytes > limit:
            return f"{type} takes {type.nbytes:,} bytes, {spec.memory} has {limit:,}"
    return None


def check_static(graph: Graph) -> None:
    """Raise PlanError naming the first value whose shape is not all numbers."""
    for value in graph.inputs:
        if not graph.type(value).is_static:
            raise _not_static(graph, value, "graph input")
    for node in graph.nodes:
        for value in node.outputs:
            if not graph.type(value).is_static:
                raise _not_static(graph, value, node.label)


def _not_static(graph: Graph, value: int, where: str) -> PlanError:
    name = graph.values[value].name
    return PlanError(
        f"{where}: the shape of '{name}' is not known before it runs: {graph.type(value)}",
        facts=["trireme plans memory ahead, so every dimension must be a number"],
        fix=shape_advice(graph.input_values()),
    )
