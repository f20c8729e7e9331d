"""The trace of one request, when the request asks for it: its wait, its run, the run's tasks.

A request has the parameter `trireme_trace`: true. The answer then has a parameter of that name: a
Chrome trace as a text. Its times are microseconds since the epoch, so its `traceEvents` and those
of a client on the same clock make one trace when they are put in one list.

Source: the Trace Event Format: "X" (complete), "M" (metadata)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from trireme.profiling.rows import TaskRow, task_rows
from trireme.profiling.spans import TaskSpan
from trireme.serving.errors import invalid, public_text
from trireme.serving.models import ServedModel
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

PARAMETER = "trireme_trace"

Event = dict[str, Any]


def wants_trace(parameters: Mapping[str, Any]) -> bool:
    """Return whether a request asks for its trace.

    Errors: ServingError invalid
    """
    asked = parameters.get(PARAMETER, False)
    if not isinstance(asked, bool):
        raise invalid(f"parameters.{PARAMETER}", "expected true or false")
    return asked


class RequestTrace:
    """Runs a model for a request and notes when what ran."""

    def __init__(self, model: str, version: str) -> None:
        self._name = f"{model} {version}"
        self._epoch_s = time.time() - time.perf_counter()
        self._rows: dict[int, TaskRow] = {}
        self._spans: list[TaskSpan] = []
        self._why = ""

    def run(self, model: ServedModel, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a run whose tasks are noted.

        Errors: as Session.run
        """
        if model.session is None:
            self._why = "a pipeline has no plan of its own"
            return model.run(feeds)
        try:
            plan = model.session.at(feeds).plan
        except RunError as error:
            self._why = public_text(error.summary)  # no one plan runs these feeds
            return model.run(feeds)
        self._rows = {row.task: row for row in task_rows(plan)}
        outputs, self._spans = model.run_traced(feeds)
        return outputs

    def text(self, came_s: float, started_s: float, ended_s: float, identity: str) -> str:
        """Return the trace as JSON; times are those of time.perf_counter.

        came_s, started_s, ended_s: when the request came, and when its run started and ended
        """
        args: Event = {"id": identity} if identity else {}
        if self._why:
            args["tasks"] = f"not traced: {self._why}"
        events = [
            self._meta("process_name", 0, name=f"trireme: {self._name}"),
            self._meta("thread_name", 1, name="request"),
            self._slice("request", "request", 1, came_s, time.perf_counter(), args),
            self._slice("queue", "request", 1, came_s, started_s, {}),
            self._slice("run", "request", 1, started_s, ended_s, {}),
        ]
        lanes: dict[str, int] = {}
        for span in self._spans:
            row = self._rows[span.task]
            lane = lanes.setdefault(row.device, len(lanes) + 2)
            figures = {"device": row.device, "estimate_us": row.estimate_s * 1e6}
            events.append(self._slice(row.label, "task", lane, span.start_s, span.end_s, figures))
        events += [self._meta("thread_name", lane, name=name) for name, lane in lanes.items()]
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":"))

    def _slice(
        self, name: str, category: str, lane: int, start_s: float, end_s: float, args: Event
    ) -> Event:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": os.getpid(),
            "tid": lane,
            "ts": round((start_s + self._epoch_s) * 1e6, 3),
            "dur": round(max(end_s - start_s, 0.0) * 1e6, 3),
            "args": args,
        }

    def _meta(self, kind: str, lane: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": os.getpid(), "tid": lane, "args": args}
