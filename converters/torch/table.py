"""Map each ATen op to the rule that converts it.

A key of the tables below is the op's name and its overloads: "add Tensor Scalar"; without an
overload it is the default one. A rule takes a Use and returns an id, or a tuple of ids and None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from trireme.converters.torch.activations import ACTIVATIONS
from trireme.converters.torch.complex import COMPLEX, PART_BY_PART, part_by_part
from trireme.converters.torch.elementwise import ELEMENTWISE
from trireme.converters.torch.experts import EXPERTS
from trireme.converters.torch.indexing import INDEXING
from trireme.converters.torch.layers import LAYERS
from trireme.converters.torch.linear import LINEAR
from trireme.converters.torch.movement import MOVEMENT
from trireme.converters.torch.quantized import QUANTIZED
from trireme.converters.torch.reduction import REDUCTION
from trireme.converters.torch.running import RUNNING
from trireme.converters.torch.sizes import ATEN_NUMBERS, NUMBERS
from trireme.converters.torch.solving import SOLVING
from trireme.converters.torch.use import Use

Rule = Callable[[Use], int | Sequence[int | None]]


def _by_overload(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with a line for each overload: "aten.add.Tensor"."""
    rules: dict[str, Any] = {}
    for key, rule in table.items():
        name, *overloads = key.split()
        for overload in overloads or ["default"]:
            rules[f"aten.{name}.{overload}"] = rule
    return rules


_TABLES = (
    ACTIVATIONS,
    ELEMENTWISE,
    INDEXING,
    LAYERS,
    LINEAR,
    MOVEMENT,
    REDUCTION,
    RUNNING,
    SOLVING,
)
ATEN: dict[str, Rule] = {
    **{name: rule for table in _TABLES for name, rule in _by_overload(table).items()},
    **EXPERTS,
    **QUANTIZED,
}
"""The rules of ops on tensors."""

ATEN_COMPLEX: dict[str, Callable[[Use], Any]] = {
    **_by_overload(COMPLEX),
    **{
        name: partial(part_by_part, rule=ATEN[name], values=values)
        for name, values in _by_overload(PART_BY_PART).items()
    },
}
"""The rules of ops that read or make complex numbers."""

SCALARS = {**NUMBERS, **_by_overload(ATEN_NUMBERS)}
"""The rules of functions and ops that give numbers."""


def supported_aten() -> list[str]:
    """Return the names of the ATen ops and overloads with a rule, in order."""
    return sorted({*ATEN, *ATEN_COMPLEX, *_by_overload(ATEN_NUMBERS)})
