"""The cores that an instance of the cpu device has to itself.

The CPUs that this process may use are shared out evenly, whole cores at a time. CPUs that are
threads of one core share its arithmetic, so they go to one instance. Instance k of n has the k-th
n-th part, and none has a core of another's, however many threads each runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from trireme.backend.device_kind import DeviceInstance
from trireme.devices.cpu.runtime.native import has_futex
from trireme.support.errors import DeviceError

_TOPOLOGY = Path("/sys/devices/system/cpu")


def all_cores() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def share_of(
    instance: DeviceInstance, cores: Iterable[int] | None = None, topology: Path = _TOPOLOGY
) -> tuple[int, ...]:
    """Return the CPUs that one of several instances gets.

    cores: those asked for, if any
    topology: the folder in which Linux lists the CPUs of each core
    Errors: DeviceError, if there are none left for it, or those asked for are not to be had
    """
    if not has_futex() or not hasattr(os, "sched_setaffinity"):
        raise no_instances(instance.name)
    allowed = all_cores()
    if cores is not None:
        wanted = tuple(sorted({*cores}))
        if not wanted or not {*wanted} <= {*allowed}:
            raise DeviceError(
                f"{instance.name}: cores {_list(wanted)}, expected some of {_list(allowed)},"
                " which this process may use"
            )
        return wanted
    whole = whole_cores(allowed, topology)
    number, each = instance.number, len(whole) // instance.count
    if not each:
        what = f"{len(whole)} cores" if len(whole) > 1 else "1 core"
        raise DeviceError(
            f"{instance.name}: this process may use {what} ({_list(allowed)}), one for each"
            " instance",
            fix=f"cpu#1 to cpu#{len(whole)}",
        )
    return tuple(sorted(cpu for one in whole[(number - 1) * each : number * each] for cpu in one))


def whole_cores(allowed: Iterable[int], topology: Path = _TOPOLOGY) -> list[tuple[int, ...]]:
    """Return CPUs by the core that they are threads of; each by itself where nothing says."""
    found: dict[str, list[int]] = {}
    for cpu in allowed:
        try:
            file = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
            key = file.read_text().strip()
        except OSError:
            key = str(cpu)
        found.setdefault(key, []).append(cpu)
    return [tuple(one) for one in found.values()]


def no_instances(name: str) -> DeviceError:
    """Return the error of a system on which threads cannot be kept to cores."""
    return DeviceError(f"{name}: instances need Linux, which keeps threads to cores", fix="cpu")


def too_many(name: str, threads: int, cores: tuple[int, ...]) -> DeviceError:
    """Return the error of an instance that is to have more threads than cores."""
    return DeviceError(
        f"{name}: {threads} threads on its own cores, {_list(cores)}",
        fix=f"threads={len(cores)}, or fewer instances",
    )


def _list(cores: Iterable[int]) -> str:
    return ", ".join(map(str, cores)) or "none"
