"""Hold the options of a placement as one frozen value."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, cast

from trireme.placement.lock import Lock
from trireme.placement.lockfile import load_lock
from trireme.placement.objective import MultiDevice, Objective
from trireme.placement.placement import Placement
from trireme.placement.pricing import FixedNodes
from trireme.support.arguments import check_arguments, choice
from trireme.support.errors import PlacementError
from trireme.support.records import dataclass

FixedPlacement = FixedNodes | Placement | Lock | str | os.PathLike[str]
"""Ways to say where nodes must be: a placement, a lock, the file that holds one, or the nodes."""
Sharding = Sequence[str] | Literal["auto", "off"]
"""The shards over devices: those predicted to gain, none, or those that the texts name."""


@dataclass(frozen=True)
class PlacementOptions:
    """The options that decide where nodes go.

    objective: what is minimised; when None the objective of a fixed lock, else "makespan"
    pins: nodes that must be on a device: {"conv1": "npu", "op:softmax": "cpu"}, by name or id, as
        FIRST..LAST, "*" or by op; a later pin overrides an earlier one (ir/selectors.py)
    fixed: where all other nodes must be; nothing is searched then, and `sharding` is not looked at
    sharding: "auto" where a shard is predicted to gain, "off", or texts such as
        "conv1=cpu,npu:rows" (shards/spec.py)
    multi_device: when several devices are taken (uncertainty.py)
    single_device: the device that takes every node it can run; others take what it refuses
    quick: whether the search stops after one local search, from its best start, which takes a third
        to a tenth of the time; the placement may score worse
    prove_s: seconds the exact solver may take to prove the placement or to find a better one; None
        for no proof
    """

    objective: Objective | None = None
    pins: Mapping[Any, str] = field(default_factory=dict)
    fixed: FixedPlacement | None = None
    sharding: Sharding = "auto"
    multi_device: MultiDevice = "significant"
    single_device: str | None = None
    quick: bool = False
    prove_s: float | None = None

    def __post_init__(self) -> None:
        check_arguments(type(self).__init__, vars(self), PlacementError)
        choice("multi_device", self.multi_device, MultiDevice, PlacementError)

    def read_fixed(self) -> FixedNodes | Placement | Lock | None:
        """Return what is fixed; the lock where its file is given.

        Errors: ModelFileError, as `load_lock`
        """
        fixed = self.fixed
        return load_lock(fixed) if isinstance(fixed, str | os.PathLike) else fixed

    @property
    def goal(self) -> Objective:
        """The objective that counts, once the file of a lock is read."""
        of_lock = self.fixed.objective if isinstance(self.fixed, Lock) else "makespan"
        return self.objective or cast(Objective, of_lock)

    @property
    def is_free(self) -> bool:
        """Whether the search decides: no placement is fixed and no shard is asked for."""
        return (
            self.fixed is None and self.single_device is None and self.sharding in ("auto", "off")
        )

    def without(self, gone: Container[str]) -> PlacementOptions:
        """Return the options of a session that goes on without some devices."""
        return replace(self, single_device=None) if self.single_device in gone else self


PLAIN = PlacementOptions(sharding="off", multi_device="any")
"""Virtual time alone: the least predicted score, whatever the uncertainty, and no shard."""
