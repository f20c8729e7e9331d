"""The declaration of a kind of device: its options, and how to open a device.

Each folder of devices/ has one `KIND`; registry.py lists them. Tools read every declaration, so
importing a folder touches no driver and no compiler. `open` imports the driver or compiler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from trireme.backend.device import Device
from trireme.backend.image import OpenImage
from trireme.support.arguments import check_arguments
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.records import dataclass


@dataclass(frozen=True)
class NoOptions:
    """The options of a kind without options."""


@dataclass(frozen=True)
class DeviceInstance:
    """An instance of a kind: "cpu", or number 2 of 3 side by side, called "cpu#2"."""

    name: str
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Option:
    """One option, as its kind declares it.

    help: a phrase that describes the option; for True or False, the effect of True
    choices: all allowed values, where there is such a list
    flag: its name on the command line ("--isa"; "--no-winograd" sets False); "" for none. Kinds
        may share a flag.
    flag_sets: the value that the flag sets, where it takes none and the type is not bool
    """

    name: str
    type: Any
    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    flag: str = ""
    flag_sets: Any = None

    @property
    def switched(self) -> Any:
        """The value that the flag sets; None where the flag takes a value."""
        return not self.default if self.type is bool else self.flag_sets


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[Any] = (),
    flag: str = "",
    flag_sets: Any = None,
) -> Any:
    """Return a field of a class of options; the arguments are as in Option."""
    said = {"help": help, "choices": tuple(choices), "flag": flag, "flag_sets": flag_sets}
    return dataclasses.field(default=default, metadata=said)


def _itself() -> Sequence[str]:
    return ("",)


def _nothing() -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device, for code outside its folder, without an open device.

    open: returns an open device; raises DeviceError where there is none
    options: a frozen dataclass whose fields are made by `option`
    instances: whether several can be open side by side, as "cpu#1" and "cpu#2"
    measures_cores: whether its `core_latency` measures the machine's CPU cores
    open_image: opens the image of a task that it compiled (image.py); None where it stores none
    image_key: what such an image depends on beside the graph, given the options
    found: describes the devices that this machine can open, the preferred first
    demands: its refusal sentences, where it has a list of them
    also_called: other words for the kind, which the error of an unknown device knows
    """

    name: str
    summary: str
    open: Callable[[Any, DeviceInstance], Device]
    options: type[Any] = NoOptions
    instances: bool = False
    measures_cores: bool = False
    open_image: OpenImage | None = None
    image_key: Callable[[Any], str] = repr
    found: Callable[[], Sequence[str]] = _itself
    demands: Callable[[], Sequence[str]] = _nothing
    also_called: tuple[str, ...] = ()

    def declared(self) -> tuple[Option, ...]:
        """Return the options, in order."""
        types = get_type_hints(self.options)
        fields = dataclasses.fields(self.options)
        return tuple(Option(f.name, types[f.name], f.default, **f.metadata) for f in fields)

    def takes(self, name: str) -> bool:
        """Return whether there is an option of this name."""
        return any(one.name == name for one in self.declared())

    def opened(self, instance: DeviceInstance, given: Mapping[str, Any]) -> Device:
        """Return an open device.

        given: options by name
        Errors: DeviceError, if an option is unknown or wrong, or there is no such device
        """
        check_arguments(self.options, given, DeviceError, of=instance.name)
        for one in self.declared():
            value = given.get(one.name)
            if one.choices and value is not None and value not in one.choices:
                raise DeviceError(
                    f"{instance.name}: unknown {one.name} {value!r}",
                    facts=[f"known: {', '.join(map(str, one.choices))}"],
                )
        try:
            return self.open(self.options(**given), instance)
        except ImportError as error:
            found = DeviceError(f"device {instance.name!r} cannot be opened: {error}")
            raise found.of_device(instance.name).of_kind(FaultKind.UNAVAILABLE) from error
        except DeviceError as error:
            error.of_device(instance.name).of_kind(FaultKind.UNAVAILABLE)
            raise
