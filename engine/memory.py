"""Pack live ranges into an arena: who may share which bytes, decided before anything runs.

`plan` calls it for every memory space, devices for the intermediates inside a region. Several
orders are tried and the smallest arena wins; a lower bound says how much better it could be.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trireme.errors import InternalError


@dataclass(frozen=True)
class LiveRange:
    """Bytes that must keep their contents from step `first` to step `last`, both included."""

    key: int
    first: int
    last: int
    nbytes: int


@dataclass(frozen=True)
class Packing:
    """Offsets in bytes by key, the arena's size, the least size any packing needs, and the order
    that won.
    """

    offsets: Mapping[int, int]
    nbytes: int
    lower_bound: int
    order: str

    @property
    def gap(self) -> float:
        """How much larger the arena is than the lower bound: 0.0 is proven optimal."""
        return self.nbytes / self.lower_bound - 1 if self.lower_bound else 0.0


_ORDERS: Mapping[str, Callable[[LiveRange], tuple[int, ...]]] = {
    "size": lambda r: (-r.nbytes, r.first, r.key),
    "area": lambda r: (-r.nbytes * (r.last - r.first + 1), r.first, r.key),
    "duration, size": lambda r: (r.first - r.last, -r.nbytes, r.key),
    "start, size": lambda r: (r.first, -r.nbytes, r.key),
    "end, size": lambda r: (-r.last, -r.nbytes, r.key),
}


def pack(ranges: Sequence[LiveRange], alignment: int = 64) -> Packing:
    """Return offsets such that ranges that live together do not overlap.

    Each order places the ranges one by one, each in the lowest gap that fits; the first order that
    meets the lower bound, else the smallest arena, is kept. Same ranges, same packing.
    Source: greedy by size as in TensorFlow Lite's arena planner, with further orders
    """
    rounded = [
        LiveRange(r.key, r.first, r.last, align_up(max(r.nbytes, 1), alignment)) for r in ranges
    ]
    bound = peak_bytes(rounded)
    together = _conflicts(rounded)
    best: Packing | None = None
    for name, order in _ORDERS.items():
        offsets, size = _place(sorted(rounded, key=order), together)
        if best is None or size < best.nbytes:
            best = Packing(offsets, size, bound, name)
        if size <= bound:
            break
    if best is None:
        raise InternalError("no packing order is known")
    return best


def align_up(nbytes: int, alignment: int) -> int:
    """Return the least multiple of `alignment` that is not below nbytes."""
    return -(-nbytes // alignment) * alignment


def peak_bytes(ranges: Sequence[LiveRange]) -> int:
    """Return the most bytes live at one step: no packing is smaller."""
    change: dict[int, int] = {}
    for r in ranges:
        change[r.first] = change.get(r.first, 0) + r.nbytes
        change[r.last + 1] = change.get(r.last + 1, 0) - r.nbytes
    peak = live = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def _conflicts(ranges: Sequence[LiveRange]) -> dict[int, list[int]]:
    """Return, by key, the keys of the ranges that live at a common step."""
    conflicts: dict[int, list[int]] = {r.key: [] for r in ranges}
    if len(conflicts) != len(ranges):
        raise InternalError("a live range is listed twice")
    live: list[LiveRange] = []
    for r in sorted(ranges, key=lambda r: (r.first, r.key)):
        live = [other for other in live if other.last >= r.first]
        for other in live:
            conflicts[r.key].append(other.key)
            conflicts[other.key].append(r.key)
        live.append(r)
    return conflicts


def _place(
    ordered: Sequence[LiveRange], together: Mapping[int, list[int]]
) -> tuple[dict[int, int], int]:
    placed: dict[int, tuple[int, int]] = {}
    top = 0
    for r in ordered:
        taken: list[tuple[int, int]] = []
        for key in together[r.key]:
            if key in placed:
                insort(taken, placed[key])
        offset = 0
        for start, end in taken:
            if offset + r.nbytes <= start:
                break
            offset = max(offset, end)
        placed[r.key] = (offset, offset + r.nbytes)
        top = max(top, offset + r.nbytes)
    return {key: start for key, (start, _) in placed.items()}, top
