"""`trireme profile`: where the time and the bytes of a run go, alone or as a stream."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from trireme.plan.plan import make_plan
from trireme.profiling.prediction import predict
from trireme.profiling.profile import Profile
from trireme.runtime.session.replicas import Replicas, profile_stream, streamed_s
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError
from trireme.support.limits import MOST_THREADS
from trireme.support.units import time_text
from trireme.tools.commands import device_lines, faults_of, prepared_session
from trireme.tools.described import described_placement, is_described
from trireme.tools.feeds import make_feeds
from trireme.tools.number_options import whole
from trireme.tools.options import argument
from trireme.tools.output import emit, write_trace
from trireme.tools.parsed import plan_choices, session_arguments
from trireme.tools.progress import Progress

ARGUMENTS = (
    argument(
        "--runs",
        type=whole(),
        default=20,
        metavar="N",
        help="number of measured runs (default: 20)",
    ),
    argument(
        "--warmup",
        type=whole(0),
        default=3,
        metavar="N",
        help="number of runs before them (default: 3)",
    ),
    argument(
        "--trace",
        metavar="FILE",
        help="write the timeline as a Chrome trace (open it in ui.perfetto.dev)",
    ),
    argument(
        "--stream",
        type=whole(0),
        default=0,
        metavar="N",
        help="measure a stream of N runs too, beside N runs one after another",
    ),
    argument(
        "--replicas",
        type=whole(0, MOST_THREADS),
        default=0,
        metavar="K",
        help="with --stream: measure K sessions of one thread each too",
    ),
    argument(
        "--depth",
        type=whole(),
        metavar="N",
        help="number of runs in flight (default: as many as help)",
    ),
)


def profile(options: argparse.Namespace) -> int:
    """Show where the time and the bytes of a run go; of a described machine, the prediction."""
    if is_described(options):
        return _predicted(options)
    with prepared_session(options) as session:
        progress = Progress()
        feeds = make_feeds(options, session.inputs)
        if _in_stages(session, feeds):
            progress.done()
            return _of_stages(options, session, feeds)
        result = session.profile(feeds, options.runs, options.warmup, progress)
        progress.done()
        write_trace(options, result)
        if options.stream:
            return _stream(options, session, feeds, result)
        text = "\n".join([str(result), *device_lines(session, events=False), *session.unmeasured])
        data = {**faults_of(session), "unmeasured": session.unmeasured}
        emit(options, {**result.to_json(), **data}, text)
    return 0


def _in_stages(session: Session, feeds: Mapping[str, Any]) -> bool:
    """Whether no one program runs these feeds."""
    if not session.has_open_shapes:
        return False
    session.run(feeds)
    return len(session.stages) > 1 or not all(stage.has_plan for stage in session.stages)


def _of_stages(options: argparse.Namespace, session: Session, feeds: Mapping[str, Any]) -> int:
    """Show what each stage takes."""
    if options.trace or options.stream:
        raise RunError("a model in stages has no one plan, so --trace and --stream have none")
    result = session.profile_stages(feeds, options.runs, options.warmup)
    data = {**faults_of(session), "unmeasured": session.unmeasured}
    text = "\n".join([str(result), *device_lines(session, events=False), *session.unmeasured])
    emit(options, {**result.to_json(), **data}, text)
    return 0


def _predicted(options: argparse.Namespace) -> int:
    """Show what a run is predicted to take on a described machine, which runs nothing."""
    plan = make_plan(described_placement(options), **plan_choices(options))
    prediction = predict(plan, options.mode == "serial")
    write_trace(options, prediction)
    remark = f"{options.soc} is only described: every time is predicted, none is measured"
    emit(options, prediction.to_json(), f"{prediction}\n{remark}")
    return 0


def _stream(
    options: argparse.Namespace, session: Session, feeds: Mapping[str, Any], alone: Profile
) -> int:
    """Show what a stream of runs takes beside runs one after another."""
    streamed = profile_stream(session, feeds, options.stream, options.depth)
    lines = [str(alone), "", str(streamed)]
    data = {**alone.to_json(), "stream": streamed.to_json()}
    if options.replicas:
        given = {**session_arguments(options), "threads": 1, "batch": options.batch}
        with Replicas(options.model, options.replicas, **given) as replicas:
            seconds = streamed_s(replicas, feeds, options.stream)
        data["replicas"] = {"count": options.replicas, "wall_s": seconds}
        lines.append(
            f"  {options.replicas} replicas of one thread: {time_text(seconds)} a run "
            f"({streamed.wall_alone_s / seconds:.2f} times one run after another)"
        )
    emit(options, data, "\n".join([*lines, *device_lines(session)]))
    return 0
