"""Which options a device of a list is opened with, and which devices can be open together.

Called by sessions and tools, which open the devices one by one, as some may be absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trireme.device import DeviceSpec, kind_of
from trireme.errors import DeviceError


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
