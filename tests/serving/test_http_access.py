"""Tokens, TLS, mounting in another application, the status page, traces."""

import http.client
import json
import os
import ssl
import subprocess
import time

import numpy as np
import pytest
from commands import save_small
from raw_http import Wire, get, json_request, outputs_of, post, tensor
from served import serving, sum_graph

pytest.importorskip("uvicorn")

import trireme  # noqa: E402
from trireme.serving.http import http_app  # noqa: E402
from trireme.serving.models import FixedModels, SessionModel  # noqa: E402
from trireme.serving.server import Server  # noqa: E402
from trireme.serving.service import InferenceService  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SUM = "/v2/models/sum/infer"
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]


def test_a_token_guards_all_but_health_and_the_empty_page():
    with serving({"sum": sum_graph()}, token="s3cret") as server, Wire(server) as wire:
        for path in ("/v2/health/live", "/v2/health/ready", "/", "/page/status.js"):
            assert wire.ask(get(path)).status == 200
        for path in ("/v2", "/v2/models/sum", "/v2/models/sum/ready", "/status", "/nothing"):
            answer = wire.ask(get(path))
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        for wrong in ("Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crett", "Basic s3cret"):
            assert wire.ask(get("/v2", f"Authorization: {wrong}")).status == 401
        assert wire.ask(json_request(SUM, PAIR)).status == 401
        good = "Authorization: Bearer s3cret"
        assert wire.ask(json_request(SUM, PAIR, good)).status == 200
        assert wire.ask(get("/status", good)).status == 200


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "cert.pem"), str(folder / "key.pem")
    made = subprocess.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}".split(),
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("openssl makes no certificate here")
    return certificate, key


def test_tls(files):
    certificate, key = files
    with serving({"sum": sum_graph()}, certificate=certificate, key=key) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=certificate)
        client = http.client.HTTPSConnection("127.0.0.1", server.http_port, context=trust)
        client.request("POST", SUM, json.dumps({"inputs": PAIR}))
        answer = client.getresponse()
        assert answer.status == 200 and b"10.0" in answer.read()
        client.close()
        with Wire(server) as wire:  # without TLS
            wire.send(get("/v2"))
            assert wire.answer().status == 0


@pytest.mark.parametrize("which", ["none", "swapped", "key alone"])
def test_files_that_are_no_certificate(files, which, tmp_path):
    given = {
        "none": {"certificate": str(tmp_path / "no.pem"), "key": files[1]},
        "swapped": {"certificate": files[1], "key": files[0]},
        "key alone": {"key": files[1]},
    }
    with pytest.raises(trireme.RunError, match="certificate"):
        Server(FixedModels([]), http_port=0, **given[which])


def test_an_address_that_is_taken():
    with serving({"sum": sum_graph()}) as server:
        with pytest.raises(
            trireme.RunError, match=f"cannot listen at 127.0.0.1:{server.http_port}"
        ):
            Server(FixedModels([]), http_port=server.http_port)
        with pytest.raises(trireme.RunError, match="started already"):
            server.start()


def test_mounted_in_an_application():
    fastapi = pytest.importorskip("fastapi")
    import uvicorn

    with trireme.Session(sum_graph()) as session:
        service = InferenceService(FixedModels([SessionModel("sum", session)]))
        app = fastapi.FastAPI()
        app.mount("/models", http_app(service, token="t"))

        @app.get("/mine")
        def mine():
            return {"mine": 1}

        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
        import threading

        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            time.sleep(0.005)

        class Place:
            http_port = running.servers[0].sockets[0].getsockname()[1]

        good = "Authorization: Bearer t"
        with Wire(Place) as wire:
            assert wire.ask(get("/mine")).status == 200
            answer = wire.ask(json_request("/models" + SUM, PAIR, good))
            assert np.array_equal(outputs_of(answer)["z"], X + X)
            assert wire.ask(get("/models/v2/health/ready")).status == 200
            assert wire.ask(get("/models/v2/models/sum")).status == 401
            assert b"status.js" in wire.ask(get("/models/")).body
            assert wire.ask(get("/models/page/status.js")).status == 200
            assert wire.ask(post("/models/v2/models/no/infer", b"", good)).status == 404
        running.should_exit = True
        thread.join(10)
        service.close()


def test_the_page_and_its_data():
    with serving({"sum": sum_graph()}) as server, Wire(server) as wire:
        page = wire.ask(get("/"))
        assert (
            page.status == 200 and "default-src 'none'" in page.headers["content-security-policy"]
        )
        assert b"http" not in page.body.replace(b"http-equiv", b"")  # nothing from elsewhere
        assert wire.ask(json_request(SUM, PAIR)).status == 200
        status = json.loads(wire.ask(get("/status")).body)
        (row,) = status["models"]
        assert status["ready"] and not status["draining"]
        assert (row["name"], row["state"], row["answered"], row["waiting"]) == (
            "sum",
            "READY",
            1,
            0,
        )
        assert row["devices"] == ["cpu"] and row["inputs"][0] == "x FP32[2,3]"
        assert row["p50_s"] > 0 and row["is_stored"] is False
        found = json.loads(wire.ask(get("/status/placement?model=sum&version=1")).body)
        assert [piece["device"] for piece in found["pieces"]] == ["cpu"]
        assert found["pieces"][0]["ops"] == "add" and found["makespan_s"] > 0
        assert found["simulated"] == []
        assert wire.ask(get("/status/placement?model=no")).status == 404
        assert wire.ask(get("/status/placement")).status == 400


def test_looking_at_a_stored_program_does_not_prepare_its_model(tmp_path):
    path = save_small(tmp_path / "small.trm")
    x = np.ones((1, 6, 6, 3), np.float32)
    for _ in range(50):  # programs are stored behind the first runs
        with trireme.Session(path, threads=1) as session:
            session.run({"x": x})
            if session.is_stored:
                break
        time.sleep(0.1)
    with trireme.Session(path, threads=1) as session:
        assert session.is_stored
        with (
            Server(FixedModels([SessionModel("small", session)]), http_port=0) as server,
            Wire(server) as wire,
        ):
            (row,) = json.loads(wire.ask(get("/status")).body)["models"]
            assert row["is_stored"] and session.is_stored
            found = json.loads(wire.ask(get("/status/placement?model=small")).body)
            assert found["devices"].keys() == {"cpu"} and not session.is_stored


def test_a_request_may_ask_for_its_trace():
    with serving({"sum": sum_graph()}) as server, Wire(server) as wire:
        began_us = time.time() * 1e6
        answer = wire.ask(json_request(SUM, PAIR, parameters={"trireme_trace": True}, id="7"))
        ended_us = time.time() * 1e6
        told = json.loads(answer.body)
        assert np.array_equal(outputs_of(answer)["z"], X + X)
        events = json.loads(told["parameters"]["trireme_trace"])["traceEvents"]
        slices = {one["name"]: one for one in events if one["ph"] == "X"}
        assert {"request", "queue", "run"} <= slices.keys()
        assert any(one["cat"] == "task" for one in slices.values())
        assert slices["request"]["args"] == {"id": "7"}
        for one in slices.values():  # on the client's clock
            assert one["pid"] == os.getpid()
            assert began_us - 1e4 < one["ts"] and one["ts"] + one["dur"] < ended_us + 1e4
        plain = json.loads(wire.ask(json_request(SUM, PAIR)).body)
        assert "parameters" not in plain
