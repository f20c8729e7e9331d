"""Data parallelism over a stream: whole runs dealt out to sessions, each on a thread of its own.

Where one run cannot keep all cores busy, a session of one thread a core does more runs a second
than one session of all threads. Each replica has devices, code and packed weights of its own; the
weights of the model's file are mapped once. Outputs come in the order of the inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from typing import Any

from trireme.closing import Closing
from trireme.device import Device
from trireme.errors import RunError
from trireme.model_cache import Model
from trireme.parallel.flow import Flow, flow_of
from trireme.parallel.pipeline import Feeds, Item, Stream
from trireme.running.execute import serial_runner
from trireme.running.lane import Lane
from trireme.session import Session

_AHEAD = 2
"""Lanes a replica: one runs while the next one's inputs are put in."""


class Replicas(Closing):
    """Sessions of one model, and a thread for each; `stream` deals runs out to them.

    count: how many; threads: of each one's cpu device
    devices: names, of which every replica opens its own; options: further ones of Session
    flow: its memory and predicted steady state, if the replicas share nothing
    Errors: RunError, if the model keeps states or a device is given open; Session's
    """

    def __init__(
        self, model: Model, count: int, *, threads: int = 1,
        devices: Sequence[str | Device] = ("cpu",), **options: Any,
    ) -> None:  # fmt: skip
        if count < 1 or not all(isinstance(name, str) for name in devices):
            raise RunError(
                f"{count} replicas on {list(map(str, devices))}", fix='count=2, devices=["cpu"]'
            )
        self.sessions: list[Session] = []
        self._threads: list[threading.Thread] = []
        self._stream: Stream | None = None
        try:
            for _ in range(count):
                session = Session(model, devices=devices, threads=threads, **options)
                self.sessions.append(session)
                if session.states.types:
                    raise RunError(
                        "a model with states cannot be replicated: each replica would keep its own",
                        fix="Session(...).stream, which keeps their order",
                    )
            self.lanes = [Lane(s.program) for _ in range(_AHEAD) for s in self.sessions]
        except BaseException:
            self.close()
            raise
        self._runs = {id(lane): serial_runner(lane.program.plan, lane.calls) for lane in self.lanes}
        self._queues: list[SimpleQueue[Item | None]] = [SimpleQueue() for _ in self.sessions]
        self._done = threading.Condition()
        self.flow = self._flow()

    def _flow(self) -> Flow:
        plan, count = self.sessions[0].plan, len(self.sessions)
        one = flow_of(plan, [task.estimate_s for task in plan.tasks], 1)
        arenas = {memory: nbytes * len(self.lanes) for memory, nbytes in one.arena_bytes.items()}
        return Flow(
            len(self.lanes), one.alone_s / count, one.alone_s, one.busiest, one.busy_s / count,
            arenas, f"{_AHEAD} for each of {count} replicas",
        )  # fmt: skip

    def stream(self, feeds: Iterable[Feeds]) -> Stream:
        """Return an iterator over the outputs of many runs, in the order of their inputs.

        Errors: RunError, if a stream is under way
        """
        if self._stream is not None and not self._stream.closed:
            raise RunError("a stream of these replicas is under way", fix="read it or close it")
        self._stream = Stream(self, feeds)
        return self._stream

    def start(self) -> None:
        """Start a thread a replica, if they are not there."""
        for number in range(len(self._threads), len(self.sessions)):
            thread = threading.Thread(
                target=self._serve, args=(number,), name=f"trireme-replica-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def submit(self, item: Item, before: Item | None) -> None:
        """Give an item to the replica whose lane it has."""
        item.unfinished = 1
        place = next(i for i, lane in enumerate(self.lanes) if lane is item.lane)
        self._queues[place % len(self.sessions)].put(item)

    def wait(self, item: Item) -> None:
        """Return when an item is over."""
        with self._done:
            while item.unfinished:
                self._done.wait()

    def _serve(self, number: int) -> None:
        while (item := self._queues[number].get()) is not None:
            try:
                if item.error is None:
                    self._runs[id(item.lane)]()
            except BaseException as error:
                item.error = error
            with self._done:
                item.unfinished = 0
                self._done.notify_all()

    def end(self) -> None:
        """Stop the threads."""
        for queue in self._queues[: len(self._threads)]:
            queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def close(self) -> None:
        """Give back threads, memory and devices."""
        if self._stream is not None:
            self._stream.close()
        for session in self.sessions:
            session.close()
