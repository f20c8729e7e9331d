"""Bodies that are wrong get a 4xx that names the field, and the connection serves on."""

import gzip
import json
import zlib

import numpy as np
import pytest
from raw_http import Wire, binary_request, get, json_request, outputs_of, post, tensor
from served import net_graph, same_graph, serving, sum_graph
from wrong_bodies import PAIR, WRONG, X

pytest.importorskip("uvicorn")

from trireme.serving.admission import ServingLimits  # noqa: E402

SUM = "/v2/models/sum/infer"
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def server():
    graphs = {"sum": sum_graph(), "half": same_graph("float16"), "net": net_graph()}
    limits = ServingLimits(max_body_bytes=LIMIT, max_json_bytes=LIMIT // 2)
    with serving(graphs, limits=limits) as server:
        yield server


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_body_names_the_field(server, name):
    body, expected = WRONG[name]
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Wire(server) as wire:
        answer = wire.ask(post(SUM, body))
        assert (answer.status, expected in answer.error) == (400, True), answer.body
        assert wire.ask(json_request(SUM, PAIR)).status == 200  # the connection serves on


def test_json_has_no_half_precision(server):
    with Wire(server) as wire:
        row = tensor("x", np.zeros(2), "FP16")
        answer = wire.ask(json_request("/v2/models/half/infer", [row]))
        assert answer.status == 400 and "FP16 has no form in JSON" in answer.error
        row = {"name": "x", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}
        head = json.dumps({"inputs": [row]}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}"
        answer = wire.ask(post("/v2/models/half/infer", head + bytes(4), length))
        assert answer.status == 400 and "binary_data_output" in answer.error


@pytest.mark.parametrize("length", ["-1", "x", "1e3", "", "99999999999999999999", "0", "7"])
def test_a_wrong_length_of_the_json(server, length):
    request = binary_request(SUM, {"x": X, "y": X})
    head, _, body = request.partition(b"\r\n\r\n")
    rows = [row for row in head.split(b"\r\n") if not row.startswith(b"Inference")]
    rows.append(b"Inference-Header-Content-Length: " + length.encode())
    with Wire(server) as wire:
        answer = wire.ask(b"\r\n".join(rows) + b"\r\n\r\n" + body)
        assert answer.status == 400 and answer.error
        assert wire.ask(request).status == 200


@pytest.mark.parametrize("by", [-1, 1, 4])
def test_raw_bytes_that_do_not_fit(server, by):
    arrays = {"x": X.reshape(-1)[: 6 + by] if by < 0 else np.resize(X, 6 + by), "y": X}
    request = binary_request(SUM, arrays).replace(b"[%d]" % arrays["x"].size, b"[2, 3]")
    with Wire(server) as wire:
        head, _, body = request.partition(b"\r\n\r\n")
        lengths = b"Content-Length: %d" % len(body)
        rows = [lengths if r.startswith(b"Content-L") else r for r in head.split(b"\r\n")]
        split = b"Inference-Header-Content-Length: %d" % (body.index(b"true}}") + 6)
        rows = [split if r.startswith(b"Inference") else r for r in rows]
        answer = wire.ask(b"\r\n".join(rows) + b"\r\n\r\n" + body)
        assert answer.status == 400 and "bytes, expected 24 for FP32[2, 3]" in answer.error


def test_nested_data_and_binary_data_are_the_same(server):
    nested = tensor("x", X, "FP32") | {"data": X.tolist()}
    with Wire(server) as wire:
        one = outputs_of(wire.ask(json_request(SUM, [nested, PAIR[1]])))
        other = outputs_of(wire.ask(binary_request(SUM, {"x": X, "y": X})))
    assert np.array_equal(one["z"], X + X) and np.array_equal(other["z"], X + X)


def test_unaligned_raw_tensors(server):
    """However long the JSON is, the tensors behind it are read rightly."""
    with Wire(server) as wire:
        for pad in range(5):
            request = binary_request(SUM, {"x": X, "y": X}, *[]).replace(
                b'{"inputs"', b'{"id": "%s", "inputs"' % (b"a" * pad)
            )
            head, _, body = request.partition(b"\r\n\r\n")
            split = body.index(b"true}}") + 6
            rows = head.split(b"\r\n")[:2]
            rows += [b"Content-Length: %d" % len(body)]
            rows += [b"Inference-Header-Content-Length: %d" % split]
            answer = wire.ask(b"\r\n".join(rows) + b"\r\n\r\n" + body)
            assert np.array_equal(outputs_of(answer)["z"], X + X)


@pytest.mark.parametrize(
    "body, encoding, status, says",
    [
        (gzip.compress(b"\0" * (LIMIT + 1)), "gzip", 413, "when it is decompressed"),
        (zlib.compress(b"\0" * (64 * LIMIT)), "deflate", 413, "when it is decompressed"),
        (gzip.compress(b"{}")[:-3], "gzip", 400, "its gzip ends too early"),
        (b"{}", "gzip", 400, "its body is no gzip"),
        (zlib.compress(b"{}") + b"x", "deflate", 400, "bytes follow its deflate"),
        (b"{}", "br", 415, "Content-Encoding 'br', expected gzip, deflate"),
    ],
)
def test_compressed_bodies(server, body, encoding, status, says):
    with Wire(server) as wire:
        answer = wire.ask(post(SUM, body, f"Content-Encoding: {encoding}"))
        assert (answer.status, says in answer.error) == (status, True), answer.body


def test_a_body_beyond_the_limit(server):
    with Wire(server) as wire:
        answer = wire.ask(post(SUM, length=LIMIT + 1))
        assert answer.status == 413 and answer.closes and f"more than {LIMIT} bytes" in answer.error
    with Wire(server) as wire:
        head = f"POST {SUM} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        wire.send(head)
        chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        for _ in range(LIMIT // (1 << 16) + 1):
            wire.send(chunk)
        answer = wire.answer()
        assert answer.status == 413 and answer.closes
    with Wire(server) as wire:
        answer = wire.ask(post(SUM, b" " * (LIMIT // 2 + 1)))
        assert answer.status == 413 and "send tensors as binary data" in answer.error


def test_a_large_refused_body_does_not_take_the_answer_away(server):
    """The server reads on for a while, or the client would see a reset and no 413."""
    with Wire(server) as wire:
        answer = wire.ask(post(SUM, bytes(20 * LIMIT)))
        assert answer.status == 413
        assert wire.is_closed()


@pytest.mark.parametrize(
    "path, status",
    [
        ("/v2/models/none/infer", 404),
        ("/v2/models/sum/versions/2/infer", 404),
        ("/v2/models/..%2f..%2fetc/infer", 404),
        ("/v2/models/%2e%2e/infer", 400),
        ("/v2/models/a%00b/infer", 400),
        ("/v2/models/" + "n" * 129 + "/infer", 400),
        ("/v2/models/sum/versions/%20/infer", 400),
        ("/v2/models/sum", 405),
        ("/nothing", 404),
    ],
)
def test_names_and_paths(server, path, status):
    with Wire(server) as wire:
        answer = wire.ask(post(path, b"{}"))
        assert answer.status == status and answer.error
        assert "etc" not in answer.error
        if status == 405:
            assert "takes GET" in answer.error and "not POST" in answer.error
        assert wire.ask(get("/v2/health/live")).status == 200


def test_loading_needs_permission(server):
    with Wire(server) as wire:
        answer = wire.ask(post("/v2/repository/models/sum/load"))
        assert answer.status == 403 and "--allow-admin" in answer.error
        assert wire.ask(post("/v2/repository/models/sum/unload", b"{}")).status == 403
        assert wire.ask(post("/v2/repository/index")).status == 200


def test_wrong_requests_count_for_their_model_and_made_up_names_for_none(server):
    seen = []
    server.service.observers.append(seen.append)
    with Wire(server) as wire:
        wire.ask(post(SUM, b"{"))
        wire.ask(post(SUM, b'{"inputs":[]}'))
        for k in range(5):
            wire.ask(post(f"/v2/models/made-up-{k}/infer", b'{"inputs":[]}'))
    server.service.observers.remove(seen.append)
    found = [(one.model, one.version, one.kind) for one in seen]
    assert found == [("sum", "1", "invalid")] * 2
