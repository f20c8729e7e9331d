"""Emit commands into a stream: move tiles in and out of SRAM, and add the necessary barriers.

A job (see `jobs`) computes one tile after another. The emitter keeps rings of tile buffers in the
workspace and copies tiles that are not in SRAM. It delays each store behind the next tile's loads,
so that DMA and compute overlap. It orders the engines wherever two commands touch the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trireme.backend.arena import align_up
from trireme.devices.npu.stream.access import Extent, reads, writes
from trireme.devices.npu.stream.commands import (
    ENGINE_OF,
    ENGINES,
    SRAM,
    Barrier,
    Command,
    Dims,
    Dma,
    View,
    Work,
    dense,
)
from trireme.support.errors import InternalError

ALIGN = 16
"""Bytes to which tile buffers are aligned: every element type and the scale tables fit."""


@dataclass
class Ring:
    """Tile buffers used in turn; `contents` holds the view that each buffer copies."""

    offset: int
    nbytes: int
    copies: int
    turn: int = 0
    contents: dict[int, View | None] = field(default_factory=dict)

    def next(self) -> int:
        """Return the number of the next buffer; its contents are forgotten."""
        index = self.turn
        self.turn = (index + 1) % self.copies
        self.contents[index] = None
        return index

    def at(self, index: int) -> int:
        """Return the address of a buffer."""
        return self.offset + index * self.nbytes


@dataclass
class _Access:
    start: int
    end: int
    engine: int
    count: int
    write: bool


class Emitter:
    """A stream under construction.

    node: the node of the next commands
    tile_bytes: the most bytes of tile buffers in the latest workspace
    """

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.node = 0
        self.peak_bytes = self.tile_bytes = 0
        self._count = [0, 0, 0]
        self._known = [[0, 0, 0] for _ in ENGINES]
        self._history: list[list[tuple[int, ...]]] = [[] for _ in ENGINES]
        self._accesses: dict[int, list[_Access]] = {}
        self._pending: list[tuple[Command, list[Extent]]] = []
        self._free, self._begin = (0, 0), 0

    def open_workspace(self, start: int, end: int) -> None:
        """Give the next job a range of SRAM for its tile buffers."""
        self._begin = align_up(start, ALIGN)
        self._free = (self._begin, end)
        self.tile_bytes = 0

    def mark(self) -> tuple[int, int]:
        """Return the free part of the workspace, for a later `rewind`."""
        return self._free

    def rewind(self, mark: tuple[int, int]) -> None:
        """Release the buffers allocated since `mark`."""
        self._free = mark

    def ring(self, nbytes: int, copies: int = 1) -> Ring:
        """Return tile buffers in the workspace."""
        nbytes = align_up(max(nbytes, 1), ALIGN)
        start, end = self._free
        if start + nbytes * copies > end:
            raise InternalError(f"tile buffers of {copies} x {nbytes} bytes leave the workspace")
        self._free = (start + nbytes * copies, end)
        self.tile_bytes = max(self.tile_bytes, self._free[0] - self._begin)
        return Ring(start, nbytes, copies)

    def fetch(self, ring: Ring | None, source: View, dtype: str | None = None) -> View:
        """Return the view in SRAM: the source itself, a copy still in a buffer, or a new copy."""
        if source.region == SRAM:
            return source
        if ring is None:
            raise InternalError("a view outside SRAM needs a ring")
        return self.copy(ring, source, dtype or source.dtype)

    def copy(self, ring: Ring, source: View, dtype: str) -> View:
        """Return a dense copy, new unless a buffer holds one; repeated elements stay repeated."""
        held = next((i for i, view in ring.contents.items() if view == source), None)
        index = ring.next() if held is None else held
        shape = _distinct(source)
        packed = dense(SRAM, ring.at(index), dtype, shape)
        if held is None:
            ring.contents[index] = source
            once = View(source.region, source.offset, source.dtype, shape, source.strides)
            self.add(Dma(once, packed))
        strides = [
            0 if n > 1 and not s else t
            for n, s, t in zip(source.shape, source.strides, packed.strides, strict=True)
        ]
        n, h, w, c = strides
        return View(SRAM, packed.offset, dtype, source.shape, (n, h, w, c))

    def stage(self, ring: Ring | None, target: View, dtype: str | None = None) -> View:
        """Return where to compute a tile of the target: itself if in SRAM, else a buffer."""
        if target.region == SRAM:
            return target
        if ring is None:
            raise InternalError("a view outside SRAM needs a ring")
        return dense(SRAM, ring.at(ring.next()), dtype or target.dtype, target.shape)

    def commit(self, staged: View, target: View) -> None:
        """Store a staged tile, behind the loads of the next tile; earlier stores go first."""
        self.flush()
        if staged != target:
            work = Dma(staged, target)
            self._pending.append((Command(work, self.node), [*reads(work), *writes(work)]))

    def flush(self) -> None:
        """Emit the delayed stores."""
        pending, self._pending = self._pending, []
        for command, _ in pending:
            self._append(command)

    def add(self, work: Work) -> None:
        """Emit a command, preceded by its barrier."""
        if self._pending:
            mine = [*reads(work), *writes(work)]
            if any(_overlap(a, b) for _, theirs in self._pending for a in theirs for b in mine):
                self.flush()
        self._append(Command(work, self.node))

    def _append(self, command: Command) -> None:
        work = command.work
        engine = ENGINES.index(ENGINE_OF[type(work)])
        read, written = reads(work), writes(work)
        need = self._needs(engine, read, written)
        known = self._known[engine]
        if any(n > k for n, k in zip(need, known, strict=True)):
            self._barrier(engine, need, command.node)
        self.commands.append(command)
        self._count[engine] += 1
        self._history[engine].append(tuple(known))
        for item, write in [*((r, False) for r in read), *((w, True) for w in written)]:
            self._remember(item, engine, write)

    def _barrier(self, engine: int, need: list[int], node: int) -> None:
        known = self._known[engine]
        for other, count in enumerate(need):
            if other != engine and count > known[other]:
                known[other] = count
                behind = self._history[other][count - 1]
                for third in range(len(ENGINES)):
                    if third != engine:
                        known[third] = max(known[third], behind[third])
        waits = [0 if other == engine else known[other] for other in range(len(ENGINES))]
        self.commands.append(Command(Barrier(ENGINES[engine], *waits), node))

    def _needs(self, engine: int, read: list[Extent], written: list[Extent]) -> list[int]:
        """Return how many commands of each other engine must be complete before this one starts."""
        need = [0, 0, 0]
        for extents, any_access in ((read, False), (written, True)):
            for region, start, end in extents:
                if region == SRAM:
                    self.peak_bytes = max(self.peak_bytes, end)
                for seen in self._accesses.get(region, ()):
                    meets = seen.start < end and start < seen.end
                    if meets and seen.engine != engine and (any_access or seen.write):
                        need[seen.engine] = max(need[seen.engine], seen.count)
        return need

    def _remember(self, item: Extent, engine: int, write: bool) -> None:
        """Record an access; drop earlier accesses that later conflicts wait for anyway."""
        region, start, end = item
        kept = [
            seen
            for seen in self._accesses.get(region, ())
            if not (start <= seen.start and seen.end <= end)
            or (not write and (seen.write or seen.engine != engine))
        ]
        kept.append(_Access(start, end, engine, self._count[engine], write))
        self._accesses[region] = kept


def _overlap(a: Extent, b: Extent) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def _distinct(view: View) -> Dims:
    n, h, w, c = (1 if not t else s for s, t in zip(view.shape, view.strides, strict=True))
    return n, h, w, c
