"""Calls over gRPC that end early, wait or are refused: deadlines, cancels, drain, token, admin."""

import collections
import queue
import shutil
import subprocess
import threading
import time
from functools import partial

import numpy as np
import pytest
from served import GatedModel, same_graph, serving, sum_graph
from serving_models import affine_model, put_version

from trireme.serving.admission import ServingLimits
from trireme.serving.config import ModelSettings
from trireme.serving.opening import open_model
from trireme.serving.repository import ModelRepository
from trireme.support.errors import RunError

pytest.importorskip("tritonclient.grpc", reason="needs tritonclient")

import grpc  # noqa: E402
import tritonclient.grpc as tg  # noqa: E402
from grpc_calls import input_of, waited_until  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

from trireme.serving.grpc_messages import MESSAGES  # noqa: E402
from trireme.serving.server import FLUSH_S, Server  # noqa: E402


@pytest.fixture(scope="module")
def server():
    with serving({"gated": same_graph("float32")}, {"gated": GatedModel}, grpc_port=0) as server:
        yield server


@pytest.fixture
def client(server):
    with tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


def test_the_clients_deadline_withdraws_what_waits(server, client):
    """One request runs, one waits; the second is given up before it begins."""
    model = server.models["gated"]
    model.gate.clear()
    array = np.zeros(1, np.float32)
    done = queue.Queue()
    client.async_infer(
        "gated", [input_of("x", array)], lambda result, error: done.put((result, error))
    )
    assert model.begun.acquire(timeout=20)
    ended = model.ended
    began = time.perf_counter()
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED|Deadline"):
        client.infer("gated", [input_of("x", array)], client_timeout=0.2)
    assert 0.15 < time.perf_counter() - began < 5
    waited_until(lambda: server.service.depth("gated") == (0, 1))
    model.gate.set()
    assert done.get(timeout=20)[1] is None
    assert model.ended == ended + 1


def test_a_cancelled_call_is_withdrawn(server, client):
    model = server.models["gated"]
    model.gate.clear()
    array = np.zeros(1, np.float32)
    done = queue.Queue()
    client.async_infer(
        "gated", [input_of("x", array)], lambda result, error: done.put((result, error))
    )
    assert model.begun.acquire(timeout=20)
    ended = model.ended
    second = client.async_infer(
        "gated", [input_of("x", array)], lambda result, error: done.put((result, error))
    )
    waited_until(lambda: server.service.depth("gated") == (1, 1))
    second.cancel()
    waited_until(lambda: server.service.depth("gated") == (0, 1))
    model.gate.set()
    errors = [done.get(timeout=20)[1] for _ in range(2)]
    assert sorted(error is None for error in errors) == [False, True]
    waited_until(lambda: server.service.depth("gated") == (0, 0))
    assert model.ended == ended + 1


def test_a_parameter_sets_a_deadline(server, client):
    model = server.models["gated"]
    model.gate.clear()
    threading.Timer(1.0, model.gate.set).start()
    with pytest.raises(InferenceServerException, match="DEADLINE_EXCEEDED.*0.1 s"):
        client.infer("gated", [input_of("x", np.zeros(1, np.float32))], timeout=100_000)
    assert model.begun.acquire(timeout=20)
    waited_until(lambda: server.service.depth("gated") == (0, 0))


def test_a_full_queue_is_resource_exhausted():
    graphs = {"gated": same_graph("float32")}
    limits = ServingLimits(max_queue=1)
    with (
        serving(graphs, {"gated": GatedModel}, grpc_port=0, limits=limits) as server,
        tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        model, done = server.models["gated"], queue.Queue()
        array = np.zeros(1, np.float32)
        for _ in range(2):
            client.async_infer(
                "gated", [input_of("x", array)], lambda result, error: done.put((result, error))
            )
        waited_until(lambda: server.service.depth("gated") == (1, 1))
        with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED.*is busy"):
            client.infer("gated", [input_of("x", array)])
        model.gate.set()
        assert [done.get(timeout=20)[1] for _ in range(2)] == [None, None]


def test_token_and_admin():
    with (
        serving({"sum": sum_graph()}, grpc_port=0, token="secret") as server,
        tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        for headers in (None, {"authorization": "Bearer other"}):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                client.get_server_metadata(headers=headers)
        headers = {"authorization": "Bearer secret"}
        assert client.get_server_metadata(headers=headers).name == "trireme"
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            client.load_model("sum", headers=headers)


def test_load_and_unload(tmp_path):
    put_version(tmp_path, "net", 1, affine_model(1))
    models = ModelRepository(tmp_path, partial(open_model, settings=ModelSettings(threads=1)))
    x = np.ones((1, 4), np.float32)
    with (
        Server(models, http_port=0, grpc_port=0, allow_admin=True) as server,
        tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        put_version(tmp_path, "net", 2, affine_model(2))
        client.load_model("net")
        answer = client.infer("net", [input_of("x", x)])
        assert answer.get_response().model_version == "2"
        assert (answer.as_numpy("y") == 3).all()
        client.unload_model("net")
        assert not client.is_model_ready("net")
        with pytest.raises(InferenceServerException, match="UNAVAILABLE.*unloaded on request"):
            client.infer("net", [input_of("x", x)])
        rows = client.get_model_repository_index().models
        assert {row.version: row.reason for row in rows}["2"] == "unloaded on request"
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.load_model("other")


def test_draining_ends_accepted_calls_and_refuses_new_ones():
    with (
        serving({"gated": same_graph("float32")}, {"gated": GatedModel}, grpc_port=0) as server,
        tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client,
    ):
        model, done = server.models["gated"], queue.Queue()
        tensor = input_of("x", np.zeros(1, np.float32))
        client.async_infer("gated", [tensor], lambda result, error: done.put((result, error)))
        assert model.begun.acquire(timeout=20)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        waited_until(lambda: server.service.is_draining)
        assert not client.is_server_ready()
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            client.infer("gated", [tensor])
        model.gate.set()
        result, error = done.get(timeout=20)
        assert error is None and result.as_numpy("y") == 0
        stopping.join()


def test_clients_that_watch_the_health_do_not_hold_the_server():
    with (
        serving({"net": sum_graph()}, grpc_port=0) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert next(watch) == b"\x08\x01"
        began = time.perf_counter()
        server.stop()
        assert time.perf_counter() - began < FLUSH_S
        assert list(watch) in ([], [b"\x08\x02"])


def test_a_taken_port_is_an_error():
    with (
        serving({"sum": sum_graph()}, grpc_port=0) as server,
        pytest.raises(RunError, match="cannot listen at 127.0.0.1"),
        serving({"sum": sum_graph()}, grpc_port=server.grpc_port),
    ):
        pass


def test_reloads_under_calls_lose_none(tmp_path):
    """Every answer is whole: the version that it names has computed it."""
    put_version(tmp_path, "net", 1, affine_model(1))
    models = ModelRepository(tmp_path, partial(open_model, settings=ModelSettings(threads=1)))
    x = np.ones((1, 4), np.float32)
    ended, wrong, answers = threading.Event(), [], [0, 0]

    def ask(which, port):
        with tg.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while not ended.is_set():
                try:
                    answer = client.infer("net", [input_of("x", x)])
                except Exception as error:
                    wrong.append(error)
                    return
                version = float(answer.get_response().model_version)
                wrong.extend([version] * bool((answer.as_numpy("y") != version + 1).any()))
                answers[which] += 1

    with Server(models, http_port=0, grpc_port=0) as server:
        asking = [threading.Thread(target=ask, args=(one, server.grpc_port)) for one in range(2)]
        for one in asking:
            one.start()
        for version in range(2, 22):
            put_version(tmp_path, "net", version, affine_model(version))
            models.reload()
        ended.set()
        for one in asking:
            one.join()
    assert not wrong
    assert all(answers)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_damaged_calls_are_the_clients_fault(count):
    """Changed bytes never are an internal error, and the server answers the next call."""
    seed = 11
    print("seed", seed)
    rng = np.random.default_rng(seed)
    message = MESSAGES["ModelInferRequest"](model_name="net", id="1")
    message.parameters["priority"].int64_param = 1
    for name in ("x", "y"):
        message.inputs.add(name=name, datatype="FP32", shape=[2, 3])
        message.raw_input_contents.append(np.ones((2, 3), np.float32).tobytes())
    message.outputs.add(name="z").parameters["classification"].int64_param = 2
    whole = np.frombuffer(message.SerializeToString(), np.uint8)
    codes = collections.Counter()
    with (
        serving({"net": sum_graph()}, grpc_port=0) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(count):
            data = whole.copy()
            for at in rng.integers(0, data.size, rng.integers(1, 4)):
                data[at] = rng.integers(0, 256)
            cut = rng.integers(1, data.size) if rng.random() < 0.2 else data.size
            try:
                call(data[:cut].tobytes(), timeout=20)
                codes["OK"] += 1
            except grpc.RpcError as error:
                codes[error.code().name] += 1
        assert MESSAGES["ModelInferResponse"].FromString(call(whole.tobytes())).outputs
    print(codes)
    assert codes.keys() <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert codes["INVALID_ARGUMENT"] > count // 4


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    files = {"certificate": str(certificate), "key": str(key)}
    with serving({"net": sum_graph()}, grpc_port=0, **files) as server:
        where = f"localhost:{server.grpc_port}"
        with tg.InferenceServerClient(where, ssl=True, root_certificates=certificate) as client:
            assert client.is_server_ready()
        with (
            tg.InferenceServerClient(where) as client,
            pytest.raises(InferenceServerException, match="UNAVAILABLE"),
        ):
            client.is_server_ready()
