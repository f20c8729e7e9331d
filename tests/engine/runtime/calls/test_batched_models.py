"""Which models run in batches, with what answers, and when batches pay."""

import concurrent.futures
import random
import time

import numpy as np
import onnxruntime
import pytest
from ort_models import PLACES, SEED, WORDS, bert

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

WAIT_S = 20
OPEN = TensorType(("n", "s"), "float32")


def test_inputs_of_two_batches_are_refused():
    b = GraphBuilder("two")
    x, z = b.input("x", OPEN), b.input("z", TensorType(("m", "s"), "float32"))
    graph = b.finish(b.add("neg", x, names=["y"]), b.add("neg", z, names=["w"]))
    with Session(graph) as session, pytest.raises(RunError, match="do not share one open first"):
        Batcher(session, 4)


def test_states_are_refused():
    b = GraphBuilder("counts")
    x, past = b.input("x", OPEN), b.input("past", TensorType((1,), "float32"))
    graph = b.finish(b.add("neg", x, names=["y"]), b.add("add", past, past, names=["present"]))
    with (
        Session(graph, states={"past": "present"}) as session,
        pytest.raises(RunError, match="share the states"),
    ):
        Batcher(session, 4)


def test_sentences_of_mixed_lengths_get_the_answers_of_onnx_runtime():
    """Single requests in batches by length, against single runs of ONNX Runtime."""
    model = bert(is_open=True).SerializeToString()
    peer = onnxruntime.InferenceSession(model)
    rng = np.random.default_rng(SEED)
    sentences = []
    for _ in range(40):
        ids = rng.integers(0, WORDS, (1, int(rng.choice([4, 7, PLACES]))))
        sentences.append({"ids": ids, "mask": (rng.random(ids.shape) < 0.9).astype(np.int64)})
        sentences[-1]["mask"][:, 0] = 1
    with Session(model) as session:
        probe = {"ids": rng.integers(0, WORDS, (2, 5)), "mask": np.ones((2, 5), np.int64)}
        with Batcher(session, 8, max_queue_delay_us=2000, probe=probe) as batcher:
            requests = [batcher.submit(one) for one in sentences]
            for one, request in zip(sentences, requests, strict=True):
                (y,) = request.result(WAIT_S).values()
                np.testing.assert_allclose(y, peer.run(None, one)[0], rtol=1e-4, atol=1e-4)
            assert max(batcher.statistics.batches) > 1


def dense():
    """Products with weights of 32 MiB, which one row reads for little work."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("dense")
    x = b.input("x", TensorType(("n", 1024), "float32"))
    for k in range(8):
        w = b.constant(f"w{k}", rng.standard_normal((1024, 1024)).astype(np.float32) / 32)
        x = b.add("relu", b.add("matmul", x, w))
    return b.finish(b.add("neg", x, names=["y"]))


@pytest.mark.timed
def test_batches_pay_where_weights_are_large():
    """Closed loops of 16 clients in turns, with batches and without."""
    feeds = {"x": np.random.default_rng(4).standard_normal((1, 1024)).astype(np.float32)}

    def rate(call):
        until = time.monotonic() + 0.5

        def client(_):
            done = 0
            while time.monotonic() < until:
                call(feeds)
                done += 1
            return done

        with concurrent.futures.ThreadPoolExecutor(16) as clients:
            return sum(clients.map(client, range(16)))

    with Session(dense()) as session, Batcher(session, 16) as batcher:
        for rows in range(1, 17):
            session.run({"x": np.repeat(feeds["x"], rows, 0)})
        pairs = [(rate(session.run), rate(batcher.run)) for _ in range(5)]
        ratio = np.median([with_ / without for without, with_ in pairs])
        print(f"ratio {ratio:.2f}", batcher.statistics.batches)
        assert ratio >= 1.3


@pytest.mark.timed
def test_nobody_waits_longer_than_the_delay_and_a_service():
    rng = random.Random(5)
    reports = []
    with (
        Session(dense()) as session,
        Batcher(session, 16, max_queue_delay_us=5000, on_batch=reports.append) as batcher,
    ):
        requests = []
        for _ in range(200):
            requests.append(batcher.submit({"x": np.ones((1, 1024), np.float32)}))
            time.sleep(rng.expovariate(1 / 0.002))
        concurrent.futures.wait(requests, WAIT_S)
    service_s = max(one.run_s for one in reports)
    assert max(max(one.queue_s) for one in reports) < 0.005 + service_s + 0.010
    assert any(one.requests > 1 for one in reports)
