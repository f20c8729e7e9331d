"""Execution providers: which devices a list of them means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trireme.compat.onnxruntime.errors import InvalidArgument, warn_unused

CPU = "CPUExecutionProvider"
TRIREME = "TriremeExecutionProvider"
AVAILABLE = (TRIREME, CPU)
"""The second runs on the cpu device; the first on the devices of its option "devices"."""

Provider = str | tuple[str, Mapping[str, Any]]


def devices_of(
    providers: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None
) -> tuple[list[str], dict[str, dict[str, Any]], list[str]]:
    """Return the names of the providers that serve, their options, and the devices.

    A provider that is not available is left out with a warning, as in ONNX Runtime.
    Errors: InvalidArgument
    """
    pairs = _pairs(providers, options)
    kept = {name: given for name, given in pairs if name in AVAILABLE}
    for name, _ in pairs:
        if name not in AVAILABLE:
            warn_unused(name, f"the providers are {', '.join(AVAILABLE)}")
    devices: list[str] = []
    for name, given in kept.items():
        devices += _devices(name, given)
    if not kept:
        kept = {CPU: {}}
    devices = list(dict.fromkeys(devices or ["cpu"]))
    return list(kept), kept, devices


def _pairs(
    providers: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, dict[str, Any]]]:
    given = list(providers or [CPU])
    if options is not None and len(options) != len(given):
        raise InvalidArgument(
            f"{len(given)} providers have {len(options)} provider_options, expected one for each"
        )
    pairs = []
    for k, one in enumerate(given):
        name, own = (one, {}) if isinstance(one, str) else (one[0], one[1])
        if options is not None and options[k]:
            own = options[k]
        if not isinstance(name, str) or not isinstance(own, Mapping):
            raise InvalidArgument(f"provider {one!r} is no name, nor a name with options")
        pairs.append((name, dict(own)))
    return pairs


def _devices(name: str, given: Mapping[str, Any]) -> list[str]:
    if name == CPU:
        for option in given:
            warn_unused(f"option {option} of {CPU}", "memory is planned when a model is loaded")
        return ["cpu"]
    unknown = [option for option in given if option != "devices"]
    if unknown:
        raise InvalidArgument(f"{TRIREME} has no option {unknown[0]!r}", facts=["it has devices"])
    asked = given.get("devices", "cpu")
    names = asked.split(",") if isinstance(asked, str) else list(asked)
    return [str(one).strip() for one in names]
