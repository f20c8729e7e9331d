"""What named devices run of a scheme: each is asked for a product of the scheme.

`quantize` asks where its user names devices or a described machine. The answer is the device's own
(`unsupported_reason`), so each device says in one place what it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.backend.device import Device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Quant, TensorType
from trireme.quantiser.emit import emit
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.scheme import SCHEMES, QuantScheme, is_product
from trireme.quantiser.select import Selection

_SIZE = 16
"""The depth and the rows of the product that devices are asked for."""


@dataclass(frozen=True)
class DeviceForms:
    """What a device runs of each scheme of integers, by the scheme's name; "" where it does.

    integers: why it runs no product that makes integers
    floats: why it runs no product of integers that makes floats
    """

    name: str
    integers: Mapping[str, str]
    floats: Mapping[str, str]


def forms_of_devices(
    devices: Sequence[str | Device] | None, soc: str | None, threads: int | None
) -> tuple[DeviceForms, ...]:
    """Return what each named device runs; none where nothing is named.

    Errors: DeviceError, ModelFileError or RunError, if there are no such devices
    """
    if not devices and soc is None:
        return ()
    whole, mixed = _products(to_floats=False), _products(to_floats=True)
    with opened_target(devices, soc, threads) as target:
        return tuple(
            DeviceForms(name, _refusals(device, whole), _refusals(device, mixed))
            for name, device in target.costs.devices.items()
        )


def integers_alone(devices: Sequence[DeviceForms], scheme: str) -> str:
    """Return which devices run products that make integers and none that makes floats, and why.

    Nothing where every device runs both or neither.
    """
    rows = [(one.name, one.floats[scheme]) for one in devices if not one.integers[scheme]]
    return "; ".join(f"{device}: {why}" for device, why in rows if why)


def _products(to_floats: bool) -> dict[str, Graph]:
    schemes = [one for one in SCHEMES.values() if isinstance(one, QuantScheme)]
    return {scheme.name: _product(scheme, to_floats) for scheme in schemes}


def _product(scheme: QuantScheme, to_floats: bool) -> Graph:
    """Return a product of integers in a graph with integers at its ends, or floats at its end."""
    b = GraphBuilder(scheme.name)
    x = b.input("x", TensorType((1, _SIZE), "float32"))
    weights = b.constant("w", np.ones((_SIZE, _SIZE), np.float32))
    y = b.add("fully_connected", x, weights, b.constant("b", np.zeros(_SIZE, np.float32)))
    graph = b.finish(y)
    taken = frozenset(node.id for node in graph.nodes)
    selection = Selection(taken, {}, taken if to_floats else frozenset())
    quants = dict.fromkeys((x, y), Quant((1.0,), (0,)))
    return emit(graph, selection, quants, scheme, name=scheme.name, integer_io=True).graph


def _refusals(device: Device, products: Mapping[str, Graph]) -> dict[str, str]:
    return {name: _refusal(device, graph) for name, graph in products.items()}


def _refusal(device: Device, graph: Graph) -> str:
    """Return why a device does not run the product of a graph."""
    (product,) = (node for node in graph.nodes if is_product(node))
    return device.unsupported_reason(graph, product) or ""
