"""The scratch memory of a program: what flows between its steps, packed by lives.

Where sizes vary, the values are packed once, at usual sizes, and it is known who shares a slot and
which slots lie below which. Other sizes keep the order of that packing: a slot
begins where the last of the slots below it ends (runtime/slot_places.py). So values of common lives
never overlap, and a shape whose sizes are in other proportions takes more memory than its own
packing would.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Protocol

from trireme.backend.arena import LiveRange, pack
from trireme.devices.cpu.kernels.lowering import At, Operand, SizedTemp, Temp
from trireme.ir.dim_values import evaluator
from trireme.ir.dims import symbols_of
from trireme.ir.graph import UNKNOWN, Graph
from trireme.support.dtypes import itemsize
from trireme.support.records import dataclass

_USUAL = 128
"""The size of a symbol at which the values are packed, where its bounds allow it."""
Life = tuple[int, int]
"""The first and the last step that use a value."""
Home = int | str
"""The id of a value, or the key of a Temp."""


class UsesOperands(Protocol):
    """A step of any kind."""

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The operands it reads."""

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The operands it writes."""


@dataclass(frozen=True)
class ScratchSlot:
    """Scratch memory that values of disjoint lives share.

    members: their ids, or keys of Temps
    below: the numbers of the slots that end before it begins; others that do end before those
    """

    members: tuple[Home, ...]
    below: tuple[int, ...]


def scratch_offsets(
    graph: Graph, steps: Sequence[UsesOperands], homes: Mapping[int, int], outside: Collection[int]
) -> tuple[dict[Home, int], int]:
    """Return the offset of each value and Temp between steps, and the bytes of all.

    homes: the value in whose memory each value lies; outside: values in other memory
    """
    temps, lives = temps_of(steps), _lives(graph, steps, homes, outside)
    found = pack(
        [
            LiveRange(k, *life, (graph.type(at) if isinstance(at, int) else temps[at]).nbytes)
            for k, (at, life) in enumerate(lives.items())
        ]
    )
    return {home: found.offsets[k] for k, home in enumerate(lives)}, found.nbytes


def temps_of(steps: Sequence[UsesOperands]) -> dict[str, Temp]:
    """Return the Temps of steps by key."""
    operands = [operand for step in steps for operand in (*step.reads, *step.writes)]
    temps = (operand.of if isinstance(operand, At) else operand for operand in operands)
    return {one.key: one for one in temps if isinstance(one, Temp)}


def scratch_slots(
    graph: Graph,
    steps: Sequence[UsesOperands],
    homes: Mapping[int, int],
    temps: Mapping[str, SizedTemp],
) -> tuple[ScratchSlot, ...]:
    """Return the memory of what flows between steps, from low to high offsets.

    graph: with symbols; homes: the value in whose memory each value lies
    """
    lives = _lives(graph, steps, homes)
    if not lives:
        return ()
    nbytes = _usual_bytes(graph, lives, temps)
    keys = list(lives)
    ranges = [LiveRange(k, *lives[key], nbytes[key]) for k, key in enumerate(keys)]
    offsets = pack(ranges).offsets
    shared: dict[tuple[int, Hashable], list[Home]] = {}
    for k, key in enumerate(keys):
        kind = key if isinstance(key, str) else (graph.type(key).shape, graph.type(key).dtype)
        shared.setdefault((offsets[k], kind), []).append(key)
    members = [shared[place] for place in sorted(shared, key=lambda place: place[0])]
    below = _below([[lives[key] for key in one] for one in members])
    slots = zip(members, below, strict=True)
    return tuple([ScratchSlot(tuple(one), under) for one, under in slots])


def _lives(
    graph: Graph,
    steps: Sequence[UsesOperands],
    homes: Mapping[int, int],
    outside: Collection[int] = (),
) -> dict[Home, Life]:
    """Return the lives of what lies in scratch memory: not inputs, outputs and constants."""
    outside = {*graph.inputs, *graph.outputs, *outside}
    lives: dict[Home, Life] = {}
    for position, step in enumerate(steps):
        for operand in (*step.reads, *step.writes):
            of = operand.of if isinstance(operand, At) else operand
            home: Home | None = of.key if isinstance(of, Temp) else None
            if isinstance(of, int) and not graph.values[homes[of]].is_constant:
                home = homes[of]
            if home is not None and home not in outside:
                lives[home] = (lives.get(home, (position, 0))[0], position)
    return lives


def _usual_bytes(
    graph: Graph, lives: Mapping[Home, Life], temps: Mapping[str, SizedTemp]
) -> dict[Home, int]:
    """Return the bytes of what lies in scratch memory at usual sizes."""
    types = {home: graph.type(home) for home in lives if isinstance(home, int)}
    dims = {dim: None for type in types.values() for dim in type.shape if dim != UNKNOWN}
    names = sorted({name for dim in dims for name in symbols_of(dim)})
    bounds = [graph.symbols.get(name, (0, None)) for name in names]
    sizes = [max(low, min(_USUAL, _USUAL if high is None else high)) for low, high in bounds]
    numbers = dict(zip(dims, evaluator(dims, names)(*sizes), strict=True))
    found: dict[Home, int] = {}
    for home in lives:
        if isinstance(home, str):
            found[home] = temps[home].nbytes
        else:
            type = types[home]
            counts = [max(numbers.get(dim, _USUAL), 1) for dim in type.shape]
            found[home] = math.prod(counts) * itemsize(type.dtype)
    return found


def _below(lives: Sequence[Sequence[Life]]) -> list[tuple[int, ...]]:
    """Return the slots below each slot, given the lives of each one's members from low to high.

    A slot below another one that is below as well is left out.
    """
    found: list[tuple[int, ...]] = []
    reached: list[int] = []  # by slot, the set of slots below it, as bits
    for met in _met_below(lives):
        under: list[int] = []
        known = 0
        for other in sorted(met, reverse=True):
            if not known >> other & 1:
                under.append(other)
                known |= reached[other] | 1 << other
        found.append(tuple(under))
        reached.append(known)
    return found


def _met_below(lives: Sequence[Sequence[Life]]) -> list[set[int]]:
    """Return, by slot, the lower slots with members that live when one of its own does."""
    met: list[set[int]] = [set() for _ in lives]
    live: list[tuple[int, int]] = []  # the last step of each member that lives, and its slot
    for first, last, slot in sorted((*life, k) for k, mine in enumerate(lives) for life in mine):
        live = [(end, other) for end, other in live if end >= first]
        for _, other in live:
            met[max(slot, other)].add(min(slot, other))
        live.append((last, slot))
    return met
