"""Pack live ranges into an arena: choose offsets before anything runs.

`plan` packs every memory space; devices pack the intermediates inside a region. Several orders are
tried and the smallest arena wins. A lower bound shows the largest possible improvement.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from trireme.support.errors import InternalError
from trireme.support.records import dataclass
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
    """Offsets in bytes by key, the arena's size, a lower bound of any packing, and the order that
    won.
    """

    offsets: Mapping[int, int]
    nbytes: int
    lower_bound: int
    order: str


@dataclass(frozen=True)
class MemoryUse:
    """The predicted need of one memory space, in bytes.

    limit: the size of the space, 0 when unlimited
    arena, weights, scratch, code: the parts of the need
    streamed: the part of the weights that every run fetches anew
    streamed_s: the seconds of fetching them
    can_stream: whether any weights may be fetched anew
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

    def with_part(self, other: MemoryUse) -> MemoryUse:
        """Return the use of both at once, as of a graph and of a body in it."""
        return replace(
            self,
            arena=self.arena + other.arena,
            weights=self.weights + other.weights,
            scratch=self.scratch + other.scratch,
            code=self.code + other.code,
            streamed=self.streamed + other.streamed,
            streamed_s=self.streamed_s + other.streamed_s,
        )

    @property
    def needed(self) -> int:
        """The least bytes that must be there at once; weights that can be streamed do not count."""
        kept = 0 if self.can_stream else self.weights
        return self.arena + self.scratch + self.code + kept

    @property
    def excess(self) -> int:
        """Bytes needed beyond the limit."""
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
"""Average conflicts of a range up to which each is looked at; a tree is quicker beyond."""
MANY = 4096
"""From this number of ranges on, an arena within NEAR of the lower bound is good enough."""
NEAR = 0.05
"""Relative distance from the lower bound that is good enough for many ranges."""


def pack(ranges: Sequence[LiveRange], alignment: int = 64) -> Packing:
    """Return offsets such that ranges that live together do not overlap.

    Each order places the ranges one by one, each in the lowest gap that fits. The first order that
    meets the lower bound wins; for many ranges, the first that comes near it. Otherwise the
    smallest arena wins. The same ranges give the same packing.
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
    """Return the most bytes live at one step, a lower bound of any packing."""
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
    """Return the offset of each range: the lowest that fits between earlier conflicting ranges."""
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
    """Return the same as `_among_few`, by a tree over the steps.

    A tree node keeps the bytes taken in its steps. n ranges that all live together take n log n
    look-ups instead of n squared.
    """
    steps = sorted({r.first for r in ordered})  # ranges meet at the first step of one of them
    leaves = 1 << (len(steps) - 1).bit_length()
    throughout: defaultdict[int, _Taken] = defaultdict(_Taken)  # bytes in all steps of a node
    somewhere: defaultdict[int, _Taken] = defaultdict(_Taken)  # bytes in some step of a node
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
        """Return start if start to end is free, else the end of the span in the way."""
        at = bisect_right(self.ends, start)
        return self.ends[at] if at < len(self.ends) and self.starts[at] < end else start


def _lowest_gap(taken: Sequence[_Taken], nbytes: int) -> int:
    offset, before = 0, -1
    while offset != before:
        before = offset
        for one in taken:
            offset = one.after(offset, offset + nbytes)
    return offset
