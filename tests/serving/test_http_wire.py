"""Broken, slow and hostile connections: a 4xx or a closed connection, and the server serves on."""

import json
import socket
import time

import numpy as np
import pytest
from raw_http import Wire, binary_request, get, json_request, outputs_of, post, reset, tensor
from served import GatedModel, same_graph, serving, sum_graph

connection = pytest.importorskip("trireme.serving.connection")

from trireme.serving.admission import ServingLimits  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SUM = "/v2/models/sum/infer"
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]
GOOD = json_request(SUM, PAIR)


@pytest.fixture(scope="module")
def server():
    limits = ServingLimits(body_timeout_s=0.4)
    kinds = {"gated": GatedModel}
    graphs = {"sum": sum_graph(), "gated": sum_graph(), "same": same_graph("float32")}
    with serving(graphs, kinds, limits=limits) as server:
        yield server


@pytest.fixture(autouse=True)
def serves_on(server):
    yield
    with Wire(server) as wire:
        assert np.array_equal(outputs_of(wire.ask(GOOD))["z"], X + X)


def head(*rows):
    return "\r\n".join([f"POST {SUM} HTTP/1.1", "Host: x", *rows]).encode() + b"\r\n\r\n"


@pytest.mark.parametrize(
    "data, status",
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # the start of TLS
        (head("Content-Length: -1"), 400),
        (head("Content-Length: two"), 400),
        (head("Content-Length: 2", "Content-Length: 3"), 400),
        (head("Content-Length: 2", "Transfer-Encoding: chunked") + b"{}", 400),
        (head("Content-Length: 99999999999999999999999"), 400),
        (head("Transfer-Encoding: chunked") + b"zz\r\n", 400),
        (head("Transfer-Encoding: chunked") + b"-1\r\n", 400),
        (head("na me: x"), 400),
        (head("name: a\x00b"), 400),
        (head(*(f"h{k}: v" for k in range(10_000))), 431),
        (head("h: " + "v" * 100_000), 431),
        (b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", 431),
        (head()[:-4] + b"\r\nh: " + b"v" * 300_000, 431),
    ],
)
def test_a_broken_head_closes_the_connection(server, data, status):
    with Wire(server) as wire:
        began = time.perf_counter()
        answer = wire.ask(data)
        assert answer.status == status and answer.error and answer.closes
        assert time.perf_counter() - began < 1  # 0.1 on a quiet machine: test_http_times.py
        assert wire.is_closed()


def test_single_bytes(server):
    with Wire(server) as wire:
        for byte in GOOD:
            wire.send(bytes([byte]))
        assert wire.answer().status == 200
    body = GOOD.partition(b"\r\n\r\n")[2]
    with Wire(server) as wire:
        wire.send(head("Transfer-Encoding: chunked"))
        for byte in body:
            wire.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        assert np.array_equal(outputs_of(wire.ask(b"0\r\n\r\n"))["z"], X + X)


def test_requests_sent_together_are_answered_in_order(server):
    with Wire(server) as wire:
        wire.send(b"".join(json_request(SUM, PAIR, id=str(k)) for k in range(20)))
        got = [json.loads(wire.answer().body)["id"] for _ in range(20)]
    assert got == [str(k) for k in range(20)]


def test_nonsense_behind_a_request_does_not_take_its_answer(server):
    with Wire(server) as wire:
        answer = wire.ask(GOOD + b"\x00\x01\x02\r\n\r\n")
        assert answer.status == 200
        assert wire.answer().status in (0, 400) and wire.is_closed()


def test_a_body_that_does_not_come(server):
    with Wire(server) as wire:
        began = time.perf_counter()
        answer = wire.ask(post(SUM, b"{", length=100))
        assert answer.status == 408 and "did not arrive in 0.4 s" in answer.error
        assert 0.35 < time.perf_counter() - began < 3


@pytest.mark.parametrize("data", [b"", b"POST /v2", head("a: b")[:-2], b"\r\n\r\n"])
def test_a_head_that_does_not_come(server, monkeypatch, data):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    with Wire(server) as wire:
        wire.send(data)
        assert wire.answer().status in (0, 408)
        assert wire.is_closed()


def test_a_client_that_sends_a_head_byte_by_byte_is_cut_off(server, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    began = time.perf_counter()
    with Wire(server) as wire, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for k in range(100):
            wire.send(b"POST / HTTP/1.1\r\n"[k % 17 : k % 17 + 1])
            time.sleep(0.05)
    assert time.perf_counter() - began < 3


def test_a_client_that_does_not_read(server, monkeypatch):
    """Its answers are forgotten after a while; nobody else waits for it."""
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.3)
    request = binary_request("/v2/models/same/infer", {"x": np.zeros(1 << 20, np.float32)})
    with Wire(server) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(30):
                wire.send(request)


@pytest.mark.parametrize("end", [lambda wire: wire.socket.close(), reset])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_clients_that_leave_while_they_send(server, share, end):
    wire = Wire(server)
    wire.send(GOOD[: int(len(GOOD) * share)])
    end(wire)


@pytest.mark.parametrize("end", [lambda wire: wire.socket.close(), reset])
def test_clients_that_leave_while_they_wait_are_withdrawn(server, end):
    model = server.models["gated"]
    path = "/v2/models/gated/infer"
    first, second = Wire(server), Wire(server)
    first.send(json_request(path, PAIR))
    assert model.begun.acquire(timeout=5)
    second.send(json_request(path, PAIR))
    wait_for(lambda: server.service.depth("gated") == (1, 1))
    end(second)
    wait_for(lambda: server.service.depth("gated") == (0, 1))
    model.gate.set()
    assert first.answer().status == 200
    model.gate.clear()
    assert not model.begun.acquire(timeout=0.05)  # the second one never ran
    first.socket.close()


def wait_for(condition, timeout_s=5):
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def test_expect_100_continue(server):
    body = GOOD.partition(b"\r\n\r\n")[2]
    with Wire(server) as wire:
        wire.send(head(f"Content-Length: {len(body)}", "Expect: 100-continue"))
        wire._more()
        assert wire.left.startswith(b"HTTP/1.1 100 Continue")
        wire.left = b""
        assert wire.ask(body).status == 200
    with Wire(server) as wire:
        answer = wire.ask(
            post("/v2/models/none/infer", b"", "Expect: 100-continue", length=1 << 20)
        )
        assert answer.status == 404 and answer.closes


def test_http_1_0_closes(server):
    with Wire(server) as wire:
        assert wire.ask(get("/v2/health/live").replace(b"1.1", b"1.0")).status == 200
        assert wire.is_closed()


def test_keep_alive_serves_many(server):
    request = binary_request(SUM, {"x": X, "y": X})
    with Wire(server) as wire:
        for _ in range(50):
            assert wire.ask(request).status == 200
            assert wire.ask(get("/v2/models/sum")).status == 200
