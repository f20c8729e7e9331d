"""OpenTelemetry gets a span of each request, as a child of the client's."""

import types

import numpy as np
import pytest
from raw_http import Wire, json_request, post, tensor
from served import serving, sum_graph

sdk = pytest.importorskip("opentelemetry.sdk.trace")
pytest.importorskip("uvicorn")

from opentelemetry import propagate, trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from trireme.serving import spans  # noqa: E402

X = np.ones((2, 3), np.float32)
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]
PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def exported(monkeypatch):
    """The spans that end, by a provider of this test alone."""
    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    used = {name: getattr(trace, name) for name in ("SpanKind", "Status", "StatusCode")}
    used |= {"set_span_in_context": trace.set_span_in_context, "get_tracer": provider.get_tracer}
    monkeypatch.setattr(spans, "_opentelemetry", lambda: (types.SimpleNamespace(**used), propagate))
    return exporter


def test_http(exported):
    header = f"traceparent: 00-{PARENT[0]}-{PARENT[1]}-01"
    with serving({"sum": sum_graph()}) as server, Wire(server) as wire:
        assert wire.ask(json_request("/v2/models/sum/infer", PAIR, header)).status == 200
        assert wire.ask(post("/v2/models/sum/infer", b'{"inputs":[]}')).status == 400
    queue, run, whole, failed = (
        exported.get_finished_spans()[:3] + exported.get_finished_spans()[-1:]
    )
    assert [one.name for one in (queue, run, whole)] == ["queue", "run", "infer"]
    assert f"{whole.context.trace_id:032x}" == PARENT[0]
    assert f"{whole.parent.span_id:016x}" == PARENT[1]
    assert whole.kind is trace.SpanKind.SERVER
    assert dict(whole.attributes) == {
        "trireme.model": "sum",
        "trireme.version": "1",
        "trireme.result": "ok",
    }
    for child in (queue, run):
        assert child.parent.span_id == whole.context.span_id
        assert whole.start_time <= child.start_time <= child.end_time <= whole.end_time + 1_000_000
    assert queue.end_time == run.start_time and run.end_time > run.start_time
    assert failed.status.status_code is trace.StatusCode.ERROR and failed.parent is None


def test_grpc(exported):
    client_of = pytest.importorskip("tritonclient.grpc")
    with serving({"sum": sum_graph()}, grpc_port=0) as server:
        client = client_of.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        given = [client_of.InferInput(name, [2, 3], "FP32") for name in "xy"]
        for one in given:
            one.set_data_from_numpy(X)
        client.infer("sum", given, headers={"traceparent": f"00-{PARENT[0]}-{PARENT[1]}-01"})
        client.close()
    assert f"{exported.get_finished_spans()[-1].context.trace_id:032x}" == PARENT[0]


def test_without_opentelemetry_nothing_happens(monkeypatch):
    monkeypatch.setattr(spans, "_opentelemetry", lambda: None)
    with serving({"sum": sum_graph()}) as server, Wire(server) as wire:
        assert wire.ask(json_request("/v2/models/sum/infer", PAIR)).status == 200
