"""/metrics: names, values that agree with what was done, and the cost of a request."""

import asyncio
import time
import urllib.request

import numpy as np
import pytest
from serving_models import affine_model, put_version

pytest.importorskip("prometheus_client", reason="needs the extra serve")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from trireme.serving.config import (  # noqa: E402
    BatchSettings,
    ModelSettings,
    ServeConfig,
    ServerSettings,
)
from trireme.serving.configured import open_models, server_of  # noqa: E402
from trireme.serving.errors import ServingError  # noqa: E402
from trireme.serving.metric_names import NAMES  # noqa: E402
from trireme.serving.metrics import ServingMetrics  # noqa: E402
from trireme.serving.protocol import InferRequest  # noqa: E402
from trireme.serving.service import InferenceService  # noqa: E402
from trireme.serving.statistics import RequestOutcome  # noqa: E402
from trireme.serving.status import StatusPage  # noqa: E402
from trireme.serving.usage import SAMPLE_EVERY, Usage  # noqa: E402

X = np.ones((1, 4), np.float32)


def served(folder, **settings):
    """The service of a repository, and its metrics."""
    usage = Usage()
    config = ServeConfig(
        server=ServerSettings(repository=str(folder), poll_s=0),
        defaults=ModelSettings(threads=1, **settings),
    )
    service = InferenceService(open_models(config, usage))
    return service, ServingMetrics(service, usage)


def samples(metrics):
    """The values of a page by name and labels, which must be there once."""
    page, kind = metrics.page()
    assert kind.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for one in family.samples:
            key = one.name, *sorted(one.labels.items())
            assert key not in found, f"{key} is on the page twice"
            found[key] = one.value
    return found


@pytest.fixture
def folder(tmp_path):
    put_version(tmp_path, "net", 1, affine_model(2, rows=1))
    return tmp_path


def ask(service, count=1, **request):
    async def go():
        for _ in range(count):
            await service.infer(InferRequest(**{"model": "net", "inputs": {"x": X}} | request))

    asyncio.run(go())


def test_every_metric_is_on_the_page(folder):
    service, metrics = served(folder)
    ask(service)
    page = metrics.page()[0].decode()
    for name in NAMES:
        assert f"# TYPE {name} " in page or f"# TYPE {name.removesuffix('_total')} " in page, name
    service.close()


def test_requests_count_by_status(folder):
    service, metrics = served(folder)
    ask(service, 5)
    for wrong in ({"inputs": {}}, {"model": "made-up"}, {"version": "9"}):
        with pytest.raises(ServingError):
            ask(service, **wrong)
    found = samples(metrics)
    net = (("model", "net"), ("version", "1"))
    requests = {key[1:]: found[key] for key in found if key[0] == "trireme_requests_total"}
    assert requests == {
        (("code", "200"), *net): 5,
        (("code", "400"), *net): 1,
        (("code", "404"), ("model", ""), ("version", "")): 2,
    }
    for name in ("trireme_request_seconds_count", "trireme_queue_seconds_count"):
        assert found[name, *net] == 5
    assert found["trireme_batch_size_count", *net] == 5
    assert found["trireme_queue_depth", ("model", "net")] == 0
    service.close()


def test_names_that_clients_make_up_add_no_labels(folder):
    service, metrics = served(folder)
    for one in range(50):
        with pytest.raises(ServingError):
            ask(service, model=f"made-up-{one}")
    assert len([key for key in samples(metrics) if key[0] == "trireme_requests_total"]) == 1
    service.close()


def test_busy_seconds_are_the_seconds_of_runs(folder):
    service, metrics = served(folder)
    ask(service, 50)
    found = samples(metrics)
    busy_s = found["trireme_device_busy_seconds_total", ("device", "cpu")]
    run_ns = service.model_statistics("net")["model_stats"][0]["inference_stats"]["compute_infer"]
    assert 0 < busy_s <= run_ns["ns"] * 1e-9
    service.close()


def test_several_devices_are_sampled(tmp_path):
    """Copies are the plan's; a watched run gives the bits of another run."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    weight = numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy"]
    graph = helper.make_graph(nodes, "two", types[:1], types[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(made)
    put_version(tmp_path, "net", 1, made.SerializeToString())
    x = rng.standard_normal((4, 8)).astype(np.float32)
    service, metrics = served(tmp_path, devices=["npu", "cpu"])
    with service.models.lease("net") as model:
        plan, facts = model.session.plan, model.facts
        wanted = model.session.run({"x": x})["y"]
        for _ in range(SAMPLE_EVERY + 2):
            assert model.run({"x": x})["y"].tobytes() == wanted.tobytes()
    copies = [task for task in plan.tasks if task.is_copy]
    found = samples(metrics)
    for memory, packing in plan.arenas.items():
        assert found["trireme_arena_bytes", ("device", memory)] == packing.nbytes
    busy = {key[1][1]: v for key, v in found.items() if key[0].startswith("trireme_device_busy")}
    assert set(busy) == set(facts.devices) and all(value > 0 for value in busy.values())
    total = sum(v for key, v in found.items() if key[0] == "trireme_copy_bytes_total")
    assert total == (SAMPLE_EVERY + 2) * sum(plan.slots[one.outputs[0]].nbytes for one in copies)
    service.close()


def test_batches_count_their_rows(tmp_path):
    """Requests of one row each run together, and give the bits of a run alone."""
    put_version(tmp_path, "net", 1, affine_model(2))
    batching = BatchSettings(max_batch_size=8, max_queue_delay_us=20_000)
    service, metrics = served(tmp_path, batching=batching)

    async def go():
        many = [service.infer(InferRequest("net", inputs={"x": X * one})) for one in range(16)]
        return await asyncio.gather(*many)

    for one, answer in enumerate(asyncio.run(go())):
        assert answer.outputs["y"].tobytes() == (X * one * 2 + 1).tobytes()
    found = samples(metrics)
    net = (("model", "net"), ("version", "1"))
    assert found["trireme_batch_size_sum", *net] == 16
    assert found["trireme_batch_size_count", *net] < 16
    assert service.model_config("net")["dynamic_batching"]["max_queue_delay_microseconds"] == 20_000
    service.close()


def test_contexts_are_runs_at_once(folder):
    service, _ = served(folder, contexts=3)
    assert service.model_config("net")["instance_group"][0]["count"] == 3
    service.close()


def test_loads_count_as_cache_events(folder):
    """A first load misses the caches that it fills, a second one finds its program."""
    put_version(folder, "new", 1, affine_model(time.time_ns() % 99_991, rows=1))
    for result in ("miss", "hit"):
        service, metrics = served(folder)
        found = samples(metrics)
        assert found["trireme_cache_events_total", ("cache", "program"), ("result", result)] >= 1
        if result == "miss":
            assert found["trireme_cache_events_total", ("cache", "graph"), ("result", "miss")] >= 1
        service.close()


def test_a_traced_request_is_counted_as_any(folder):
    service, metrics = served(folder)
    ask(service, parameters={"trireme_trace": True})
    found = samples(metrics)
    net = (("model", "net"), ("version", "1"))
    assert found["trireme_batch_size_count", *net] == 1
    assert found["trireme_device_busy_seconds_total", ("device", "cpu")] > 0
    service.close()


def test_statistics_have_a_row_for_each_size_of_batch(tmp_path):
    put_version(tmp_path, "net", 1, affine_model(2))
    service, _ = served(tmp_path, batching=BatchSettings(max_batch_size=4))
    for rows in (1, 1, 3):
        ask(service, inputs={"x": np.ones((rows, 4), np.float32)})
    (told,) = service.model_statistics("net")["model_stats"]
    assert {row["batch_size"]: row["compute_infer"]["count"] for row in told["batch_stats"]} == {
        1: 2,
        3: 1,
    }
    assert all(row["compute_infer"]["ns"] > 0 for row in told["batch_stats"])
    assert told["execution_count"] == 3
    service.close()


def test_looking_does_not_prepare_a_stored_program(folder):
    """Neither the metrics nor the status page asks for more than runs need."""
    served(folder)[0].close()
    service, metrics = served(folder)
    ask(service)
    metrics.page()
    (row,) = StatusPage(service).status()["models"]
    assert row["devices"] == ["cpu"]
    with service.models.lease("net") as model:
        assert model.session.is_stored
    service.close()


def test_the_page_over_http(folder):
    config = ServeConfig(
        server=ServerSettings(repository=str(folder), http=0, poll_s=0),
        defaults=ModelSettings(threads=1),
    )
    with server_of(config) as server:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
            page = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("text/plain")
        assert "# TYPE trireme_requests_total counter" in page


@pytest.mark.timed
def test_the_cost_of_a_request(folder):
    """What counting adds to a run, and to a request: the best of many short turns."""
    service, metrics = served(folder)
    outcome = RequestOutcome("net", "1", "ok", 0.002, 0.001, 0.001)
    best = dict.fromkeys(("counted", "plain", "request"), 1.0)
    with service.models.lease("net") as model:
        calls = {
            "counted": lambda: model.run({"x": X}),
            "plain": lambda: model.session.run({"x": X}),
            "request": lambda: metrics.observe(outcome),
        }
        for _ in range(50):
            for name, call in calls.items():
                best[name] = min(best[name], _seconds_of(call))
    cost = best["counted"] - best["plain"] + best["request"]
    print(f"{cost * 1e6:.1f} us a request")
    assert cost < 20e-6
    service.close()


def _seconds_of(call, count=100):
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count
