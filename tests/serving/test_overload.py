"""Full queues, deadlines and drains: each request is refused, or answered, and never both."""

import asyncio
import gc
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from raw_http import Wire, get, json_request, outputs_of, tensor
from served import GatedModel, serving, sum_graph

pytest.importorskip("uvicorn")

import trireme  # noqa: E402
from trireme.serving.admission import PLACE_S, Admission, ServingLimits  # noqa: E402
from trireme.serving.errors import ServingError  # noqa: E402
from trireme.serving.models import FixedModels, SessionModel  # noqa: E402
from trireme.serving.protocol import InferRequest  # noqa: E402
from trireme.serving.service import InferenceService  # noqa: E402
from trireme.support.cancel import check_cancelled  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)
PAIR = [tensor("x", X, "FP32"), tensor("y", X, "FP32")]
PATH = "/v2/models/m/infer"
GOOD = json_request(PATH, PAIR)


def gated(limits, **options):
    return serving({"m": sum_graph()}, {"m": GatedModel}, limits=limits, **options)


def wait_for(condition, timeout_s=5):
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.002)


def ask_in_thread(pool, server, request=GOOD):
    def ask():
        with Wire(server, 30) as wire:
            return wire.ask(request)

    return pool.submit(ask)


def test_limits_are_checked():
    with pytest.raises(trireme.RunError, match="max_queue is -1, expected 0 or more"):
        ServingLimits(max_queue=-1)
    with pytest.raises(trireme.RunError, match="grace_s is nan"):
        ServingLimits(grace_s=float("nan"))


def test_a_full_queue_refuses_at_once():
    with gated(ServingLimits(max_queue=2)) as server, ThreadPoolExecutor(8) as pool:
        model = server.models["m"]
        under_way = [ask_in_thread(pool, server) for _ in range(3)]
        wait_for(lambda: server.service.depth("m") == (2, 1))
        with Wire(server) as wire:
            for _ in range(5):
                began = time.perf_counter()
                answer = wire.ask(GOOD)
                assert time.perf_counter() - began < 0.5  # 0.05 when the machine is quiet
                assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1
                assert "2 requests wait" in answer.error
            assert wire.ask(get("/v2/health/ready")).status == 200
            model.gate.set()
            assert all(one.result().status == 200 for one in under_way)
            assert wire.ask(GOOD).status == 200
        assert model.ended == 4


def test_the_bytes_of_inputs_are_bounded():
    with gated(ServingLimits(max_queue_bytes=100)) as server, ThreadPoolExecutor(8) as pool:
        under_way = [ask_in_thread(pool, server) for _ in range(2)]  # 48 bytes each
        wait_for(lambda: sum(server.service.depth("m")) == 2)
        with Wire(server) as wire:
            answer = wire.ask(GOOD)
            assert answer.status == 429 and "memory" in answer.error
        server.models["m"].gate.set()
        assert all(one.result().status == 200 for one in under_way)


def test_a_deadline_in_the_queue_fires_at_its_time_and_nothing_runs():
    with gated(ServingLimits()) as server, ThreadPoolExecutor(8) as pool:
        model = server.models["m"]
        first = ask_in_thread(pool, server)
        assert model.begun.acquire(timeout=5)
        late = json_request(PATH, PAIR, parameters={"timeout": 150_000})
        with Wire(server) as wire:
            began = time.perf_counter()
            answer = wire.ask(late)
            took_s = time.perf_counter() - began
        assert answer.status == 504 and "0.15 s" in answer.error and 0.149 < took_s < 1
        model.gate.set()
        assert first.result().status == 200
        assert not model.begun.acquire(timeout=0.05) and model.ended == 1


def test_a_deadline_in_a_run_is_answered_at_its_time():
    with gated(ServingLimits()) as server:
        late = json_request(PATH, PAIR, parameters={"timeout": 100_000})
        with Wire(server) as wire:
            began = time.perf_counter()
            answer = wire.ask(late)
            assert answer.status == 504 and 0.099 < time.perf_counter() - began < 1
            server.models["m"].gate.set()
            assert wire.ask(GOOD).status == 200


def test_a_deadline_stops_a_run_between_its_tasks():
    with trireme.Session(sum_graph()) as session:
        model = SessionModel("m", session)
        stopped = threading.Event()

        def run(feeds, timeout_s=None):
            from trireme.support.cancel import check_cancelled

            try:
                for _ in range(200):
                    time.sleep(0.01)
                    check_cancelled()
            except trireme.TriremeError:
                stopped.set()
                raise

        model.run = run
        service = InferenceService(FixedModels([model]))
        request = InferRequest("m", inputs={"x": X, "y": X}, timeout_s=0.05)
        with pytest.raises(ServingError) as caught:
            asyncio.run(service.infer(request))
        assert caught.value.kind == "deadline"
        assert stopped.wait(1)
        service.close()


@pytest.mark.parametrize("end", ["answered", "failed", "late while it runs", "late in the queue"])
def test_a_request_that_ended_holds_no_memory(end):
    """Its arrays go with the last reference to them: a cycle would keep them until a collection."""
    with trireme.Session(sum_graph()) as session:
        model = SessionModel("m", session)
        model.concurrency = 1
        service = InferenceService(FixedModels([model]))
        released = threading.Event()
        run = model.run

        def run_as_told(feeds, timeout_s=None):
            if end == "failed":
                raise trireme.RunError("told to fail")
            if end.startswith("late"):
                released.wait(5)
                check_cancelled()
            return run(feeds, timeout_s)

        model.run = run_as_told

        async def ask():
            x = X.copy()
            request = InferRequest("m", inputs={"x": x, "y": x}, timeout_s=0.05)
            ask = [service.infer(request) for _ in range(1 + (end == "late in the queue"))]
            await asyncio.gather(*ask, return_exceptions=True)
            released.set()
            return weakref.ref(x)

        asyncio.run(ask())  # the first makes what stays
        gc.collect()
        gc.disable()
        try:
            released.clear()
            kept = asyncio.run(ask())
            wait_for(lambda: kept() is None)
        finally:
            gc.enable()
        service.close()


def test_requests_run_in_order_of_priority_then_arrival():
    with trireme.Session(sum_graph()) as session:
        model = GatedModel("m", session)
        order, admission = [], Admission(ServingLimits())
        calls = [admission.submit(model, model.gate.wait, 0)]
        for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 1), ("e", 5), ("f", 200)]:
            calls.append(admission.submit(model, lambda name=name: order.append(name), 0, priority))
        model.gate.set()
        for call in calls:
            call.future.result(5)
        assert "".join(order) == "dbeacf"
        assert admission.wait_idle(5) and admission.count == 0
        admission.close()


def test_a_model_of_a_session_runs_as_many_calls_as_the_session():
    with trireme.Session(sum_graph(), threads=1, contexts=3) as session:
        model = SessionModel("m", session)
        service = InferenceService(FixedModels([model]))
        assert service.model_config("m")["instance_group"] == [{"name": "m", "count": 3}]
        service.close()


@pytest.mark.parametrize("seed", range(4))
def test_no_call_is_both_refused_and_run(seed):
    """Threads submit and withdraw at random; every call is run, withdrawn or refused."""
    print("seed", seed)
    rng = np.random.default_rng(seed)
    with trireme.Session(sum_graph()) as session:
        model = GatedModel("m", session, concurrency=int(rng.integers(1, 4)))
        admission = Admission(ServingLimits(max_queue=5))
        ran, ends = set(), []
        lock = threading.Lock()

        def client(number):
            mine = np.random.default_rng((seed, number))
            mine_s = mine.exponential(0.0005, 60)
            for k in range(60):
                key = number, k

                def run(key=key, pause_s=mine_s[k]):
                    time.sleep(pause_s)
                    with lock:
                        assert key not in ran
                        ran.add(key)

                try:
                    call = admission.submit(model, run, 1, int(mine.integers(0, 3)))
                except ServingError:
                    ends.append((key, "refused"))
                    continue
                if mine.random() < 0.3 and admission.withdraw(call):
                    ends.append((key, "withdrawn"))
                    continue
                call.future.result(10)
                ends.append((key, "ran"))

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(client, range(6)))
        assert len(ends) == 360 and {key for key, how in ends if how == "ran"} == ran
        assert {how for _, how in ends} >= {"ran"}
        assert admission.wait_idle(5) and admission.depth("m") == (0, 0)
        admission.close()


def test_a_drain_under_load_loses_nothing_that_was_accepted():
    """Clients see answers, then 503 or no connection; each accepted request is answered."""
    with gated(ServingLimits()) as server, ThreadPoolExecutor(16) as pool:
        model = server.models["m"]
        under_way = [ask_in_thread(pool, server) for _ in range(10)]
        wait_for(lambda: sum(server.service.depth("m")) == 10)
        stopping = pool.submit(server.stop)
        wait_for(lambda: server.service.is_draining)
        with Wire(server) as wire:
            assert wire.ask(get("/v2/health/ready")).status == 503
            assert wire.ask(get("/v2/health/live")).status == 200
            assert wire.ask(get("/v2/models/m/ready")).status == 503
            answer = wire.ask(GOOD)
            assert answer.status == 503 and "shutting down" in answer.error
        model.gate.set()
        for one in under_way:
            answer = one.result()
            assert answer.status == 200 and np.array_equal(outputs_of(answer)["z"], X + X)
        stopping.result(15)
        assert model.ended == 10
        with pytest.raises(ConnectionRefusedError):
            Wire(server)


def test_a_drain_ends_after_its_grace():
    with gated(ServingLimits(grace_s=0.3)) as server, ThreadPoolExecutor(2) as pool:
        stuck = ask_in_thread(pool, server)
        assert server.models["m"].begun.acquire(timeout=5)
        began = time.perf_counter()
        server.stop()
        assert 0.29 < time.perf_counter() - began < 6
        answer = stuck.result()
        assert answer.status == 503 and "grace is 0.3 s" in answer.error
        server.models["m"].gate.set()


def test_an_overload_refuses_the_rest_and_serves_what_it_can():
    """32 clients at once against a queue of 4: answers are 200 or 429, and counts agree."""
    with gated(ServingLimits(max_queue=4)) as server:
        server.models["m"].gate.set()

        def client(_):
            with Wire(server, 30) as wire:
                return [wire.ask(GOOD).status for _ in range(40)]

        with ThreadPoolExecutor(32) as pool:
            statuses = [one for many in pool.map(client, range(32)) for one in many]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) == server.models["m"].ended > 40
        stats = server.service.model_statistics("m")["model_stats"][0]["inference_stats"]
        assert stats["success"]["count"] == statuses.count(200)
        assert stats["fail"]["count"] == statuses.count(429)
        assert server.service.statistics.recent("m", "1")["refused"] == statuses.count(429)


def test_requests_whose_bodies_are_on_their_way_have_places():
    """So bodies that come at once wait for each other within the limit; slow ones lose theirs."""
    head, end, body = GOOD.partition(b"\r\n\r\n")
    with (
        gated(ServingLimits(max_queue=2)) as server,
        ThreadPoolExecutor(2) as pool,
        ExitStack() as held,
    ):
        at = server.host, server.http_port
        halves = [held.enter_context(socket.create_connection(at)) for _ in range(3)]
        for one in halves:
            one.sendall(head + end + body[:5])
        reserved = server.service._admission._lanes
        wait_for(lambda: [len(lane.reserved) for lane in reserved.values()] == [3])
        with Wire(server) as wire:
            answer = wire.ask(GOOD)
            assert answer.status == 429 and "2 requests wait" in answer.error
        time.sleep(PLACE_S + 0.1)
        answered = ask_in_thread(pool, server)
        server.models["m"].gate.set()
        assert answered.result().status == 200
        for one in halves:
            one.sendall(body[5:])
            assert one.recv(100).startswith(b"HTTP/1.1 200")
        wait_for(lambda: not reserved)
