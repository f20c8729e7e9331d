"""Devices by name: how one is opened, with which options, and which can be open together.

They are found in a table of "module:factory" strings, so that nothing is imported (and no driver
touched) before a device is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from trireme.backend.device import HOST, Device, DeviceSpec, kind_of
from trireme.ir.effects import States
from trireme.support.arguments import check_arguments
from trireme.support.errors import DeviceError, TriremeError

Factory = Callable[..., Device]
_FACTORIES: dict[str, str] = {
    "cpu": "trireme.devices.cpu:open_device",
    "opencl": "trireme.devices.opencl:open_device",
    "npu": "trireme.devices.npu:open_device",
    "host": "trireme.devices.host:open_device",
}


def register_device(name: str, factory: str) -> None:
    """Make "module:factory" the device called `name`, for devices that live outside trireme."""
    _FACTORIES[name] = factory


def device_names() -> tuple[str, ...]:
    """Return the names that `open_device` knows."""
    return tuple(_FACTORIES)


def open_device(name: str, **options: Any) -> Device:
    """Open the device called `name`: a kind, or an instance of it by number ("cpu#2").

    A kind has instances if its factory takes a `name`; it may take how many there are, `instances`.
    Errors: DeviceError, if the name is unknown, the driver is absent or an option is not known
    """
    if not isinstance(name, str):
        raise DeviceError(f"{name!r} is no name of a device", fix='open_device("cpu")')
    kind = kind_of(name)
    if kind not in _FACTORIES:
        raise DeviceError(
            f"unknown device {name!r}", facts=[f"known: {', '.join(sorted(_FACTORIES))}"]
        )
    module, _, attribute = _FACTORIES[kind].partition(":")
    try:
        factory: Factory = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise DeviceError(f"device {name!r} cannot be opened: {error}") from error
    given = _of_instance(name, factory, options)
    check_arguments(factory, given, DeviceError, of=name)
    return factory(**given)


def _of_instance(name: str, factory: Factory, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a factory, with what it must know of an instance."""
    kind, hash, number = name.partition("#")
    given = {key: value for key, value in options.items() if key != "instances"}
    if not hash:
        return given
    takes = inspect.signature(factory).parameters
    if "name" not in takes:
        raise DeviceError(f"{name}: {kind} has no instances", fix=kind)
    if not number.isdecimal() or number[0] == "0":
        raise DeviceError(f"{name}: instances are numbered from 1", fix=f"{kind}#1")
    if "instances" in takes:
        asked = options.get("instances", 0)
        if not isinstance(asked, int):
            raise DeviceError(f"{name}: instances is {asked!r}, expected a whole number")
        given["instances"] = max(asked, int(number))
    return {**given, "name": name}


def open_devices(
    wanted: Sequence[str | Device],
    options: Mapping[str, Mapping[str, Any]],
    threads: int | None,
    fallback: bool = False,
) -> tuple[dict[str, Device], dict[str, TriremeError]]:
    """Return the devices by name, opened where a name is given, and why others are not there.

    options, threads: as in `options_of`
    fallback: leave out devices that cannot be opened
    Errors: DeviceError, if one cannot, if none can, or if two cannot be open together; what was
    opened is closed again
    """
    opened: dict[str, Device] = {}
    absent: dict[str, TriremeError] = {}
    if not wanted:
        raise DeviceError("no device was asked for", fix='devices=["cpu"]')
    names = [one if isinstance(one, str) else one.spec.name for one in wanted]
    with ExitStack() as closing:
        for one, name in zip(wanted, names, strict=True):
            if name in opened or name in absent:
                raise DeviceError(f"device {name!r} is listed twice")
            if not isinstance(one, str):
                opened[name] = one
                continue
            try:
                opened[name] = open_device(name, **options_of(name, names, options, threads))
                closing.callback(opened[name].close)
            except TriremeError as error:
                if not fallback:
                    raise
                absent[name] = error
        if not opened:
            raise DeviceError(
                "none of the devices could be opened",
                facts=[f"{name}: {error}" for name, error in absent.items()],
            )
        check_cores(device.spec for device in opened.values())
        closing.pop_all()
    return opened, absent


def keep_states(opened: dict[str, Device], states: States) -> None:
    """Add the host device to devices that do not have it, for nothing but what states there are."""
    if states.types and HOST not in opened:
        opened[HOST] = open_device(HOST, states=states, operators=False)


def options_of(
    name: str,
    names: Sequence[str],
    given: Mapping[str, Mapping[str, Any]],
    threads: int | None = None,
) -> dict[str, Any]:
    """Return the options to open a device with.

    names: all devices that are asked for
    given: options by name, and by kind for all instances of a kind
    threads: of the cpu device, or of each of its instances
    """
    kind = kind_of(name)
    options = {**given.get(kind, {}), **given.get(name, {})}
    if kind == "cpu" and threads is not None:
        options.setdefault("threads", threads)
    if kind != name:
        numbers = [other.partition("#")[2] for other in names if kind_of(other) == kind]
        known = [int(number) for number in numbers if number.isdecimal()]
        options["instances"] = max([*known, int(options.get("instances", 1))])
    return options


def check_cores(specs: Iterable[DeviceSpec]) -> None:
    """See that no devices take each other's cores and are predicted to overlap all the same.

    Errors: DeviceError, naming two that do
    """
    for one, other in itertools.combinations(specs, 2):
        shared = sorted(one.cores & other.cores)
        if shared and one.resource_group != other.resource_group:
            whole = next((spec for spec in (one, other) if spec.name == spec.kind), None)
            raise DeviceError(
                f"{one.name} and {other.name} share core {', '.join(map(str, shared))}, so neither"
                " would be as fast beside the other as it is predicted to be",
                fix=f"instances without {whole.name}" if whole else "cores that differ",
            )
