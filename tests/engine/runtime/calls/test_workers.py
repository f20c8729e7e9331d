"""Worker threads of requests outlive what they run: no request is lost with a thread."""

import sys
import threading
import time

import numpy as np
import pytest
from faults import Fault, inject
from opencl import need_opencl

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.calls.workers import RequestRunner
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.support.errors import FaultKind

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
WAIT_S = 10


def graph(rows=4):
    b = GraphBuilder("net")
    return b.finish(b.add("tanh", b.input("x", TensorType((rows, 3), "float32")), names=["y"]))


def leave(_):
    sys.exit("a callback that ends its thread")


def test_a_callback_that_exits_costs_no_request():
    runner, gate = RequestRunner(8), threading.Event()
    first = runner.submit(lambda: {"n": gate.wait(WAIT_S)}, {}, None, 0)
    first.add_done_callback(leave)
    others = [runner.submit(lambda n=n: {"n": n}, {}, None, 0) for n in range(4)]
    gate.set()
    assert first.result(WAIT_S) == {"n": True}
    assert [request.result(WAIT_S)["n"] for request in others] == list(range(4))
    runner.close()


def test_a_callback_that_exits_costs_no_batch_mate():
    with (
        Session(graph("n")) as session,
        Batcher(session, 4, max_queue_delay_us=20000) as batcher,
    ):
        requests = [batcher.submit({"x": X[:1]}) for _ in range(8)]
        for request in requests:
            request.add_done_callback(leave)
        for request in requests:
            np.testing.assert_allclose(request.result(WAIT_S)["y"], np.tanh(X[:1]), rtol=1e-5)
        assert batcher.run({"x": X[:1]}, timeout_s=WAIT_S)["y"].shape == (1, 3)


def test_a_worker_that_is_interrupted_is_back_within_100_ms(caplog):
    """The queue itself fails under the worker: the thread goes on with what waits."""
    runner = RequestRunner(8)
    assert runner.submit(lambda: {"n": 0}, {}, None, 0).result(WAIT_S) == {"n": 0}
    pop, died = runner.queue.pop, []

    def failing_pop(*args):
        if not died:
            died.append(time.monotonic())
            raise SystemExit
        return pop(*args)

    runner.queue.pop = failing_pop
    request = runner.submit(lambda: {"n": 1}, {}, None, 0)
    assert request.result(WAIT_S) == {"n": 1}
    assert time.monotonic() - died[0] < 0.1
    assert "goes on" in caplog.text
    runner.close()


@pytest.mark.parametrize("kind", [None, FaultKind.CHECKSUM])
def test_a_fault_on_a_worker_fails_over_once(kind):
    need_opencl()
    with (
        inject(Fault("cpu", "launch", 2, kind)),
        Session(graph(), devices=["cpu", "opencl"], fallback=True) as session,
    ):
        requests = [session.run_async({"x": X}) for _ in range(6)]
        for request in requests:
            np.testing.assert_allclose(request.result(WAIT_S)["y"], np.tanh(X), rtol=1e-5)
        assert [event.action for event in session.events] == ["ran again"]
