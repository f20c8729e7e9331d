"""Which requests may run: a queue for each model, bounded by count and by bytes.

A call is refused at once, waits, or runs on a thread; never two of these. Calls of a model start in
the order of their priority, then of their arrival. A call that waits can be withdrawn.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from trireme.serving.errors import ServingError
from trireme.serving.models import ServedModel
from trireme.support.errors import RunError

DEFAULT_PRIORITY = 100
"""The priority of a call that names none. 1 is the highest."""

PLACE_S = 1.0
"""Seconds for which a request whose body still comes has a place. A slow client loses it then."""


@dataclass(frozen=True)
class ServingLimits:
    """The limits of the requests that the server accepts.

    max_body_bytes: of a request, as sent and decompressed
    max_json_bytes: of the JSON in a request; tensors in binary form are beside it
    max_queue: requests of a model that wait
    max_queue_bytes: inputs of all requests that wait or run
    body_timeout_s: for a request to arrive whole
    grace_s: for accepted requests to finish once the server drains
    Errors: RunError, if one is below 0
    """

    max_body_bytes: int = 64 << 20
    max_json_bytes: int = 16 << 20
    max_queue: int = 256
    max_queue_bytes: int = 512 << 20
    body_timeout_s: float = 30.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise RunError(f"{name} is {value}, expected 0 or more")


@dataclass(eq=False)
class AdmittedCall:
    """A run that was admitted. `future` has its outputs, or the error that it ended with."""

    model: ServedModel
    run: Callable[[], Any]
    nbytes: int
    order: tuple[int, int]
    arrived_s: float
    started_s: float | None = None
    ended_s: float | None = None
    future: Future[Any] = field(default_factory=Future)

    @property
    def queue_s(self) -> float:
        """Seconds that it waited, up to now if it still waits."""
        return (self.started_s or self.ended_s or time.perf_counter()) - self.arrived_s


@dataclass(eq=False, frozen=True)
class ReservedPlace:
    """A place in the queue of a model, for a request whose body still comes."""

    model: ServedModel
    taken_s: float


@dataclass(eq=False)
class _Lane:
    """The calls of one model: those under way, those that wait, in order, and places for more."""

    running: int = 0
    waiting: list[AdmittedCall] = field(default_factory=list)
    reserved: dict[ReservedPlace, None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.running or self.waiting or self.reserved)


class Admission:
    """Admits calls and runs them on threads, as many at once as each model allows."""

    def __init__(self, limits: ServingLimits, threads: int = 256) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._is_idle = threading.Condition(self._lock)
        self._lanes: dict[ServedModel, _Lane] = {}
        self._running: set[AdmittedCall] = set()
        self._mean_s: dict[str, float] = {}
        self._nbytes = self._count = 0
        self._sequence = itertools.count()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="trireme-serve")

    @property
    def count(self) -> int:
        """Calls that wait or run."""
        return self._count

    def depth(self, name: str) -> tuple[int, int]:
        """Return how many calls of a model wait and how many run."""
        with self._lock:
            lanes = [lane for model, lane in self._lanes.items() if model.name == name]
            return sum(len(lane.waiting) for lane in lanes), sum(lane.running for lane in lanes)

    def submit(
        self,
        model: ServedModel,
        run: Callable[[], Any],
        nbytes: int,
        priority: int = 0,
        place: ReservedPlace | None = None,
    ) -> AdmittedCall:
        """Start a call, or queue it.

        place: that it has; a place of another model, or one that was lost, is none
        Errors: ServingError busy, with the time after which there may be room
        """
        order = (priority or DEFAULT_PRIORITY, next(self._sequence))
        call = AdmittedCall(model, run, nbytes, order, time.perf_counter())
        with self._lock:
            lane = self._lanes.get(model) or _Lane()
            starts = lane.running < model.concurrency
            if place not in lane.reserved:
                self._check_queue(model, lane)
            if self._count and self._nbytes + nbytes > self._limits.max_queue_bytes:
                raise self._busy(model, lane, "the requests under way fill the memory for them")
            self._lanes[model] = lane
            if place is not None:
                lane.reserved.pop(place, None)
            self._nbytes += nbytes
            self._count += 1
            if starts:
                lane.running += 1
                self._running.add(call)
            else:
                bisect.insort(lane.waiting, call, key=lambda one: one.order)
        if starts:
            self._threads.submit(self._work, [call])
        return call

    def reserve(self, model: ServedModel) -> ReservedPlace:
        """Return a place in the queue of a model, for PLACE_S; give it to `submit` or `release`.

        Without it, clients whose bodies come at once would wait for each other without a limit.
        Errors: ServingError busy
        """
        place = ReservedPlace(model, time.perf_counter())
        with self._lock:
            lane = self._lanes.get(model) or _Lane()
            self._check_queue(model, lane)
            self._lanes[model] = lane
            lane.reserved[place] = None
        return place

    def release(self, place: ReservedPlace) -> None:
        """Give a place back, if no call took it."""
        with self._lock:
            lane = self._lanes.get(place.model)
            if lane is not None:
                lane.reserved.pop(place, None)
                if lane.is_empty:
                    del self._lanes[place.model]

    def _check_queue(self, model: ServedModel, lane: _Lane) -> None:
        """See that one more call could start or wait; the lock is held."""
        soon_s = time.perf_counter() - PLACE_S
        for place in list(itertools.takewhile(lambda one: one.taken_s < soon_s, lane.reserved)):
            del lane.reserved[place]
        count = lane.running + len(lane.waiting) + len(lane.reserved) - model.concurrency
        if count >= self._limits.max_queue:
            raise self._busy(model, lane, f"{count} requests wait for it")

    def _busy(self, model: ServedModel, lane: _Lane, why: str) -> ServingError:
        mean_s = self._mean_s.get(model.name, 0.0)
        wait_s = mean_s * (len(lane.waiting) + len(lane.reserved)) / max(1, model.concurrency)
        return ServingError(
            "busy", f"model '{model.name}' is busy: {why}", retry_after_s=max(1, math.ceil(wait_s))
        )

    def withdraw(self, call: AdmittedCall, error: ServingError | None = None) -> bool:
        """Take a call out of the queue; False if it has begun or ended.

        error: what its future ends with; None cancels the future
        """
        with self._lock:
            lane = self._lanes.get(call.model)
            if lane is None or call not in lane.waiting:
                return False
            lane.waiting.remove(call)
            self._leave(call)
        if error is None:
            call.future.cancel()
        elif not call.future.done():
            call.future.set_exception(error)
        return True

    def _leave(self, call: AdmittedCall) -> None:
        """Count a call out; the lock is held."""
        call.ended_s = time.perf_counter()
        self._nbytes -= call.nbytes
        self._count -= 1
        lane = self._lanes[call.model]
        if lane.is_empty:
            del self._lanes[call.model]
        if not self._count:
            self._is_idle.notify_all()

    def _work(self, first: list[AdmittedCall]) -> None:
        """Run a call, then those that wait behind it."""
        call: AdmittedCall | None = first.pop()
        while call is not None:
            call = self._run(call)

    def _run(self, call: AdmittedCall) -> AdmittedCall | None:
        """Run a call; return the one that is to follow on its thread."""
        call.started_s = time.perf_counter()
        result: Any = None
        error: BaseException | None = None
        if call.future.set_running_or_notify_cancel():
            try:
                result = call.run()
            except BaseException as caught:
                error = caught
        following = self._end(call)
        with suppress(InvalidStateError):  # it was abandoned, or cancelled before it began
            if error is not None:
                call.future.set_exception(error)
            else:
                call.future.set_result(result)
        del call, error, result  # the error's traceback has this frame: a cycle with each of them
        return following

    def _end(self, call: AdmittedCall) -> AdmittedCall | None:
        """Count a call out and return the one that follows it on its thread."""
        with self._lock:
            lane, model = self._lanes[call.model], call.model
            following = lane.waiting.pop(0) if lane.waiting else None
            lane.running -= following is None
            self._running.discard(call)
            if following is not None:
                self._running.add(following)
            self._leave(call)
            spent_s = (call.ended_s or 0.0) - (call.started_s or 0.0)
            mean_s = self._mean_s.get(model.name, spent_s)
            self._mean_s[model.name] = mean_s + 0.1 * (spent_s - mean_s)
        return following

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call waits or runs; False if some still do."""
        with self._lock:
            return self._is_idle.wait_for(lambda: not self._count, timeout_s)

    def abandon(self, error: ServingError) -> None:
        """Withdraw what waits, and end what runs with an error; its threads end unheard."""
        with self._lock:
            waiting = [call for lane in self._lanes.values() for call in lane.waiting]
            running = list(self._running)
        for call in waiting:
            self.withdraw(call, error)
        for call in running:
            with suppress(InvalidStateError):
                call.future.set_exception(error)

    def close(self) -> None:
        """Abandon what is under way, and start nothing more."""
        self.abandon(ServingError("unavailable", "the server ended before the request did"))
        self._threads.shutdown(wait=False)
