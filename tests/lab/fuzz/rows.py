"""How a row of the table says what an op takes: slots for inputs, choices for attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lab.fuzz.grower import INTS, Grower, Refused, Tensor

FLOAT32 = ("float32",)
REAL = ("float32", "float32", "float32", "float64", "float16")
NUMBER = (*REAL, "int32", "int64", "int32", "int64", *INTS)
ANY = (*NUMBER, "bool", "bool")


@dataclass
class Drawn:
    """A node while it is drawn: the attributes and inputs so far."""

    g: Grower
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: list[Tensor | None] = field(default_factory=list)

    @property
    def x(self) -> Tensor:
        """The first input."""
        assert self.inputs[0] is not None
        return self.inputs[0]


Slot = Callable[[Drawn], Tensor | None]
Build = Callable[[Grower], None]


@dataclass(frozen=True)
class Row:
    """An op of the table: `build` draws one node, or several, and adds them."""

    op: str
    build: Build
    weight: float = 1.0


def row(
    op: str,
    *slots: Slot,
    attrs: Mapping[str, Any] | None = None,
    outputs: int | Any = 1,
    rounds: bool = True,
    weight: float = 1.0,
    domain: str = "",
    name: str = "",
) -> Row:
    """Return the row of an op with those inputs; a tuple of an attribute is a choice, None absent.

    The first slot is filled, then the attributes are drawn, then the other slots.
    """

    def build(g: Grower) -> None:
        drawn = Drawn(g)
        drawn.inputs.append(slots[0](drawn))
        for key, options in (attrs or {}).items():
            chosen = options(drawn) if callable(options) else g.choose(options)
            if chosen is not None:
                drawn.attrs[key] = chosen
        for slot in slots[1:]:
            drawn.inputs.append(slot(drawn))
        hidden = {k: v for k, v in drawn.attrs.items() if not k.startswith("_")}
        count = outputs(drawn) if callable(outputs) else outputs
        g.node(op, drawn.inputs, hidden, count, domain, rounds)

    return Row(name or op, build, weight)


def value(
    dtypes: Sequence[str] = FLOAT32, ranks: Sequence[int] | None = None, when: Any = None
) -> Slot:
    """A value of the graph."""
    return lambda d: d.g.pick(_one(d.g, dtypes), ranks, when)


def filled(dtypes: Sequence[str] = FLOAT32, ranks: Sequence[int] | None = None) -> Slot:
    """A value that has elements: ONNX Runtime dies of some ops on empty ones."""
    return value(dtypes, ranks, lambda t: t.array.size > 0)


def _one(g: Grower, dtypes: Sequence[str]) -> Sequence[str]:
    """One dtype of the list, so that rare ones turn up, or any where values are sought."""
    return dtypes if g.chance(0.5) else (g.choose(dtypes),)


def like(broadcast: bool = True, one_way: bool = False) -> Slot:
    """Something of the first input's dtype that broadcasts with it; one_way: to its shape."""
    return lambda d: d.g.like(d.x, broadcast, one_way)


def maybe(slot: Slot, p: float = 0.5) -> Slot:
    """The slot, or nothing."""
    return lambda d: slot(d) if d.g.chance(p) else None


def given(make: Callable[[Drawn], Any], constant: float = 0.95) -> Slot:
    """What `make` returns as a constant, or now and then as an input of the graph."""
    return lambda d: d.g.operand(make(d), constant)


def ints(make: Callable[[Drawn], Any]) -> Slot:
    """Integers as an int64 constant."""
    return given(lambda d: np.asarray(make(d), np.int64), 0.99)


def drawn(make: Callable[[Drawn], Sequence[int]], low: float = -1, high: float = 1) -> Slot:
    """Weights of that shape and of the first input's dtype, constant or fed."""
    return given(lambda d: d.g.random(d.x.dtype, make(d), low, high), 0.8)


def scalar(low: float, high: float) -> Slot:
    """A number of the first input's dtype, of shape []."""
    return given(lambda d: d.g.random(d.x.dtype, (), low, high))


def axis(d: Drawn) -> int:
    """An axis of the first input, counted from either end."""
    if not d.x.rank:
        raise Refused("no axis")
    return int(d.g.rng.integers(-d.x.rank, d.x.rank))


def maybe_axis(d: Drawn) -> int | None:
    """An axis, or the default."""
    return axis(d) if d.g.chance(0.8) else None


def axes(d: Drawn) -> Any:
    """Some axes, in no order, from either end."""
    rank = d.x.rank
    count = int(d.g.rng.integers(1, rank + 1)) if rank else 0
    chosen = d.g.rng.permutation(rank)[:count]
    return np.array([a - rank if d.g.chance(0.3) else a for a in chosen], np.int64)


def uniform(low: float, high: float) -> Callable[[Drawn], float | None]:
    """A float attribute, or none where its default is as exact as the values are."""

    def make(d: Drawn) -> float | None:
        given = d.x.dtype == "float64" or d.g.chance(0.8)
        return float(np.float32(d.g.rng.uniform(low, high))) if given else None

    return make
