"""Seeded random damage to requests: a 2xx or a 4xx, never a 5xx, and no memory lost."""

import json
import random
import time
import zlib

import numpy as np
import pytest
from raw_http import Wire, binary_request, get, json_request, outputs_of, tensor
from served import net_graph, same_graph, serving, sum_graph

pytest.importorskip("uvicorn")

from trireme.serving.admission import ServingLimits  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SUM = "/v2/models/sum/infer"
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]
TEXTS = [{"name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "bc"]}]
SEEDS = [
    json_request(SUM, PAIR, id="7", outputs=[{"name": "z", "parameters": {"binary_data": True}}]),
    json_request(SUM, PAIR, outputs=[{"name": "z", "parameters": {"classification": 2}}]),
    json_request(SUM, PAIR, parameters={"timeout": 10_000_000, "priority": 2}),
    binary_request(SUM, {"x": X, "y": X}),
    json_request("/v2/models/texts/infer", TEXTS),
    binary_request("/v2/models/net/infer", {"image": np.zeros((1, 12, 12, 3), np.float32)}),
    get("/v2/models/sum/config"),
]
ODD = [b"\0", b"\xff\xfe", b"-1", b"9" * 40, b"1e999", b"null", b"[]", b"{", b'"', b"\r\n", b"true"]
ODD += [b"NaN", b"\\ud800", b"%00", b"../", b"Content-Length: 5\r\n", b"Transfer-Encoding: x\r\n"]


def resident_bytes():
    with open("/proc/self/status") as file:
        row = next(row for row in file if row.startswith("VmRSS"))
    return int(row.split()[1]) * 1024


def damaged(rng):
    """A request with damage in its body, or anywhere; the body's announced length often fits."""
    head, split, body = rng.choice(SEEDS).partition(b"\r\n\r\n")
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        part = body if body and rng.random() < 0.8 else head
        at = rng.randrange(len(part) + 1)
        how = rng.randrange(5)
        if how == 0:
            changed = part[:at] + bytes([rng.randrange(256)]) + part[at + 1 :]
        elif how == 1:
            changed = part[:at] + part[at + rng.randrange(1, 20) :]
        elif how == 2:
            changed = part[:at] + rng.choice(ODD) + part[at:]
        elif how == 3:
            changed = part[:at] + part[rng.randrange(len(part) + 1) :][: rng.randrange(200)]
        else:
            changed = part[:at] + rng.choice(ODD) + part[at + rng.randrange(1, 6) :]
        if part is body:
            body = changed
        else:
            head = changed
    if body and rng.random() < 0.9:
        rows = [row for row in head.split(b"\r\n") if not row.startswith(b"Content-Length")]
        if rng.random() < 0.1:
            body = zlib.compress(body)
            rows.append(b"Content-Encoding: deflate")
        head = b"\r\n".join([*rows, b"Content-Length: %d" % len(body)])
    return head + split + body


def fuzz(server, seed, count):
    """Send damaged requests; return how often each status came."""
    print("seed", seed)
    rng = random.Random(seed)
    seen, slowest_s = {}, 0.0
    for k in range(count):
        data = damaged(rng)
        with Wire(server) as wire:
            began = time.perf_counter()
            wire.send(data)
            wire.socket.shutdown(1)
            answer = wire.answer()
            slowest_s = max(slowest_s, time.perf_counter() - began)
            assert answer.status < 500, (k, data, answer.body)
            if answer.status >= 400:
                assert answer.error
        seen[answer.status] = seen.get(answer.status, 0) + 1
    return seen, slowest_s


@pytest.fixture(scope="module")
def server():
    graphs = {"sum": sum_graph(), "texts": same_graph("string"), "net": net_graph()}
    with serving(graphs, limits=ServingLimits(body_timeout_s=1)) as server:
        yield server


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_requests(server, seed):
    fuzz(server, 1000 + seed, 200)
    before = resident_bytes()
    seen, slowest_s = fuzz(server, seed, 400)
    assert seen.get(400, 0) > 100 and slowest_s < 2, seen
    assert resident_bytes() - before < 32 << 20
    with Wire(server) as wire:
        answer = wire.ask(json_request(SUM, PAIR))
        assert np.array_equal(outputs_of(answer)["z"], X + X)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_many_damaged_requests(server, seed):
    before = resident_bytes()
    fuzz(server, seed, 4000)
    assert resident_bytes() - before < 32 << 20


def test_a_large_tensor_in_json_takes_little_memory(server):
    """Numbers of 8 MiB of text do not become 8 MiB times the size of a Python object."""
    pytest.importorskip("resource")
    data = b",".join([b"1.5"] * (2 << 20))
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":['
    body = head + data + b"]}]}"
    with Wire(server, 30) as wire:
        before = resident_bytes()
        rows = f"POST {SUM} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        answer = wire.ask(rows.encode() + body)
        assert answer.status == 400 and "elements, expected 6" in json.loads(answer.body)["error"]
        assert resident_bytes() - before < 64 << 20
