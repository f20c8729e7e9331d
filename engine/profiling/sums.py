"""A run's rows summed by op and by device: where its time goes, the slowest first.

Wall and virtual seconds are never added: a sum is of one clock, and its share is of that clock's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trireme.backend.device import Clock
from trireme.profiling.rows import NodeRow, TaskRow
from trireme.support.records import dataclass
from trireme.support.showing import clipped
from trireme.support.units import time_text

MOST_LINES = 10
"""The most sums of a table; JSON has all."""
_WIDTH = 40


@dataclass(frozen=True)
class SumRow:
    """The seconds of all rows with one name and clock.

    name: the ops of a kernel, joined by "+"; or a device, or the link of copies ("host>npu")
    count: the kernels, or the tasks
    share: of the seconds of all rows on this clock
    """

    name: str
    clock: Clock
    count: int
    seconds: float
    share: float


def sums_by_op(rows: Sequence[NodeRow]) -> tuple[SumRow, ...]:
    """Return the kernels of a run summed by the ops that they run, the slowest first."""
    return _sums(("+".join(row.ops) or row.kernel, row.clock, row.seconds) for row in rows)


def sums_by_device(rows: Sequence[TaskRow]) -> tuple[SumRow, ...]:
    """Return the tasks and copies of a run summed by device and link, the slowest first."""
    return _sums((row.device, row.clock, row.seconds) for row in rows)


def _sums(rows: Iterable[tuple[str, Clock, float]]) -> tuple[SumRow, ...]:
    found: dict[tuple[str, Clock], list[float]] = {}
    total: dict[Clock, float] = {}
    for name, clock, seconds in rows:
        found.setdefault((name, clock), []).append(seconds)
        total[clock] = total.get(clock, 0.0) + seconds
    sums = [
        SumRow(name, clock, len(mine), sum(mine), sum(mine) / (total[clock] or 1.0))
        for (name, clock), mine in found.items()
    ]
    return tuple(sorted(sums, key=lambda row: -row.seconds))


def sum_lines(what: str, counted: str, sums: Sequence[SumRow]) -> list[str]:
    """Return the table of some sums; what: "device" or "op"; counted: what a sum is of."""
    shown = sums[:MOST_LINES]
    width = max([len(what), *(min(len(row.name), _WIDTH) for row in shown)])
    lines = ["", f"  {what:<{width}} {'clock':8} {counted:>8} {'time':>12} {'share':>7}"]
    lines += [
        f"  {clipped(row.name, _WIDTH):<{width}} {row.clock:8} {row.count:>8}"
        f" {time_text(row.seconds):>12} {row.share:>7.1%}"
        for row in shown
    ]
    more = len(sums) - len(shown)
    return [*lines, f"  and {more} more: --json has all"] if more else lines
