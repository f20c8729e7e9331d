"""The options of `quantize`, as one object, and which of them go together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trireme.backend.device import Device
from trireme.ir.bind_shapes import Shapes
from trireme.quantiser.device_forms import DeviceForms
from trireme.quantiser.precision.budget import LossBudget
from trireme.quantiser.ranges import METHODS
from trireme.quantiser.repair import AUTO, NONE, repairs_named
from trireme.quantiser.scheme import QuantScheme, Scheme, WeightScheme
from trireme.support.errors import GraphError

Progress = Callable[[str, int, int], None]
TRIED = ("min_max", "mean_squared_error", "percentile")
"""The ways to take ranges that "auto" measures; the first of equals is kept."""


@dataclass(frozen=True)
class QuantRequest:
    """The arguments of `quantize`.

    budget: None where nothing is decided together with the placement
    device_forms: what each device runs that is named; empty where none is
    scheme_why: why the scheme was chosen, where named devices decided
    """

    group: int | None
    ranges: str
    keep_float: tuple[str, ...]
    io: str
    products: str
    repairs: str | Collection[str]
    round_limit_gflop: float
    explain: bool
    budget: LossBudget | None
    devices: Sequence[str | Device] | None
    soc: str | None
    time_limit_s: float | None
    device_forms: tuple[DeviceForms, ...]
    scheme_why: str
    shapes: Shapes
    seed: int
    threads: int | None
    progress: Progress

    @property
    def methods(self) -> tuple[str, ...]:
        """The ways to take ranges that are tried."""
        return TRIED if self.ranges == AUTO else (self.ranges,)

    @property
    def integer_io(self) -> bool:
        """Whether the inputs and outputs are integers."""
        return self.io != "float32"

    @property
    def repair_names(self) -> list[str]:
        """The repairs to try, in their order."""
        names = repairs_named(self.repairs, has_budget=self.budget is not None)
        return [name for name in names if name != "rounding" or self.round_limit_gflop > 0]

    def check(self, scheme: Scheme) -> None:
        """See that the options go together, and with a scheme.

        Errors: GraphError, naming the first that does not
        """
        if self.ranges not in (AUTO, *METHODS):
            known = ", ".join((AUTO, *METHODS))
            raise GraphError(f"unknown ranges {self.ranges!r}", facts=[f"known: {known}"])
        repairs_named(self.repairs, has_budget=self.budget is not None)
        self._check_time_limit()
        if isinstance(scheme, WeightScheme):
            self._check_weights(scheme)
        else:
            self._check_integers(scheme)

    def _check_time_limit(self) -> None:
        if self.time_limit_s is None:
            return
        if self.budget is None:
            raise GraphError("time_limit_s is of a budget, and none is given", fix="add budget=")
        if not 0 < self.time_limit_s < math.inf:
            raise GraphError(f"time_limit_s is {self.time_limit_s}, expected more than 0 seconds")

    def _check_weights(self, scheme: WeightScheme) -> None:
        are_defaults = {
            "ranges": self.ranges == AUTO,
            "io": not self.integer_io,
            "explain": not self.explain,
            "products": self.products == AUTO,
            "repairs": self.repairs in (AUTO, NONE),
        }
        wrong = [name for name, is_default in are_defaults.items() if not is_default]
        if wrong:
            raise GraphError(
                f"{scheme.name} measures no ranges, so {' and '.join(wrong)} has no meaning",
                fix="leave it out, or choose scheme int8",
            )
        if self.budget is not None:
            raise GraphError(f"{scheme.name} takes no budget: it leaves all values float")

    def _check_integers(self, scheme: QuantScheme) -> None:
        if self.group is not None:
            raise GraphError(f"{scheme.name} has no groups, and group is {self.group}")
        if self.io not in ("float32", scheme.activations):
            raise GraphError(
                f"io is {self.io}, and values of {scheme.name} are {scheme.activations}"
            )
        if self.products == "float32" and not scheme.has_float_sums:
            raise GraphError(f"products of {scheme.name} make integers, not float32")
        if self.products == "float32" and self.budget is not None:
            raise GraphError("a budget places integers, which products of float32 do not make")
