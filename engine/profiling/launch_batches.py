"""The seconds of each task in a launch batch: tasks that a driver runs behind one another.

The host launches all tasks of a batch before it waits for the last. The batch's seconds are shared
out as predictions are made: a task or copy holds its driver until the next begins. The time before
the first task and after the last is the launch, and counts as the first task's. A task that the
host launches late takes no time before its own launch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from trireme.plan.plan import Plan
from trireme.profiling.spans import TaskSpan


def took_s(plan: Plan, run: Sequence[TaskSpan]) -> dict[int, float]:
    """Return the seconds of each task of a run; those of a batch add up to the batch's seconds."""
    took = {span.task: span.end_s - span.start_s for span in run}
    for batch in _batches(run):
        rows = sorted(batch, key=lambda span: (span.start_s, span.end_s))
        for span, after in itertools.pairwise(rows):
            if _launched(after) <= span.end_s:
                took[span.task] += max(after.start_s - span.end_s, 0.0)
            else:
                took[after.task] += max(after.start_s - _launched(after), 0.0)
        tasks = [span for span in rows if not plan.tasks[span.task].is_copy] or rows
        before_s = rows[0].start_s - min(map(_launched, rows))
        after_s = _seen(rows) - max(span.end_s for span in rows)
        took[tasks[0].task] += max(before_s, 0.0) + max(after_s, 0.0)
    return took


def _batches(run: Sequence[TaskSpan]) -> Iterator[list[TaskSpan]]:
    """Yield the batches of a run: queued tasks without a gap in which none is under way."""
    batch: list[TaskSpan] = []
    for span in sorted((span for span in run if span.batch), key=_launched):
        if batch and _launched(span) >= _seen(batch):
            yield batch
            batch = []
        batch.append(span)
    if batch:
        yield batch


def _launched(span: TaskSpan) -> float:
    return span.batch[0] if span.batch else span.start_s


def _seen(batch: Sequence[TaskSpan]) -> float:
    return max(span.batch[1] if span.batch else span.end_s for span in batch)
