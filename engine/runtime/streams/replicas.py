"""Data parallelism over a stream: sessions take whole runs in turn, each on a thread of its own.

Where one run cannot keep all cores busy, a session of one thread a core does more runs a second
than one session of all threads. Each replica has devices, code and packed weights of its own; the
weights of the model's file are mapped once. Outputs come in the order of the inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.model_file.cache import Model
from trireme.runtime.failover.task_watch import TaskWatch
from trireme.runtime.session import Session
from trireme.runtime.streams.round_robin import round_robin, round_robin_flow
from trireme.runtime.streams.stream import Feeds, Stream, Streams
from trireme.support.arguments import checked
from trireme.support.closing import Closing
from trireme.support.errors import RunError


class Replicas(Closing):
    """Sessions of one model, and a thread for each; `stream` gives them runs in turn.

    count: how many; threads: of each one's cpu device
    devices: names, of which every replica opens its own; options: further ones of Session
    flow: its memory and predicted steady state, if the replicas share nothing
    Errors: RunError, if the model keeps states or a device is given open; Session's
    """

    @checked(RunError)
    def __init__(
        self,
        model: Model,
        count: int,
        *,
        threads: int = 1,
        devices: Sequence[str | Device] = (DEFAULT_DEVICE,),
        **options: Any,
    ) -> None:
        if count < 1 or not all(isinstance(name, str) for name in devices):
            raise RunError(
                f"{count} replicas on {list(map(str, devices))}",
                fix=f'count=2, devices=["{DEFAULT_DEVICE}"]',
            )
        self.sessions: list[Session] = []
        self._streams = Streams("these replicas")
        try:
            for _ in range(count):
                session = Session(model, devices=devices, threads=threads, **options)
                self.sessions.append(session)
                if options.pop("measure", False):  # once: the others hold what was the fastest
                    options["placement"] = session.placement
                if session.states.types:
                    raise RunError(
                        "a model with states cannot be replicated: each replica would keep its own",
                        fix="Session(...).stream, which keeps their order",
                    )
            programs = [session.program for session in self.sessions]
            flow = round_robin_flow([program.plan for program in programs], f"{count} replicas")
            new_watch = TaskWatch if self.sessions[0].fails_over else None
            self._dispatcher = round_robin(programs, flow, new_watch)
        except BaseException:
            self.close()
            raise
        self.flow = flow

    @checked(RunError)
    def stream(self, feeds: Iterable[Feeds]) -> Stream:
        """Return an iterator over the outputs of many runs, in the order of their inputs.

        Errors: RunError, if a stream is under way
        """
        first = self.sessions[0]
        again = first.faults.in_stream(first._finish)
        return self._streams.begin(lambda _: self._dispatcher, feeds, None, self, again)

    def close(self) -> None:
        """Give back threads, memory and devices."""
        self._streams.close()
        for session in self.sessions:
            session.close()
