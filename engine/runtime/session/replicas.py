"""Data parallelism over a stream, and its items beside runs one after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from trireme.backend.device import Device
from trireme.backend.registry import DEFAULT_DEVICE
from trireme.model_file.cache import Model
from trireme.plan.flow import Flow, flow_of
from trireme.runtime.loop.task_watch import TaskWatch
from trireme.runtime.session.session import Session
from trireme.runtime.streams.round_robin import round_robin, round_robin_flow
from trireme.runtime.streams.stream import Feeds, OpenStream, Stream, Streams
from trireme.support.arguments import checked
from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError, RunError
from trireme.support.timing import RepeatLimits, seconds_of, time_calls
from trireme.support.units import bytes_text, time_text


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


@dataclass(frozen=True)
class StreamProfile:
    """What a stream took, in seconds a run.

    wall_alone_s, wall_s: one run after another, and streamed, on this machine
    predicted: the flow by estimates; virtual: by measured and modelled durations
    simulated: whether a device's times are modelled, so that wall times mean little
    """

    model: str
    runs: int
    wall_alone_s: float
    wall_s: float
    predicted: Flow
    virtual: Flow
    simulated: bool

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {**vars(self), "predicted": vars(self.predicted), "virtual": vars(self.virtual)}

    def __str__(self) -> str:
        p, v = self.predicted, self.virtual
        wall = f"  wall clock     alone {time_text(self.wall_alone_s)}"
        wall += f", streamed {time_text(self.wall_s)}"
        wall += " (simulating)" if self.simulated else _gain(self.wall_alone_s, self.wall_s)
        return "\n".join(
            [
                f"stream of {self.model!r}, {self.runs} runs, {p.depth} in flight ({p.why})",
                wall,
                f"  predicted      alone {time_text(p.alone_s)}, streamed {time_text(p.steady_s)}"
                f"{_gain(p.alone_s, p.steady_s)}; busiest {p.busiest}, {time_text(p.busy_s)}",
                f"  virtual clock  alone {time_text(v.alone_s)}, streamed {time_text(v.steady_s)}"
                f"{_gain(v.alone_s, v.steady_s)}; busiest {v.busiest}, {time_text(v.busy_s)}",
                *(
                    f"  memory {name}: {bytes_text(n)} in {p.depth} contexts"
                    for name, n in p.arena_bytes.items()
                ),
            ]
        )


def _gain(alone: float, streamed: float) -> str:
    return f" ({alone / streamed:.2f} times)" if streamed else ""


def profile_stream(
    session: Session, feeds: Mapping[str, Array], runs: int = 50, depth: int | None = None
) -> StreamProfile:
    """Return what `runs` runs took one after another and as a stream of `depth` in flight.

    Errors: as `Session.stream`; RunError, if there are too few runs to tell
    """
    if runs < 4:
        raise RunError(f"a stream of {runs} runs says nothing", fix="runs=50")
    served = session.at(feeds)
    task_s = [row.seconds for row in served.profile(feeds, runs=min(runs, 20)).tasks]
    plan = served.plan
    alone_s = sum(time_calls(lambda: served.run(feeds), RepeatLimits(least=runs))) / runs
    _drained_s(served.stream(repeat(feeds, runs // 4), depth))
    stream = served.stream(repeat(feeds, runs), depth)
    if not isinstance(stream, Stream):
        raise InternalError("a session of some shapes has a stream of open ones")
    wall_s = _drained_s(stream) / runs
    flow, is_round_robin = stream.flow, len(stream.dispatcher.programs) > 1
    simulated = any(spec.clock == "virtual" for spec in plan.placement.specs.values())
    virtual = flow_of(plan, task_s, None if is_round_robin else flow.depth)
    if is_round_robin:  # every task on each of the instances, in turn
        ways = flow.alone_s / flow.steady_s if flow.steady_s else 1.0
        virtual = replace(flow, alone_s=sum(task_s), steady_s=sum(task_s) / ways)
    return StreamProfile(plan.graph.name, runs, alone_s, wall_s, flow, virtual, simulated)


def streamed_s(replicas: Replicas, feeds: Mapping[str, Array], runs: int = 50) -> float:
    """Return the seconds a run of a stream over replicas, on the wall clock.

    Errors: RunError, as `Replicas.stream`
    """
    _drained_s(replicas.stream(repeat(feeds, max(runs // 4, 1))))
    return _drained_s(replicas.stream(repeat(feeds, runs))) / runs


def _drained_s(stream: Stream | OpenStream) -> float:
    """Return the seconds until a stream is read to its end."""

    def drain() -> None:
        for _ in stream:
            pass

    with stream:
        return seconds_of(drain)


def flow_text(flow: Flow) -> str:
    """Return a line on how a placement would run as a stream."""
    contexts = ", ".join(
        f"{name} {bytes_text(nbytes)}" for name, nbytes in flow.arena_bytes.items()
    )
    return (
        f"  as a stream: {time_text(flow.steady_s)} a run with {flow.depth} in flight "
        f"({flow.why}), {flow.busiest} busy for {time_text(flow.busy_s)} of it; memory {contexts}"
    )
