"""Every metric of a server: its kind, its labels and its meaning.

docs/reference/metrics.md is written from this table.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class MetricName(NamedTuple):
    """A metric: "counter", "gauge" or "histogram"; its labels; its meaning."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


_MODEL = ("model", "version")

NAMES: Final = {
    "trireme_requests_total": MetricName(
        "counter", (*_MODEL, "code"), "requests that ended, by HTTP status"
    ),
    "trireme_request_seconds": MetricName(
        "histogram", _MODEL, "seconds from arrival to answer, of requests that succeeded"
    ),
    "trireme_queue_seconds": MetricName(
        "histogram", _MODEL, "seconds of waiting before a run, of requests that succeeded"
    ),
    "trireme_queue_depth": MetricName("gauge", ("model",), "requests that wait now"),
    "trireme_running": MetricName("gauge", ("model",), "requests that run now"),
    "trireme_batch_size": MetricName(
        "histogram", _MODEL, "rows of each batch; 1 for a request that runs alone"
    ),
    "trireme_device_busy_seconds_total": MetricName(
        "counter",
        ("device",),
        "seconds that runs kept a device busy; of several devices, from one watched run in 64",
    ),
    "trireme_copy_bytes_total": MetricName(
        "counter", ("src", "dst"), "bytes that runs copied between memory spaces, as planned"
    ),
    "trireme_device_faults_total": MetricName(
        "counter", ("device", "kind"), "faults of devices while models load and run"
    ),
    "trireme_fallbacks_total": MetricName(
        "counter",
        ("from", "to"),
        "loads and runs that went on without a device, by device that serves",
    ),
    "trireme_device_out": MetricName(
        "gauge",
        ("device",),
        "1 while runs pass a device over because it failed, else 0; of models with `fallback`",
    ),
    "trireme_arena_bytes": MetricName(
        "gauge", ("device",), "planned memory of the models that serve, by memory space"
    ),
    "trireme_prediction_ratio": MetricName(
        "gauge", ("model",), "measured over predicted seconds of a run; a mean that forgets"
    ),
    "trireme_cache_events_total": MetricName(
        "counter",
        ("cache", "result"),
        "looks into a disk cache that found an entry (hit) or none (miss)",
    ),
}
"""By name. A model that is not known has empty labels: anyone can make up a name."""
