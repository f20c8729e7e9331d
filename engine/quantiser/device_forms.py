"""Ask named devices which products of each scheme they run, and choose the scheme.

Each device is asked for a product of the scheme.

`quantize` asks where its user names devices or a described machine. The answer is the device's own
(`unsupported_reason`), so each device says in one place what it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trireme.backend.device import Device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node, Quant, TensorType
from trireme.passes.pipeline import optimise
from trireme.quantiser.emit import emit
from trireme.quantiser.precision.target import opened_target
from trireme.quantiser.scheme import SCHEMES, QuantScheme, WeightScheme
from trireme.quantiser.select import Selection
from trireme.quantiser.weights import smaller_weights
from trireme.support.errors import GraphError

_SIZE = 32
"""The depth and the rows of the product that devices are asked for."""
DEFAULT_SCHEME = "int8"
AUTOMATIC = ("int8", "uint8", "float16", "dynamic", "weights_int8", "weights_int4")
"""The schemes in the order in which named devices decide among them."""


@dataclass(frozen=True)
class DeviceForms:
    """The reasons why a device runs no form of a scheme, by the scheme's name; "" where it does.

    products: why it runs no product of the scheme
    floats: why it runs no product of integers that makes floats
    """

    name: str
    products: Mapping[str, str]
    floats: Mapping[str, str]


def forms_of_devices(
    devices: Sequence[str | Device] | None, soc: str | None, threads: int | None
) -> tuple[DeviceForms, ...]:
    """Return what each named device runs; none where nothing is named.

    Errors: DeviceError, ModelFileError or RunError, if there are no such devices
    """
    if not devices and soc is None:
        return ()
    integers = [one for one in SCHEMES.values() if isinstance(one, QuantScheme)]
    weights = [one for one in SCHEMES.values() if isinstance(one, WeightScheme)]
    whole = {one.name: _product(one, to_floats=False) for one in integers}
    whole |= {one.name: _product_of_weights(one) for one in weights}
    mixed = {one.name: _product(one, to_floats=True) for one in integers}
    with opened_target(devices, soc, threads) as target:
        return tuple(
            DeviceForms(name, _refusals(device, whole), _refusals(device, mixed))
            for name, device in target.costs.devices.items()
        )


def integers_alone(devices: Sequence[DeviceForms], scheme: str) -> str:
    """Return which devices run products that make integers and none that makes floats, and why.

    Nothing where every device runs both or neither.
    """
    rows = [(one.name, one.floats[scheme]) for one in devices if not one.products[scheme]]
    return "; ".join(f"{device}: {why}" for device, why in rows if why)


def chosen_scheme(devices: Sequence[DeviceForms], has_budget: bool) -> tuple[str, str]:
    """Return the scheme whose products most named devices run, and why.

    Of equals the first of AUTOMATIC counts, int8 where no device is named.
    has_budget: whether it must be one of integers
    Errors: GraphError, if no device runs any
    """
    if not devices:
        return DEFAULT_SCHEME, ""
    names = [n for n in AUTOMATIC if not has_budget or isinstance(SCHEMES[n], QuantScheme)]
    name = max(names, key=lambda one: sum(not device.products[one] for device in devices))
    check_scheme(name, devices)
    running = ", ".join(one.name for one in devices if not one.products[name])
    others = [f"{one.name}: {why}" for one in devices if (why := one.products[name])]
    return name, "; ".join([f"its products run on {running}", *others])


def check_scheme(scheme: str, devices: Sequence[DeviceForms]) -> None:
    """See that a named device runs products of a scheme, where one is named.

    Errors: GraphError, with each device's reason
    """
    if not devices or not all(one.products[scheme] for one in devices):
        return
    running = [name for name in AUTOMATIC if not all(one.products[name] for one in devices)]
    raise GraphError(
        f"no named device runs products of the scheme {scheme}",
        facts=[f"{one.name}: {one.products[scheme]}" for one in devices],
        fix=f"scheme={running[0]!r}" if running else "name the cpu too",
    )


def _product(scheme: QuantScheme, to_floats: bool) -> Graph:
    """Return a product of integers in a graph with integers at its ends, or floats at its end."""
    graph = _float_product(scheme.name)
    taken = frozenset(node.id for node in graph.nodes)
    selection = Selection(taken, {}, taken if to_floats else frozenset())
    quants = dict.fromkeys((*graph.inputs, *graph.outputs), Quant((1.0,), (0,)))
    return emit(graph, selection, quants, scheme, name=scheme.name, integer_io=True).graph


def _product_of_weights(scheme: WeightScheme) -> Graph:
    """Return a product with smaller weights, as devices are given it."""
    return optimise(smaller_weights(_float_product(scheme.name), scheme, None, ()).graph)


def _float_product(name: str) -> Graph:
    b = GraphBuilder(name)
    x = b.input("x", TensorType((1, _SIZE), "float32"))
    weights = b.constant("w", np.ones((_SIZE, _SIZE), np.float32))
    bias = b.constant("b", np.zeros(_SIZE, np.float32))
    return b.finish(b.add("fully_connected", x, weights, bias))


def _refusals(device: Device, products: Mapping[str, Graph]) -> dict[str, str]:
    return {name: _refusal(device, graph) for name, graph in products.items()}


def _refusal(device: Device, graph: Graph) -> str:
    """Return why a device does not run the product of a graph."""

    def weights(node: Node) -> int:
        return sum(graph.type(i).nbytes for i in node.used if graph.values[i].is_constant)

    product = max(graph.nodes, key=weights)
    return device.unsupported_reason(graph, product) or ""
