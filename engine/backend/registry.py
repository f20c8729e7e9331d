"""Open devices by name, with options, and check which can be open together.

The list names packages, each with a `KIND` (device_kind.py). A package is imported only when its
device is opened.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from trireme.backend.device import HOST, Device, DeviceSpec, kind_of
from trireme.backend.device_kind import DeviceInstance, DeviceKind
from trireme.support.errors import DeviceError, FaultKind, TriremeError

if TYPE_CHECKING:
    from trireme.ir.effects import States
    from trireme.ir.graph import Graph

DEFAULT_DEVICE = "cpu"
"""The device that runs a model when none is named."""
_KINDS: dict[str, str | DeviceKind] = {
    "cpu": "trireme.devices.cpu",
    "opencl": "trireme.devices.opencl",
    "npu": "trireme.devices.npu",
    "host": "trireme.devices.host",
}

_NEAR = 0.75
"""How alike two words must be, of 1, for one to be meant by the other."""
_DESCRIBED = "trireme.devices.described"


def register_device(kind: DeviceKind) -> None:
    """Let `open_device` know a kind that lives outside trireme."""
    _KINDS[kind.name] = kind


def device_names() -> tuple[str, ...]:
    """Return the names that `open_device` knows."""
    return tuple(_KINDS)


def kind_named(name: str) -> DeviceKind:
    """Return the declaration of a device's kind; "cpu#2" is of the kind "cpu".

    Errors: DeviceError, if there is no such kind
    """
    found = _KINDS.get(kind_of(name))
    if found is None:
        raise DeviceError(
            f"unknown device {name!r}",
            facts=[f"known: {', '.join(sorted(_KINDS))}"],
            fix=_near_name(kind_of(name)),
        )
    if isinstance(found, DeviceKind):
        return found
    kind: DeviceKind = importlib.import_module(found).KIND
    return kind


def _near_name(word: str) -> str:
    """Return the advice of a kind with nearly this name, or of one that the word means; or ""."""
    kinds = [kind_named(name) for name in _KINDS]
    called = {name: kind for kind in kinds for name in (kind.name, *kind.also_called)}
    near = difflib.get_close_matches(word.lower(), called, 1, _NEAR)
    return f"name it {called[near[0]].name} ({called[near[0]].summary})" if near else ""


def open_device(name: str, **options: Any) -> Device:
    """Open the device called `name`: a kind, or an instance of it by number ("cpu#2").

    options: as the kind declares them; `instances` is the number of instances side by side
    Errors: DeviceError, if the name is unknown, the driver is absent or an option is unknown
    """
    if not isinstance(name, str):
        raise DeviceError(
            f"{name!r} is no name of a device", fix=f'open_device("{DEFAULT_DEVICE}")'
        )
    kind = kind_named(name)
    count = options.pop("instances", 1)
    if not isinstance(count, int):
        raise DeviceError(f"{name}: instances is {count!r}, expected a whole number")
    return kind.opened(_instance(name, kind, count), options)


def _instance(name: str, kind: DeviceKind, count: int) -> DeviceInstance:
    _, hash, number = name.partition("#")
    if not hash:
        return DeviceInstance(name)
    if not kind.instances:
        raise DeviceError(f"{name}: {kind.name} has no instances", fix=kind.name)
    if not number.isdecimal() or number[0] == "0":
        raise DeviceError(f"{name}: instances are numbered from 1", fix=f"{kind.name}#1")
    return DeviceInstance(name, int(number), max(count, int(number)))


def described_machine(name_or_path: str, devices: Sequence[str] = ()) -> dict[str, Device]:
    """Return the devices of a described machine by name; with `devices` only those.

    They can be placed on and priced, not run.
    Errors: ModelFileError, if there is no such description; RunError, if it has no such device
    """
    soc = importlib.import_module(_DESCRIBED).load_soc(name_or_path)
    found: dict[str, Device] = dict((soc.only(devices) if devices else soc).devices())
    return found


def open_core_meter() -> Device:
    """Return an open device whose `core_latency` measures the machine's CPU cores.

    Errors: DeviceError, if there is none
    """
    for name in _KINDS:
        if kind_named(name).measures_cores:
            return open_device(name)
    raise DeviceError("no device measures how far apart the cores are")


def open_devices(
    wanted: Sequence[str | Device],
    options: Mapping[str, Mapping[str, Any]],
    threads: int | None,
    fallback: bool = False,
) -> tuple[dict[str, Device], dict[str, TriremeError]]:
    """Return the devices by name, opening those given by name, and the reasons of missing ones.

    options, threads: as in `options_of`
    fallback: leave out devices that cannot be opened
    Errors: DeviceError, if one cannot be opened, none can, or two cannot be open together. The
        devices opened so far are then closed.
    """
    opened: dict[str, Device] = {}
    absent: dict[str, TriremeError] = {}
    if not wanted:
        raise DeviceError("no device was asked for", fix=f'devices=["{DEFAULT_DEVICE}"]')
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
            none = DeviceError(
                "none of the devices could be opened",
                facts=[f"{name}: {error}" for name, error in absent.items()],
            )
            raise none.of_kind(FaultKind.UNAVAILABLE)
        check_cores(device.spec for device in opened.values())
        closing.pop_all()
    return opened, absent


def add_host(
    opened: dict[str, Device], graph: Graph, states: States, keeps_states: bool = False
) -> States:
    """Return where the states of a graph live: `states`, or those of an open host device.

    Without such a device, the host device is added for states and control flow that no other open
    device takes. It then takes nothing else.

    keeps_states: whether it is added for any state, because sessions of parts of the graph follow
    """
    from trireme.backend.capabilities import states_of

    needed = (keeps_states and states.types) or _wants_host(opened, graph)
    if HOST not in opened and needed:
        opened[HOST] = open_device(HOST, states=states, operators=False)
    found = states_of(opened.get(HOST))
    kept = states if found is None else found
    if kept is not states:
        kept.include(states)
    return kept


def _wants_host(opened: Mapping[str, Device], graph: Graph) -> bool:
    from trireme.backend.refusal import needs_host

    return any(
        needs_host(node) and all(d.unsupported_reason(graph, node) for d in opened.values())
        for node in graph.nodes
    )


def options_of(
    name: str,
    names: Sequence[str],
    given: Mapping[str, Mapping[str, Any]],
    threads: int | None = None,
) -> dict[str, Any]:
    """Return the options to open a device with.

    names: all devices that the caller asks for
    given: options by name, and by kind for all instances of a kind
    threads: of each device that takes an option of this name
    """
    kind = kind_of(name)
    options = {**given.get(kind, {}), **given.get(name, {})}
    if threads is not None and kind in _KINDS and kind_named(kind).takes("threads"):
        options.setdefault("threads", threads)
    if kind != name:
        numbers = [other.partition("#")[2] for other in names if kind_of(other) == kind]
        known = [int(number) for number in numbers if number.isdecimal()]
        options["instances"] = max([*known, int(options.get("instances", 1))])
    return options


def check_cores(specs: Iterable[DeviceSpec]) -> None:
    """Raise DeviceError, naming two devices, if they share cores but are predicted to overlap."""
    for one, other in itertools.combinations(specs, 2):
        shared = sorted(one.cores & other.cores)
        if shared and one.resource_group != other.resource_group:
            whole = next((spec for spec in (one, other) if spec.name == spec.kind), None)
            raise DeviceError(
                f"{one.name} and {other.name} share core {', '.join(map(str, shared))}, so neither"
                " would be as fast beside the other as it is predicted to be",
                fix=f"instances without {whole.name}" if whole else "cores that differ",
            )
