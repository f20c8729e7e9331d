"""An unmodified tritonclient over HTTP gets the bits of Session.run."""

import asyncio

import ml_dtypes
import numpy as np
import pytest
from served import net_graph, same_graph, serving, sum_graph

http = pytest.importorskip("tritonclient.http")
aio = pytest.importorskip("tritonclient.http.aio")
utils = pytest.importorskip("tritonclient.utils")

DTYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@pytest.fixture(scope="module")
def server():
    graphs = {"sum": sum_graph(), "net": net_graph(), "texts": same_graph("string")}
    graphs |= {name: same_graph(np.dtype(dtype).name) for name, dtype in DTYPES.items()}
    graphs["BF16"] = same_graph("bfloat16")
    with serving(graphs) as server:
        yield server


@pytest.fixture
def client(server):
    with http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        yield client


def input_of(name, array, datatype=None, binary=True):
    tensor = http.InferInput(name, array.shape, datatype or utils.np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def samples(dtype):
    rng = np.random.default_rng(7)
    if dtype is np.bool_:
        return rng.integers(0, 2, 9).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        ends = [info.min, info.max, info.max // 3]
        return np.array([*ends, 0, 1], dtype)
    odd = [0.1, -0.0, np.inf, -np.inf, np.finfo(dtype).tiny, np.finfo(dtype).max]
    return np.array(odd, dtype)


def test_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("sum")
    assert client.is_model_ready("sum", "1")
    metadata = client.get_model_metadata("sum")
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [2, 3]}
    assert client.get_model_metadata("texts")["inputs"][0]["shape"] == [-1]
    assert client.get_model_config("sum")["input"][0]["data_type"] == "TYPE_FP32"
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert {row["name"] for row in client.get_model_repository_index()} >= {"sum", "net"}


FORMS = [
    (datatype, *form)
    for datatype in DTYPES
    for form in ([(1, 1)] if datatype == "FP16" else [(1, 1), (1, 0), (0, 1), (0, 0)])
]
"""Datatypes, and whether each is sent and asked for as binary data. FP16 has no other form."""


@pytest.mark.parametrize("datatype, binary_in, binary_out", FORMS)
def test_every_datatype_comes_back_bit_for_bit(client, datatype, binary_in, binary_out):
    x = samples(DTYPES[datatype])
    output = http.InferRequestedOutput("y", binary_data=bool(binary_out))
    given = input_of("x", x, binary=bool(binary_in))
    y = client.infer(datatype, [given], outputs=[output]).as_numpy("y")
    assert y.dtype == x.dtype and y.tobytes() == x.tobytes()


def test_bfloat16_comes_back_bit_for_bit(client):
    x = np.array([1.5, -2.0, 3e38, 0.0, np.inf], ml_dtypes.bfloat16)
    y = client.infer("BF16", [input_of("x", x, "BF16")]).as_numpy("y")
    assert np.array_equal(y.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_texts_come_back(client, binary_in, binary_out):
    texts = ["", "a", "Grüße, 世界", 'quote " and \\', "x" * 3000]
    x = np.array(texts, object)
    output = http.InferRequestedOutput("y", binary_data=binary_out)
    y = client.infer("texts", [input_of("x", x, "BYTES", binary_in)], outputs=[output])
    got = [one.decode() if isinstance(one, bytes) else one for one in y.as_numpy("y")]
    assert got == texts


def test_bytes_that_are_no_text_come_back(client):
    x = np.array([b"\xff\xd8\xff\xe0", b"\x00\x01"], object)
    y = client.infer("texts", [input_of("x", x, "BYTES")]).as_numpy("y")
    assert list(y) == list(x)


@pytest.mark.parametrize("asked", [None, "gzip", "deflate"])
@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
def test_results_are_those_of_the_session(server, client, sent, asked):
    image = np.random.default_rng(3).standard_normal((1, 12, 12, 3)).astype(np.float32)
    result = client.infer(
        "net",
        [input_of("image", image)],
        request_id="42",
        request_compression_algorithm=sent,
        response_compression_algorithm=asked,
    )
    expected = server.models["net"].session.run({"image": image})
    assert result.get_response()["id"] == "42"
    for name, array in expected.items():
        assert result.as_numpy(name).tobytes() == array.tobytes()


def test_classification(server, client):
    image = np.random.default_rng(4).standard_normal((1, 12, 12, 3)).astype(np.float32)
    output = http.InferRequestedOutput("logits", class_count=3)
    result = client.infer("net", [input_of("image", image)], outputs=[output]).as_numpy("logits")
    logits = server.models["net"].session.run({"image": image})["logits"][0]
    best = np.argsort(-logits)[:3]
    assert result.shape == (1, 3)
    assert [one.decode() for one in result[0]] == [f"{logits[k]:f}:{k}" for k in best]


def test_statistics_count_requests(client):
    def count():
        (row,) = client.get_inference_statistics("sum")["model_stats"]
        stats = row["inference_stats"]
        return stats["success"]["count"], stats["fail"]["count"]

    before = count()
    x = np.ones((2, 3), np.float32)
    client.infer("sum", [input_of("x", x), input_of("y", x)])
    with pytest.raises(utils.InferenceServerException, match="missing"):
        client.infer("sum", [input_of("x", x)])
    after = count()
    assert after == (before[0] + 1, before[1] + 1)


def test_async_client(server):
    async def many():
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        async with aio.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
            assert await client.is_server_ready()
            calls = [
                client.infer("sum", [input_of("x", x + k), input_of("y", x)]) for k in range(8)
            ]
            for k, result in enumerate(await asyncio.gather(*calls)):
                assert np.array_equal(result.as_numpy("z"), x + k + x)

    asyncio.run(many())
