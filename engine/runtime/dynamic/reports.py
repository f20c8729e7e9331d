"""What the stages of a run were, and what each took."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trireme.profiling.staged import StageTimes
from trireme.support.dtypes import Array

Tier = Literal["polymorphic", "specialised", "reference", "dataflow"]


@dataclass(frozen=True)
class StageReport:
    """What one stage of a run was.

    shapes: of its inputs, by name
    nodes: the nodes of its region
    on: the devices of the region, or "numpy reference"; "" without nodes
    tier: "polymorphic" where one program serves every shape, "specialised" where the program is
        compiled for these shapes, "reference" for numpy, "dataflow" for a dynamic schedule; why is
        why it is not polymorphic
    steps: the nodes that the host ran, because the shapes of their results depend on values
    fallbacks: of the steps, each body of control flow that is not compiled, and why
    state: how the tied states of the session are kept
    bucket: the sizes of symbols that the feeds were padded to; none where shapes run as they are
    padding: the share of the work that was padding, 0 to 1
    """

    shapes: Mapping[str, tuple[int, ...]]
    nodes: int
    on: str
    tier: Tier
    why: str
    steps: tuple[str, ...]
    fallbacks: tuple[str, ...] = ()
    state: str = ""
    bucket: Mapping[str, int] = field(default_factory=dict)
    padding: float = 0.0

    @property
    def has_plan(self) -> bool:
        """Whether one plan runs all of the stage."""
        return not self.steps and self.tier in ("polymorphic", "specialised")

    @property
    def ran_by(self) -> str:
        """Who ran the nodes of the stage: its devices, numpy and the host."""
        ran = [f"{self.on} ran {self.nodes} nodes"] if self.nodes else []
        return ", then ".join([*ran, *(f"the host ran {step}" for step in self.steps)])

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())
        lines = [f"{shapes}:"]
        if self.nodes:
            why = f" ({self.why})" if self.why else ""
            lines = [f"{shapes}: {self.nodes} nodes on {self.on}, {self.tier}{why}"]
        if self.bucket:
            sizes = ", ".join(f"{name}={size}" for name, size in self.bucket.items())
            lines.append(f"  bucket {sizes}: {self.padding:.0%} of the work is padding")
        lines += [f"  then host: {step}" for step in self.steps]
        lines += [f"    {fallback}" for fallback in self.fallbacks]
        lines += [f"  {self.state}"] if self.state else []
        return "\n".join(lines)


class StagesRan(list[StageReport]):
    """The reports of a run.

    regions: what ran the region of each stage; None where numpy did
    """

    def __init__(self) -> None:
        super().__init__()
        self.regions: list[object] = []


class StageWatch(StagesRan):
    """The reports of a run, and the times of its stages; wall_s: the seconds of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.wall_s = 0.0
        self._laps: list[_Laps] = []

    def begin(self) -> _Laps:
        """Return the clock of a stage that begins."""
        self._laps.append(_Laps())
        return self._laps[-1]

    @property
    def times(self) -> list[StageTimes]:
        """What each stage took, in order."""
        return [StageTimes(one.region_s, tuple(one.steps_s), one.grown_bytes) for one in self._laps]


class _Laps:
    """The clock of one stage."""

    def __init__(self) -> None:
        self.region_s, self.grown_bytes = 0.0, 0
        self.steps_s: list[float] = []
        self._last = time.perf_counter()

    def _lap(self) -> float:
        now = time.perf_counter()
        took, self._last = now - self._last, now
        return took

    def region_ran(self) -> None:
        """Note that the region ended."""
        self.region_s = self._lap()

    def step_ran(self, results: Sequence[Array]) -> None:
        """Note that a step ended with these results."""
        self.grown_bytes += sum(array.nbytes for array in results)
        self.steps_s.append(self._lap())
