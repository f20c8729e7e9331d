"""Spans of requests for OpenTelemetry, where it is installed and set up.

A request has a span of kind SERVER with two children: its wait and its run. Its parent is the
client's span, which the headers or metadata `traceparent` and `tracestate` name.
Source: W3C Trace Context; OpenTelemetry tracing API
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from trireme.serving.statistics import RequestOutcome

CARRIED = ("traceparent", "tracestate")
"""The header by which a client names its own span."""


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what headers, whose names are in lower case, say of the client's span."""
    return {name: headers[name] for name in CARRIED if name in headers}


def add_span(outcome: RequestOutcome, parent: Mapping[str, str]) -> None:
    """Add the span of a request that ends now; without OpenTelemetry do nothing.

    parent: what `carried` found
    """
    found = _opentelemetry()
    if found is None:
        return
    trace, propagate = found
    tracer = trace.get_tracer("trireme.serving")
    ended_ns = time.time_ns()
    began_ns = ended_ns - int(outcome.total_s * 1e9)
    attributes = {
        "trireme.model": outcome.model,
        "trireme.version": outcome.version,
        "trireme.result": outcome.kind,
    }
    span = tracer.start_span(
        "infer",
        context=propagate.extract(dict(parent)),
        kind=trace.SpanKind.SERVER,
        attributes=attributes,
        start_time=began_ns,
    )
    if span.is_recording():
        if outcome.kind != "ok":
            span.set_status(trace.Status(trace.StatusCode.ERROR, outcome.kind))
        inside, at_ns = trace.set_span_in_context(span), began_ns
        for name, seconds in (("queue", outcome.queue_s), ("run", outcome.run_s)):
            child = tracer.start_span(name, context=inside, start_time=at_ns)
            at_ns += int(seconds * 1e9)
            child.end(at_ns)
    span.end(ended_ns)


@cache
def _opentelemetry() -> tuple[Any, Any] | None:
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    return trace, propagate
