"""An unmodified tritonclient over gRPC gets the bits of Session.run, as over HTTP."""

import asyncio
import queue
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from served import GatedModel, net_graph, same_graph, serving, sum_graph

from trireme.serving.errors import CODES, ServingError

pytest.importorskip("tritonclient.grpc", reason="needs tritonclient")

import grpc  # noqa: E402
import tritonclient.grpc as tg  # noqa: E402
import tritonclient.grpc.aio as tga  # noqa: E402
import tritonclient.http as th  # noqa: E402
from grpc_calls import input_of  # noqa: E402
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

from trireme.serving.grpc_messages import MESSAGES  # noqa: E402
from trireme.serving.grpc_server import SERVICE  # noqa: E402

NAMES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]
DTYPES = {np_to_triton_dtype(np.dtype(name)): np.dtype(name).type for name in NAMES}
LISTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint"),
    **{name: name.lower() for name in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")},
}


@pytest.fixture(scope="module")
def server():
    graphs = {"sum": sum_graph(), "net": net_graph(), "texts": same_graph("string")}
    graphs |= {name: same_graph(np.dtype(dtype).name) for name, dtype in DTYPES.items()}
    graphs["BF16"] = same_graph("bfloat16")
    graphs["gated"] = same_graph("float32")
    with serving(graphs, {"gated": GatedModel}, grpc_port=0) as server:
        yield server


@pytest.fixture
def client(server):
    with tg.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        yield channel


def image(seed=3):
    return np.random.default_rng(seed).standard_normal((1, 12, 12, 3)).astype(np.float32)


def samples(dtype):
    rng = np.random.default_rng(7)
    if dtype is np.bool_:
        return rng.integers(0, 2, 9).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, info.max // 3, 0, 1], dtype)
    return np.array([0.1, -0.0, np.inf, np.nan, np.finfo(dtype).tiny, np.finfo(dtype).max], dtype)


def same_bits(one, other):
    assert one.dtype == other.dtype and one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def call(channel, method, request, answer, timeout=10):
    """Call a method with a message, or with bytes."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    made = channel.unary_unary(f"/{SERVICE}/{method}")
    return MESSAGES[answer].FromString(made(data, timeout=timeout))


def infer_message(name="sum", **fields):
    return MESSAGES["ModelInferRequest"](model_name=name, **fields)


def typed_message(name, datatype, array, values=None):
    message = infer_message(name)
    tensor = message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    listed = array.reshape(-1).tolist() if values is None else values
    getattr(tensor.contents, f"{LISTS[datatype]}_contents").extend(listed)
    return message


@contextmanager
def refused(code, words=None):
    with pytest.raises(grpc.RpcError, match=words) as caught:
        yield
    assert caught.value.code() == code


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("sum") and client.is_model_ready("sum", "1")
    found = client.get_model_metadata("texts", as_json=True)
    assert found["inputs"] == [{"name": "x", "datatype": "BYTES", "shape": ["-1"]}]
    config = client.get_model_config("sum").config
    assert [tuple(one.dims) for one in config.input] == [(2, 3), (2, 3)]
    assert config.input[0].data_type == 11
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    rows = {row.name: row.state for row in client.get_model_repository_index().models}
    assert rows["net"] == "READY"


def test_metadata_is_that_of_http(client, server):
    with th.InferenceServerClient(f"127.0.0.1:{server.http_port}") as other:
        mine = client.get_model_metadata("net", as_json=True)
        for tensor in mine["inputs"] + mine["outputs"]:
            tensor["shape"] = [int(dim) for dim in tensor["shape"]]
        assert mine == other.get_model_metadata("net")


def test_results_are_the_bits_of_a_run_and_of_http(client, server):
    feeds = {"image": image()}
    wanted = server.models["net"].session.run(feeds)
    result = client.infer("net", [input_of("image", feeds["image"])], request_id="7")
    with th.InferenceServerClient(f"127.0.0.1:{server.http_port}") as other:
        tensor = th.InferInput("image", [1, 12, 12, 3], "FP32")
        tensor.set_data_from_numpy(feeds["image"])
        beside = other.infer("net", [tensor])
    for name, array in wanted.items():
        same_bits(result.as_numpy(name), array)
        same_bits(beside.as_numpy(name), array)
    assert result.get_response().id == "7" and result.get_response().model_version == "1"


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_raw(client, datatype):
    array = samples(DTYPES[datatype])
    same_bits(client.infer(datatype, [input_of("x", array)]).as_numpy("y"), array)


@pytest.mark.parametrize("datatype", [one for one in DTYPES if one != "FP16"])
def test_every_datatype_typed(channel, datatype):
    array = samples(DTYPES[datatype])
    answer = call(
        channel, "ModelInfer", typed_message(datatype, datatype, array), "ModelInferResponse"
    )
    assert not answer.raw_output_contents
    found = getattr(answer.outputs[0].contents, f"{LISTS[datatype]}_contents")
    same_bits(np.array(found, DTYPES[datatype]), array)


def test_bfloat16(client):
    array = np.array([1.5, -2, 3e38], ml_dtypes.bfloat16)
    tensor = tg.InferInput("x", array.shape, "BF16")
    tensor._raw_content = array.tobytes()
    answer = client.infer("BF16", [tensor]).get_response()
    assert answer.outputs[0].datatype == "BF16"
    assert answer.raw_output_contents[0] == array.tobytes()


def test_texts(client, channel):
    array = np.array(["", "a\0b", "größe", "x" * 1000], object)
    found = client.infer("texts", [input_of("x", array)]).as_numpy("y")
    assert [one.decode() for one in found] == list(array)
    message = typed_message("texts", "BYTES", array, [one.encode() for one in array])
    answer = call(channel, "ModelInfer", message, "ModelInferResponse")
    assert [one.decode() for one in answer.outputs[0].contents.bytes_contents] == list(array)


def test_requested_outputs_and_classes(client, server):
    wanted = server.models["net"].session.run({"image": image()})["logits"][0]
    asked = [tg.InferRequestedOutput("logits", class_count=2)]
    found = client.infer("net", [input_of("image", image())], outputs=asked)
    best = [one.decode().split(":")[:2] for one in found.as_numpy("logits").reshape(-1)]
    order = np.argsort(-wanted, kind="stable")[:2]
    assert [int(index) for _, index in best] == list(order)
    assert found.as_numpy("features") is None


def test_a_large_message(server, client):
    array = np.arange(6 << 20, dtype=np.float32)
    found = client.infer("FP32", [input_of("x", array)]).as_numpy("y")
    same_bits(found, array)
    too_large = np.zeros((server.service.limits.max_body_bytes >> 2) + (1 << 19), np.float32)
    with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
        client.infer("FP32", [input_of("x", too_large)])


def test_aio(server):
    async def ask():
        async with tga.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
            assert await client.is_server_ready()
            many = [client.infer("net", [input_of("image", image(one))]) for one in range(8)]
            return await asyncio.gather(*many)

    for seed, result in enumerate(asyncio.run(ask())):
        wanted = server.models["net"].session.run({"image": image(seed)})
        same_bits(result.as_numpy("logits"), wanted["logits"])


def test_callbacks(client, server):
    done = queue.Queue()
    for seed in range(4):
        client.async_infer(
            "net", [input_of("image", image(seed))], lambda result, error: done.put((result, error))
        )
    found = [done.get(timeout=20) for _ in range(4)]
    assert all(error is None for _, error in found)


def test_a_stream_answers_in_order(client, server):
    done = queue.Queue()
    client.start_stream(lambda result, error: done.put((result, error)))
    for seed in range(40):
        client.async_stream_infer(
            "net",
            [input_of("image", image(seed))],
            request_id=str(seed),
            enable_empty_final_response=True,
        )
    client.async_stream_infer("none", [input_of("image", image())])
    for seed in range(40):
        result, error = done.get(timeout=20)
        assert error is None
        answer = result.get_response()
        assert answer.id == str(seed) and answer.parameters["triton_final_response"].bool_param
        wanted = server.models["net"].session.run({"image": image(seed)})
        same_bits(result.as_numpy("logits"), wanted["logits"])
    assert "there is no model 'none'" in str(done.get(timeout=20)[1])
    client.stop_stream()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"name": "z"}, "no input 'z'"),
        ({"datatype": "INT32"}, "input 'x': datatype INT32, expected FP32"),
        ({"datatype": "FP31"}, r"inputs\[0\].datatype"),
        ({"shape": [3, 2]}, r"shape \[3, 2\], expected \[2,3\]"),
        ({"shape": [-1, 6]}, r"inputs\[0\].shape: a size is no whole number"),
        ({"shape": [1 << 40, 1 << 40]}, "more elements than memory"),
        ({"raw": b"short"}, "5 bytes, expected 24"),
        ({"more": b""}, "raw_input_contents: 3 tensors, expected 2"),
    ],
)
def test_wrong_requests_name_the_field(channel, change, words):
    message = infer_message()
    for name in "xy":
        fields = {"name": name, "datatype": "FP32", "shape": [2, 3]}
        mine = change if name == "x" else {}
        message.inputs.add(**fields | {k: v for k, v in mine.items() if k in fields})
        message.raw_input_contents.append(mine.get("raw", bytes(24)))
    if "more" in change:
        message.raw_input_contents.append(change["more"])
    with refused(grpc.StatusCode.INVALID_ARGUMENT, words):
        call(channel, "ModelInfer", message, "ModelInferResponse")


@pytest.mark.parametrize(
    "datatype, values, words",
    [
        ("INT8", [128], "outside the range of INT8"),
        ("UINT16", [1 << 16], "outside the range of UINT16"),
        ("INT32", [1, 2], "2 elements, expected 1"),
    ],
)
def test_wrong_typed_contents(channel, datatype, values, words):
    message = typed_message(datatype, datatype, np.zeros(1), values)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, words):
        call(channel, "ModelInfer", message, "ModelInferResponse")


def test_typed_contents_in_the_wrong_list(channel):
    message = typed_message("FP32", "INT32", np.zeros(1), [1])
    message.inputs[0].datatype = "FP32"
    with refused(
        grpc.StatusCode.INVALID_ARGUMENT, "FP32 is held by fp32_contents, not by int_contents"
    ):
        call(channel, "ModelInfer", message, "ModelInferResponse")


def test_damaged_messages_and_odd_methods(channel):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "holds no ModelInferRequest"):
        call(channel, "ModelInfer", b"\xff\xff\xff", "ModelInferResponse")
    with refused(grpc.StatusCode.UNIMPLEMENTED):
        call(channel, "SystemSharedMemoryStatus", b"", "ModelInferResponse")


def test_unknown_models(client):
    assert not client.is_model_ready("none") and not client.is_model_ready("sum", "7")
    for ask in (client.get_model_metadata, client.get_model_config):
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            ask("none")
    with pytest.raises(InferenceServerException, match="NOT_FOUND"):
        client.infer("none", [input_of("x", np.zeros(1, np.float32))])


def test_shared_memory_is_refused(client):
    tensor = tg.InferInput("x", [1], "FP32")
    tensor.set_shared_memory("region", 4)
    with pytest.raises(InferenceServerException, match="INVALID_ARGUMENT.*no shared memory"):
        client.infer("FP32", [tensor])


def test_statistics(client):
    def count():
        rows = client.get_inference_statistics("sum").model_stats
        return rows[0].inference_stats.success.count

    before = count()
    arrays = [input_of(name, np.ones((2, 3), np.float32)) for name in "xy"]
    client.infer("sum", arrays)
    assert count() == before + 1
    assert {row.name for row in client.get_inference_statistics().model_stats} >= {"sum", "net"}


def test_health_service(channel, server):
    """Messages by hand: field 1 of HealthCheckRequest is the service, of the response a status."""
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"") == b"\x08\x01"
    assert check(b"\x0a" + bytes([len(SERVICE)]) + SERVICE.encode()) == b"\x08\x01"
    with refused(grpc.StatusCode.NOT_FOUND):
        check(b"\x0a\x01x")
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"\x0a\x01x")
    assert next(watch) == b"\x08\x03"
    watch.cancel()


def test_errors_of_the_service_have_codes():
    """Every kind of ServingError has a status code that grpcio knows."""
    for kind in CODES:
        assert hasattr(grpc.StatusCode, ServingError(kind, "x").code.grpc)
