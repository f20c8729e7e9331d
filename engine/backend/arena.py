"""Pack live ranges into an arena: who may share which bytes, decided before anything runs.

`plan` calls it for every memory space, devices for the intermediates inside a region. Several
orders are tried and the smallest arena wins; a lower bound says how much better it could be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trireme.support.errors import InternalError
from trireme.support.units import bytes_text, time_text


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


@dataclass(frozen=True)
class MemoryUse:
    """What is needed of one memory space, in bytes.

    limit: what there is, 0 without an end
    arena, weights, scratch, code: what is kept there
    streamed, streamed_s: the weights among them that are fetched anew in every run, and the seconds
    can_stream: whether any weights may be
    """

    memory: str
    limit: int
    arena: int = 0
    weights: int = 0
    scratch: int = 0
    code: int = 0
    streamed: int = 0
    streamed_s: float = 0.0
    can_stream: bool = False

    @property
    def needed(self) -> int:
        """Bytes that must be there at once; weights need not where they can be streamed."""
        kept = 0 if self.can_stream else self.weights
        return self.arena + self.scratch + self.code + kept

    @property
    def excess(self) -> int:
        """Bytes that are needed beyond what there is."""
        return max(self.needed - self.limit, 0) if self.limit else 0

    def __str__(self) -> str:
        limit = f" of {self.limit}" if self.limit else ""
        total = self.arena + self.scratch + self.code + self.weights - self.streamed
        text = (
            f"{self.memory}: {total}{limit} bytes (arena {self.arena}, weights {self.weights}, "
            f"scratch {self.scratch}, code {self.code})"
        )
        if self.streamed:
            text += f"; {self.streamed} of weights streamed a run, {time_text(self.streamed_s)}"
        return text

    def rounded(self) -> str:
        """Return the same in rounded sizes, as a report has it; `str` has every byte for errors."""
        limit = f" of {bytes_text(self.limit)}" if self.limit else ""
        parts = ("arena", "weights", "scratch", "code")
        sizes = ", ".join(f"{part} {bytes_text(getattr(self, part))}" for part in parts)
        text = f"{self.memory}: {bytes_text(self.needed)}{limit} ({sizes})"
        if self.streamed:
            text += f"; {bytes_text(self.streamed)} of weights streamed a run, "
            text += time_text(self.streamed_s)
        return text


_ORDERS: Mapping[str, Callable[[LiveRange], tuple[int, ...]]] = {
    "size": lambda r: (-r.nbytes, r.first, r.key),
    "area": lambda r: (-r.nbytes * (r.last - r.first + 1), r.first, r.key),
    "duration, size": lambda r: (r.first - r.last, -r.nbytes, r.key),
    "start, size": lambda r: (r.first, -r.nbytes, r.key),
    "end, size": lambda r: (-r.last, -r.nbytes, r.key),
}


MOST_CONFLICTS = 64
"""Ranges that live together with one, on average, that are looked at one by one: where there are
more, a tree is quicker."""
MANY, NEAR = 4096, 0.05
"""Ranges from which on an arena is good enough that is larger than the bound by this share."""


def pack(ranges: Sequence[LiveRange], alignment: int = 64) -> Packing:
    """Return offsets such that ranges that live together do not overlap.

    Each order places the ranges one by one, each in the lowest gap that fits; the first order that
    meets the lower bound (comes near it, of many ranges), else the smallest arena, is kept. Same
    ranges, same packing.
    Source: greedy by size as in TensorFlow Lite's arena planner, with further orders
    """
    rounded = [
        LiveRange(r.key, r.first, r.last, align_up(max(r.nbytes, 1), alignment)) for r in ranges
    ]
    if len({r.key for r in rounded}) != len(rounded):
        raise InternalError("a live range is listed twice")
    bound = peak_bytes(rounded)
    pairs = _pairs(rounded)
    together = _conflicts(rounded) if pairs <= MOST_CONFLICTS * len(rounded) else None
    best: Packing | None = None
    for name, order in _ORDERS.items():
        ordered = sorted(rounded, key=order)
        offsets = _among_few(ordered, together) if together is not None else _among_many(ordered)
        size = max((offsets[r.key] + r.nbytes for r in rounded), default=0)
        if best is None or size < best.nbytes:
            best = Packing(offsets, size, bound, name)
        if best.nbytes <= (bound if len(rounded) <= MANY else bound * (1 + NEAR)):
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


def _pairs(ranges: Sequence[LiveRange]) -> int:
    """Return how many pairs of ranges live at a common step."""
    lasts = sorted(r.last for r in ranges)
    apart = sum(bisect_left(lasts, r.first) for r in ranges)
    return len(ranges) * (len(ranges) - 1) // 2 - apart


def _conflicts(ranges: Sequence[LiveRange]) -> dict[int, list[int]]:
    """Return, by key, the keys of the ranges that live at a common step."""
    conflicts: dict[int, list[int]] = {r.key: [] for r in ranges}
    live: list[LiveRange] = []
    for r in sorted(ranges, key=lambda r: (r.first, r.key)):
        live = [other for other in live if other.last >= r.first]
        for other in live:
            conflicts[r.key].append(other.key)
            conflicts[other.key].append(r.key)
        live.append(r)
    return conflicts


def _among_few(ordered: Sequence[LiveRange], together: Mapping[int, list[int]]) -> dict[int, int]:
    """Return the offset of each range, the lowest that fits among those placed before it, looking
    at each of those.
    """
    placed: dict[int, tuple[int, int]] = {}
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
    return {key: start for key, (start, _) in placed.items()}


def _among_many(ordered: Sequence[LiveRange]) -> dict[int, int]:
    """Return what `_among_few` does, looking at what the placed ranges take together.

    A tree over the steps keeps the bytes taken: n ranges that all live together need n log n looks
    instead of n squared.
    """
    steps = sorted({r.first for r in ordered})  # ranges meet at the first step of one of them
    leaves = 1 << (len(steps) - 1).bit_length()
    throughout: defaultdict[int, _Taken] = defaultdict(_Taken)  # in every step below a tree node
    somewhere: defaultdict[int, _Taken] = defaultdict(_Taken)  # in some step below it
    offsets: dict[int, int] = {}
    for r in ordered:
        first, end = bisect_left(steps, r.first), bisect_right(steps, r.last)
        tops = _cover(first + leaves, end + leaves)
        above = {node >> k for node in tops for k in range(1, node.bit_length())}
        taken = [throughout[node] for node in above if node in throughout]
        taken += [somewhere[node] for node in tops if node in somewhere]
        offset = offsets[r.key] = _lowest_gap(taken, r.nbytes)
        for node in tops:
            throughout[node].add(offset, offset + r.nbytes)
        for node in above.union(tops):
            somewhere[node].add(offset, offset + r.nbytes)
    return offsets


def _cover(first: int, end: int) -> list[int]:
    """Return the nodes of a binary tree, its root 1, whose leaves are first, ..., end - 1."""
    nodes = []
    while first < end:
        if first & 1:
            nodes.append(first)
            first += 1
        if end & 1:
            end -= 1
            nodes.append(end)
        first, end = first >> 1, end >> 1
    return nodes


class _Taken:
    """A set of bytes, as spans that neither overlap nor touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add the bytes from start to before end."""
        low, high = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if low < high:
            start, end = min(start, self.starts[low]), max(end, self.ends[high - 1])
        self.starts[low:high], self.ends[low:high] = [start], [end]

    def after(self, start: int, end: int) -> int:
        """Return start, or the end of the span at or after it that leaves no room before end."""
        at = bisect_right(self.ends, start)
        return self.ends[at] if at < len(self.ends) and self.starts[at] < end else start


def _lowest_gap(taken: Sequence[_Taken], nbytes: int) -> int:
    offset, before = 0, -1
    while offset != before:
        before = offset
        for one in taken:
            offset = one.after(offset, offset + nbytes)
    return offset
