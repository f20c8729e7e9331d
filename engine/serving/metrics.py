"""The page /metrics: what requests and devices did, in the text format of Prometheus.

    metrics = ServingMetrics(service, usage)
    page, content_type = metrics.page()

Each server has a registry of its own. A request costs one observation of each histogram; the
figures of devices and queues are read when the page is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics import Counter, Histogram

from trireme.serving.errors import CODES, ServingError
from trireme.serving.metric_names import NAMES
from trireme.serving.observed import ObservedModel
from trireme.serving.service import InferenceService
from trireme.serving.statistics import RequestOutcome
from trireme.serving.usage import FinishedRun, Usage

Values = Mapping[tuple[str, ...], float]
"""The values of a metric by its labels."""
SECONDS: Final = (5e-4, *(scale * step for scale in (1e-3, 1e-2, 0.1, 1.0) for step in (1, 2, 5)))
"""Upper bounds of the buckets of seconds."""
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the buckets of batch sizes."""


class ServingMetrics:
    """The metrics of one service, which it observes from now on.

    usage: what the sessions of its models did
    """

    def __init__(self, service: InferenceService, usage: Usage | None = None) -> None:
        self._service, self._usage = service, usage or Usage()
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests = self._made(Counter, "trireme_requests_total")
        self._seconds = self._made(Histogram, "trireme_request_seconds", buckets=SECONDS)
        self._queue = self._made(Histogram, "trireme_queue_seconds", buckets=SECONDS)
        self._batch = self._made(Histogram, "trireme_batch_size", buckets=ROWS)
        self._children: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        self._sizes: dict[tuple[str, str], Any] = {}
        self._registry.register(self)
        service.observers.append(self.observe)
        self._usage.listeners += [self._add_rows, service.statistics.add_run]

    def _made(self, kind: Any, name: str, **options: Any) -> Any:
        known = NAMES[name]
        return kind(name, known.meaning, known.labels, registry=self._registry, **options)

    def observe(self, outcome: RequestOutcome) -> None:
        """Count a request that ended; an unknown model counts as one without a name."""
        found = self._children.get((outcome.model, outcome.version, outcome.kind))
        if found is None:
            found = self._children_of(outcome)
        found[0].inc()
        if outcome.kind == "ok":
            found[1].observe(outcome.total_s)
            found[2].observe(outcome.queue_s)

    def _add_rows(self, run: FinishedRun) -> None:
        key = run.model, run.version
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = self._batch.labels(*key)
        found.observe(run.rows)

    def _children_of(self, outcome: RequestOutcome) -> tuple[Any, ...]:
        """Return the counter, and the histograms of a success, that an outcome goes to.

        Names that a client makes up get no labels of their own: labels are never forgotten.
        """
        rows = [row for row in self._service.models.index() if row.name == outcome.model]
        name = outcome.model if rows else ""
        version = outcome.version if any(row.version == outcome.version for row in rows) else ""
        code = "200" if outcome.kind == "ok" else str(CODES[outcome.kind].http)
        found = [self._requests.labels(name, version, code)]
        if outcome.kind == "ok":
            found += [one.labels(name, version) for one in (self._seconds, self._queue)]
        if (name, version) == (outcome.model, outcome.version):
            self._children[name, version, outcome.kind] = tuple(found)
        return tuple(found)

    def page(self) -> tuple[bytes, str]:
        """Return the page and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Any]:
        """Yield what is read when the page is: Prometheus calls this of a collector."""
        names = sorted({row.name for row in self._service.models.index() if row.version})
        depths = {name: self._service.depth(name) for name in names}
        yield _family("trireme_queue_depth", {(name,): depths[name][0] for name in names})
        yield _family("trireme_running", {(name,): depths[name][1] for name in names})
        arenas, out = self._of_models()
        yield _family("trireme_arena_bytes", arenas)
        yield _family("trireme_device_out", out)
        with self._usage.lock:
            tables: dict[str, Values] = {
                "trireme_device_busy_seconds_total": _keyed(self._usage.busy_s),
                "trireme_prediction_ratio": _keyed(self._usage.ratio),
                "trireme_copy_bytes_total": dict(self._usage.copied),
                "trireme_device_faults_total": dict(self._usage.faults),
                "trireme_fallbacks_total": dict(self._usage.fallbacks),
                "trireme_cache_events_total": self._usage.caches,
            }
        for name, values in tables.items():
            yield _family(name, values)

    def _of_models(self) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
        """Return, of the models that serve: planned bytes by memory space, devices passed over."""
        total: dict[tuple[str, ...], float] = {}
        out: dict[tuple[str, ...], float] = {}
        for row in self._service.models.index():
            if row.state != "READY":
                continue
            with suppress(ServingError), self._service.models.lease(row.name, row.version) as model:
                if isinstance(model, ObservedModel):
                    for memory, nbytes in model.facts.arena_bytes.items():
                        total[(memory,)] = total.get((memory,), 0) + nbytes
                    if model.session.fails_over:
                        for device in model.facts.devices:
                            out.setdefault((device,), 0.0)
                        out |= {(device,): 1.0 for device in model.session.devices_out}
        return total, out


def _keyed(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}


def _family(name: str, values: Values) -> CounterMetricFamily | GaugeMetricFamily:
    """Return a metric with its values by labels."""
    known = NAMES[name]
    kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
    made = kind(name, known.meaning, labels=known.labels)
    for key, value in values.items():
        made.add_metric(key, value)
    return made
