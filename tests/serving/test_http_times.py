"""Times that are promised of HTTP: refusals, deadlines, goodput, small requests. Quiet machine."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from raw_http import Wire, binary_request, json_request, post
from served import GatedModel, serving, sum_graph
from wrong_bodies import PAIR, WRONG, X

uvicorn = pytest.importorskip("uvicorn")

from trireme.serving.admission import ServingLimits  # noqa: E402
from trireme.serving.models import SessionModel  # noqa: E402

pytestmark = pytest.mark.timed
SUM = "/v2/models/sum/infer"
GOOD = json_request(SUM, PAIR)


class Timed(SessionModel):
    """A model that takes 5 ms without the cpu: 200 requests a second."""

    def run(self, feeds, timeout_s=None):
        time.sleep(0.005)
        return super().run(feeds, timeout_s)


def test_a_wrong_request_is_refused_within_100_ms():
    with serving({"sum": sum_graph()}) as server:
        for body, _ in WRONG.values():
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            with Wire(server) as wire:
                began = time.perf_counter()
                assert wire.ask(post(SUM, body)).status == 400
                assert time.perf_counter() - began < 0.1


def test_a_full_queue_refuses_within_50_ms():
    limits = ServingLimits(max_queue=4)
    with serving({"sum": sum_graph()}, {"sum": GatedModel}, limits=limits) as server:
        waiting = [Wire(server, 30) for _ in range(5)]
        for wire in waiting:
            wire.send(GOOD)
        while sum(server.service.depth("sum")) < 5:
            time.sleep(0.001)
        with Wire(server) as wire:
            for _ in range(200):
                began = time.perf_counter()
                assert wire.ask(GOOD).status == 429
                assert time.perf_counter() - began < 0.05
        server.models["sum"].gate.set()
        for wire in waiting:
            assert wire.answer().status == 200
            wire.socket.close()


def test_a_deadline_fires_within_10_ms():
    with serving({"sum": sum_graph()}, {"sum": GatedModel}) as server, Wire(server) as wire:
        first = Wire(server, 30).send(GOOD)
        for timeout_us in (50_000, 100_000, 200_000):
            began = time.perf_counter()
            late = json_request(SUM, PAIR, parameters={"timeout": timeout_us})
            assert wire.ask(late).status == 504
            assert abs(time.perf_counter() - began - timeout_us / 1e6) < 0.01
        server.models["sum"].gate.set()
        assert first.answer().status == 200


def test_goodput_at_three_times_the_capacity():
    """Open loop: 600 requests a second for 200 a second that can be served."""
    limits = ServingLimits(max_queue=20)
    with serving({"sum": sum_graph()}, {"sum": Timed}, limits=limits) as server:
        with Wire(server) as wire:
            began = time.perf_counter()
            for _ in range(100):
                assert wire.ask(GOOD).status == 200
            capacity = 100 / (time.perf_counter() - began)
        answers = []

        def ask(wires, due_s):
            wire = wires.pop()
            time.sleep(max(0.0, due_s - time.perf_counter()))
            began = time.perf_counter()
            answer = wire.ask(GOOD)
            answers.append((answer.status, time.perf_counter() - began))
            wires.append(wire)

        with ThreadPoolExecutor(64) as pool:
            wires = [Wire(server, 30) for _ in range(64)]
            start = time.perf_counter() + 0.1
            list(pool.map(lambda k: ask(wires, start + k / (3 * capacity)), range(1800)))
            spent_s = time.perf_counter() - start
            for wire in wires:
                wire.socket.close()
        good = sorted(took_s for status, took_s in answers if status == 200)
        assert {status for status, _ in answers} <= {200, 429}
        print(f"capacity {capacity:.0f}/s, goodput {len(good) / spent_s:.0f}/s")
        print(f"p99 of the admitted {good[len(good) * 99 // 100] * 1e3:.0f} ms")
        assert len(good) / spent_s >= 0.9 * capacity
        assert good[len(good) * 99 // 100] <= (20 + 2) / capacity * 1.5


def test_a_small_request_beside_a_bare_application():
    """Interleaved: the server's request takes less than 1 ms more than an empty handler's."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def echo(request):
        await request.body()
        return Response(bytes(200))

    bare = Starlette(routes=[Route(SUM, echo, methods=["POST"])])
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(8)
    config = uvicorn.Config(bare, log_config=None, access_log=False, lifespan="off")
    other = uvicorn.Server(config)

    def serve():
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(other._serve([listening]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    class Place:
        http_port = listening.getsockname()[1]

    request = binary_request(SUM, {"x": X, "y": X})
    with serving({"sum": sum_graph()}) as server, Wire(server) as ours, Wire(Place) as bare_wire:
        times = {ours: [], bare_wire: []}
        for _ in range(1500):
            for wire, mine in times.items():
                began = time.perf_counter()
                assert wire.ask(request).status == 200
                mine.append(time.perf_counter() - began)
    other.should_exit = True
    thread.join(10)
    ours_s, bare_s = (sorted(one)[len(one) // 2] for one in times.values())
    print(f"p50 {ours_s * 1e3:.2f} ms, bare {bare_s * 1e3:.2f} ms")
    assert ours_s < bare_s + 0.001
