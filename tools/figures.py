"""Figures of a described machine set by name: the `--vary` of `whatif` and `place --soc`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trireme.devices.described import Soc
from trireme.support.errors import RunError


@dataclass(frozen=True)
class VariedFigure:
    """A figure, its full names in the description, and what it is set to: values or multiples."""

    figure: str
    names: tuple[str, ...]
    values: tuple[float, ...]
    multiples: bool

    def changes(self, soc: Soc, value: float) -> dict[str, float]:
        """Return the full names and their values."""
        known = soc.figures()
        return {name: known[name] * value if self.multiples else value for name in self.names}

    def text(self, value: float) -> str:
        """Return the figure and value as they are shown."""
        return f"{self.figure} {'x ' if self.multiples else ''}{value:.4g}"

    def described(self, soc: Soc) -> str:
        """Return the figure as the description has it, where it is set to values."""
        known = ", ".join(f"{name} {soc.figures()[name]:.4g}" for name in self.names)
        return f"as described: {known}"


def parse_axis(soc: Soc, row: str, steps: int) -> VariedFigure:
    """Return an axis from FIGURE=A..B, FIGURE=1e9,2e9 or FIGURE=x0.5,x2.

    Errors: RunError, if it is neither, or there is no such figure, or a value is no number
    """
    figure, _, text = row.partition("=")
    low, dots, high = text.partition("..")
    try:
        if dots:
            first, last = float(low), float(high)
            if not (0 < first < math.inf and 0 < last < math.inf) or steps < 2:
                raise ValueError
            ratio = (last / first) ** (1 / (steps - 1))
            values, multiples = tuple(first * ratio**i for i in range(steps)), True
        else:
            rows = text.split(",")
            multiples = all(one.startswith("x") for one in rows)
            values = tuple(float(one.removeprefix("x") if multiples else one) for one in rows)
    except ValueError:
        raise RunError(
            f"--vary {row}: expected FIGURE=0.5..16, FIGURE=1e9,2e9 or FIGURE=x0.5,x2",
            facts=[f"--steps {steps}: A..B has two values at least"] if steps < 2 else (),
        ) from None
    return VariedFigure(figure, tuple(soc.named(figure)), values, multiples)


def figures_set(soc: Soc, rows: Sequence[str]) -> dict[str, float]:
    """Return figures by full name and the value that each row, FIGURE=x1.5 or FIGURE=1e9, sets.

    Errors: RunError, as `parse_axis`; or if a row gives several values, or two rows set one figure
    """
    found: dict[str, float] = {}
    for row in rows:
        axis = parse_axis(soc, row, 2)
        if len(axis.values) != 1:
            raise RunError(f"--vary {row}: expected one value, as in {axis.figure}=x1.5")
        for name, value in axis.changes(soc, axis.values[0]).items():
            if name in found:
                raise RunError(f"--vary {row}: {name} is set twice")
            found[name] = value
    return found
