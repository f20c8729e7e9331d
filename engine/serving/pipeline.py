"""Stages that requests go through one after another, so that stages work on different requests.

Each stage has a bounded queue and threads of its own. A stage that is behind fills its queue, and
then the stage before it waits: the slowest stage sets the pace, and memory stays bounded.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from trireme.serving.errors import ServingError
from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

Values = dict[str, Array]
Stage = Callable[[Values, Mapping[str, Array]], Mapping[str, Array]]
"""Takes the values by name that a request has so far, beside them what the stage before added (the
request's inputs, for the first), and returns those that it adds."""


@dataclass
class PipelineItem:
    """A request on its way: what it has so far, and where its outputs go."""

    values: Values
    last: Mapping[str, Array]
    future: Future[Mapping[str, Array]] = field(default_factory=Future)


class StagedPipeline(Closing):
    """Runs items through stages.

    stages: name and function of each
    depth: items that may wait before a stage; workers: threads of each stage, one when not given
    """

    def __init__(
        self,
        stages: Sequence[tuple[str, Stage]],
        depth: int = 4,
        workers: Sequence[int] = (),
    ) -> None:
        if not stages:
            raise RunError("a pipeline needs at least one stage")
        self._stages = list(stages)
        self._queues: list[queue.Queue[PipelineItem | None]] = [queue.Queue(depth) for _ in stages]
        self._workers = list(workers) or [1] * len(stages)
        self._lock = threading.Lock()
        self._is_closed = False
        self._threads = [
            threading.Thread(
                target=self._work, args=(index,), name=f"trireme-stage-{name}", daemon=True
            )
            for index, (name, _) in enumerate(stages)
            for _ in range(self._workers[index])
        ]
        for thread in self._threads:
            thread.start()

    @property
    def capacity(self) -> int:
        """Items that the stages and their queues hold."""
        return sum(self._workers) + sum(one.maxsize for one in self._queues)

    def submit(self, values: Mapping[str, Array]) -> Future[Mapping[str, Array]]:
        """Return the future outputs of the last stage; waits while the first queue is full.

        A future that is cancelled skips the stages that it has not reached.
        Errors: RunError, if the pipeline is closed
        """
        item = PipelineItem(dict(values), dict(values))
        with self._lock:
            if self._is_closed:
                raise RunError("the pipeline is closed")
            self._queues[0].put(item)
        return item.future

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        first = 0
        for index, count in enumerate(self._workers):
            for _ in range(count):
                self._queues[index].put(None)
            for thread in self._threads[first : first + count]:
                thread.join()
            first += count

    def _work(self, index: int) -> None:
        """Take items of one stage until the pipeline is closed."""
        _, stage = self._stages[index]
        while (item := self._queues[index].get()) is not None:
            if item.future.cancelled():
                continue
            try:
                item.last = stage(item.values, item.last)
                item.values.update(item.last)
            except BaseException as error:
                _end(item.future, error=error)
                continue
            if index + 1 < len(self._queues):
                self._queues[index + 1].put(item)
            else:
                _end(item.future, item.last)


def _end(
    future: Future[Any], outputs: Mapping[str, Array] | None = None, error: Any = None
) -> None:
    """Give a future its outputs or its error, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(outputs)
    else:
        future.set_exception(error)


def outputs_within(
    future: Future[Mapping[str, Array]], timeout_s: float | None
) -> Mapping[str, Array]:
    """Return the outputs of an item; cancel it when its time is over.

    Errors: ServingError deadline; those of the stages
    """
    try:
        return future.result(timeout_s)
    except TimeoutError:
        if future.cancel():
            raise ServingError("deadline", "the deadline passed between two stages") from None
        return future.result()
