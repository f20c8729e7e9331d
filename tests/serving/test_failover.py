"""A device that fails under load: every request that was accepted is answered, and rightly."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from opencl import need_opencl
from serving_models import put

pytest.importorskip("prometheus_client", reason="needs the extra serve")

from faults import Fault, inject  # noqa: E402

from trireme.ir.builder import GraphBuilder  # noqa: E402
from trireme.ir.graph import TensorType  # noqa: E402
from trireme.model_file import save  # noqa: E402
from trireme.placement.options import PlacementOptions  # noqa: E402
from trireme.runtime.session.session import Session
from trireme.serving.config import ModelSettings, ServeConfig, ServerSettings  # noqa: E402
from trireme.serving.configured import open_models  # noqa: E402
from trireme.serving.metrics import ServingMetrics  # noqa: E402
from trireme.serving.models import FixedModels, SessionModel  # noqa: E402
from trireme.serving.protocol import InferRequest  # noqa: E402
from trireme.serving.server import Server  # noqa: E402
from trireme.serving.service import InferenceService  # noqa: E402
from trireme.serving.status import StatusPage  # noqa: E402
from trireme.serving.usage import Usage  # noqa: E402
from trireme.support.errors import FaultKind  # noqa: E402

REQUESTS, CLIENTS = 240, 8
RNG = np.random.default_rng(77)
FEEDS = [{"x": RNG.standard_normal((4, 16)).astype(np.float32)} for _ in range(REQUESTS)]


def graph():
    b = GraphBuilder("net")
    x = b.input("x", TensorType((4, 16), "float32"))
    return b.finish(b.add("tanh", b.add("sigmoid", x), names=["y"]))


@pytest.fixture
def folder(tmp_path):
    save(graph(), tmp_path / "one.trm")
    put(tmp_path / "net" / "1" / "model.trm", (tmp_path / "one.trm").read_bytes())
    (tmp_path / "one.trm").unlink()
    return tmp_path


def answers(*devices):
    """What sessions on each device alone give."""
    found = []
    for device in devices:
        with Session(graph(), devices=[device]) as session:
            found.append([session.run(feeds)["y"] for feeds in FEEDS])
    return found


@pytest.mark.parametrize(
    "kind", [FaultKind.LAUNCH_FAILED, FaultKind.CHECKSUM, FaultKind.LOST, FaultKind.OUT_OF_MEMORY]
)
def test_no_request_is_lost_or_answered_wrongly(folder, kind):
    need_opencl()
    right = answers("cpu", "opencl")
    usage = Usage()
    config = ServeConfig(
        server=ServerSettings(repository=str(folder), poll_s=0),
        defaults=ModelSettings(threads=1, devices=["cpu", "opencl"], fallback=True),
    )
    faults = [Fault("cpu", "launch", nth, kind) for nth in (20, 35, 36, 90)]
    with inject(*faults) as points:
        service = InferenceService(open_models(config, usage))
        try:
            outcomes = asyncio.run(_ask_all(service))
            page = ServingMetrics(service, usage).page()[0].decode()
            (row,) = StatusPage(service).status()["models"]
        finally:
            service.close()
        assert points.raised
    for k, outputs in enumerate(outcomes):
        assert any(np.array_equal(outputs, one[k]) for one in right), k
    assert row["devices_out"] == ["cpu"]
    assert any("cpu failed, the run was repeated on opencl" in one for one in row["events"])
    assert 'trireme_device_out{device="cpu"} 1.0' in page
    line = f'trireme_device_faults_total{{device="cpu",kind="{kind.value}"}}'
    assert line in page and 'trireme_fallbacks_total{from="cpu",to="opencl"}' in page


async def _ask_all(service):
    limit = asyncio.Semaphore(CLIENTS)

    async def ask(feeds):
        async with limit:
            response = await service.infer(InferRequest(model="net", inputs=feeds))
            return response.outputs["y"]

    return await asyncio.gather(*map(ask, FEEDS))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("point", ["launch", "wait"])
def test_a_request_that_meets_a_hung_device_is_answered_in_time(protocol, point):
    """The one request waits for the watchdog, those of another model go on meanwhile."""
    need_opencl()
    triton = pytest.importorskip(f"tritonclient.{protocol}")
    pins = PlacementOptions(pins={"y": "opencl"})
    (want,) = answers("cpu")
    with inject(Fault("opencl", point, 3, FaultKind.HANG)) as points, ExitStack() as opened:
        how = dict(devices=["opencl", "cpu"], placement_options=pins, fallback=True)
        session = opened.enter_context(Session(graph(), **how))
        session.prepare_fallbacks()
        other = opened.enter_context(Session(graph(), devices=["cpu"]))
        models = FixedModels([SessionModel("net", session), SessionModel("well", other)])
        server = opened.enter_context(Server(models, http_port=0, grpc_port=0))
        port = server.http_port if protocol == "http" else server.grpc_port

        def ask(client, model, k):
            tensor = triton.InferInput("x", FEEDS[k]["x"].shape, "FP32")
            tensor.set_data_from_numpy(FEEDS[k]["x"])
            begun = time.monotonic()
            found = client.infer(model, [tensor]).as_numpy("y")
            np.testing.assert_array_equal(found, want[k])
            return time.monotonic() - begun

        def client():
            return triton.InferenceServerClient(f"127.0.0.1:{port}")

        with client() as one, client() as two, ThreadPoolExecutor(1) as pool:
            while points.calls["opencl", point] < 2:
                session.run(FEEDS[0])
            hung = pool.submit(ask, one, "net", 1)
            while not points.raised:
                time.sleep(0.001)
            while not hung.done():
                ask(two, "well", 2)
            assert 0.9 < hung.result() < 20
            calls = points.calls["opencl", "launch"]
            for k in range(5):
                ask(two, "net", k)
            assert points.calls["opencl", "launch"] == calls
        assert session.devices_out == {"opencl"}
        assert session.events[0].kind is FaultKind.HANG
