"""Decide where intermediates live: in SRAM from first write to last read, or in DRAM.

All start in SRAM. One of them goes to DRAM while they do not fit together, or leave a job too
little room for its tiles. The rest is packed; each job works in the largest gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trireme.backend.arena import LiveRange, Packing, align_up, pack
from trireme.devices.npu.compiler.jobs import Job, Site
from trireme.devices.npu.stream.commands import ITEMSIZE, SCRATCH, SRAM, View, dense
from trireme.support.errors import CompileError


@dataclass(frozen=True)
class Residency:
    """A place for every intermediate, and a range of SRAM for each job's tiles.

    live_bytes: of each job, the bytes of live intermediates in SRAM
    """

    places: Mapping[int, View]
    workspaces: tuple[tuple[int, int], ...]
    scratch_bytes: int
    live_bytes: tuple[int, ...]


def arrange(site: Site, jobs: Sequence[Job], stored: Mapping[int, tuple[str, int]]) -> Residency:
    """Return the place of each value that jobs write and that has no place yet.

    Errors: CompileError, if a job cannot work in the whole of SRAM
    """
    spans = live_ranges(jobs, stored, set(site.places), site.spec.alignment)
    size = site.spec.sram.bytes
    inside = {value for value, span in spans.items() if span.nbytes <= size}
    while True:
        packing = pack([spans[value] for value in inside], site.spec.alignment)
        evicted = _too_large(spans, inside, packing, size)
        if not evicted:
            trial = replace(site, places={**site.places, **_places(spans, stored, packing)})
            gaps = [_gap(spans, inside, packing, step, size) for step in range(len(jobs))]
            evicted = _crowded(trial, jobs, spans, inside, gaps)
            if not evicted:
                break
        inside -= evicted
    outside = [span for value, span in spans.items() if value not in inside]
    scratch = pack(outside, site.spec.alignment)
    for span in outside:
        dtype, elements = stored[span.key]
        trial.places = {
            **trial.places,
            span.key: dense(SCRATCH, scratch.offsets[span.key], dtype, (1, 1, 1, elements)),
        }
    return Residency(
        trial.places,
        tuple(_halves(trial, jobs, gaps)),
        scratch.nbytes if outside else 0,
        tuple(_live_bytes([spans[v] for v in inside], step) for step in range(len(jobs))),
    )


def _live_bytes(spans: Iterable[LiveRange], step: int) -> int:
    return sum(span.nbytes for span in spans if span.first <= step <= span.last)


def live_ranges(
    jobs: Sequence[Job], stored: Mapping[int, tuple[str, int]], placed: set[int], alignment: int
) -> dict[int, LiveRange]:
    """Return the first and the last job that need each value without a place.

    A node's outputs live until the node is over, even without a reader, because traces read them.
    """
    spans: dict[int, LiveRange] = {}
    over = {job.node: step for step, job in enumerate(jobs)}
    for step, job in enumerate(jobs):
        for value in (*job.reads, job.writes):
            if value in placed:
                continue
            dtype, elements = stored[value]
            nbytes = align_up(elements * ITEMSIZE[dtype], alignment)
            first = spans[value].first if value in spans else step
            last = over[job.node] if value == job.writes else step
            spans[value] = LiveRange(value, first, max(step, last), nbytes)
    return spans


def _places(
    spans: Mapping[int, LiveRange], stored: Mapping[int, tuple[str, int]], packing: Packing
) -> dict[int, View]:
    """Return places in SRAM; a value outside is in DRAM, at no address yet."""
    places = {}
    for value in spans:
        dtype, elements = stored[value]
        region = SRAM if value in packing.offsets else SCRATCH
        places[value] = dense(region, packing.offsets.get(value, 0), dtype, (1, 1, 1, elements))
    return places


def _too_large(
    spans: Mapping[int, LiveRange], inside: set[int], packing: Packing, size: int
) -> set[int]:
    """Return the value to evict from a packing larger than SRAM: the largest of those on top."""
    high = [v for v in inside if packing.offsets[v] + spans[v].nbytes > size]
    return {max(high, key=lambda v: (spans[v].nbytes, v))} if high else set()


def _gap(
    spans: Mapping[int, LiveRange], inside: set[int], packing: Packing, step: int, size: int
) -> tuple[int, int]:
    """Return the largest range of SRAM without a value at a step."""
    taken = sorted(
        (packing.offsets[v], packing.offsets[v] + spans[v].nbytes)
        for v in inside
        if spans[v].first <= step <= spans[v].last
    )
    best, low = (0, 0), 0
    for start, end in [*taken, (size, size)]:
        if start - low > best[1] - best[0]:
            best = (low, start)
        low = max(low, end)
    return best


def _crowded(
    site: Site,
    jobs: Sequence[Job],
    spans: Mapping[int, LiveRange],
    inside: set[int],
    gaps: Sequence[tuple[int, int]],
) -> set[int]:
    """Return values to evict for jobs with too little room: large ones that the job does
    not use.
    """
    evicted: set[int] = set()
    for step, (job, (start, end)) in enumerate(zip(jobs, gaps, strict=True)):
        least = job.least_bytes(site)
        wanted = max(least, min(job.wanted_bytes(site), site.spec.sram.bytes // 4))
        if end - start >= wanted:
            continue
        live = [v for v in inside if spans[v].first <= step <= spans[v].last]
        if evicted & set(live):
            continue
        if live:
            used = {*job.reads, job.writes}
            evicted.add(max(live, key=lambda v: (v not in used, spans[v].nbytes, v)))
        elif end - start < least:
            raise CompileError(
                f"node {job.node}: its smallest tiles take {least} bytes of SRAM, "
                f"{site.spec.name} has {site.spec.sram.bytes}"
            )
    return evicted


def _halves(
    site: Site, jobs: Sequence[Job], gaps: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Let neighbouring jobs work at opposite ends of the gaps.

    The next job's loads then need not wait for the last tile of the job before.
    """
    made = []
    for step, (job, (start, end)) in enumerate(zip(jobs, gaps, strict=True)):
        room = 2 * job.wanted_bytes(site) + site.spec.alignment
        if room < end - start:
            low = end - room if step % 2 else start
            made.append((align_up(low, site.spec.alignment), min(low + room, end)))
        else:
            made.append((start, end))
    return made
