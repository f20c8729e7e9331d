"""A model on a cluster of Ray: two nodes that are simulated on this machine."""

import asyncio
import os
import threading

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")
pytest.importorskip("ray.data")

import trireme  # noqa: E402
from trireme.ir.builder import GraphBuilder  # noqa: E402
from trireme.ir.graph import TensorType  # noqa: E402

pytestmark = pytest.mark.slow
SEED = 4


def graph(rows="n"):
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("scores")
    x = b.input("x", TensorType((rows, 64), "float32"))
    for layer in range(3):
        w = b.constant(f"w{layer}", rng.standard_normal((64, 64)).astype("f4") / 8)
        x = b.add("relu", b.add("matmul", x, w))
    return b.finish(b.add("identity", x, names=["y"]))


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 2, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    from ray import serve

    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def on_ray(cluster):
    from trireme.serving import on_ray

    return on_ray


@pytest.fixture(scope="module")
def answers():
    with trireme.Session(graph(), threads=1) as session:
        yield lambda x: session.run({"x": x})["y"]


def rows(number, count=1):
    return np.random.default_rng([SEED, number]).standard_normal((count, 64)).astype("f4")


def test_actors_answer_as_a_session_does_and_come_back(on_ray, answers):
    model = on_ray.put(graph())
    actors = ray.remote(num_cpus=0.5, max_restarts=1, max_task_retries=2)(on_ray.Replica)
    replicas = [
        actors.options(scheduling_strategy="SPREAD").remote(model, threads=1) for _ in range(2)
    ]
    facts = ray.get([replica.describe.remote() for replica in replicas])
    assert len({one["node"] for one in facts}) == 2
    assert facts[0]["inputs"] == {"x": "float32[n,64]"}
    for number, replica in enumerate(replicas):
        made = ray.get(replica.run.remote({"x": rows(number, 3)}))
        np.testing.assert_array_equal(made["y"], answers(rows(number, 3)))
    ray.kill(replicas[0], no_restart=False)
    made = ray.get(replicas[0].run.remote({"x": rows(7)}))
    np.testing.assert_array_equal(made["y"], answers(rows(7)))
    assert ray.get(replicas[0].describe.remote())["process"] != facts[0]["process"]
    with pytest.raises(trireme.RunError, match="x"):
        ray.get(replicas[1].run.remote({"z": rows(0)}))
    for replica in replicas:
        ray.kill(replica)


def test_weights_are_read_in_the_store(on_ray):
    """The arrays of a session's graph lie in the memory of the object, not in copies of it."""
    model = on_ray.put(graph())
    raw = ray.get(model.reference)
    made = on_ray._graph(model)
    weights = [value.data for value in made.values.values() if value.data is not None]
    assert len(weights) == 3
    assert all(np.shares_memory(one, raw) for one in weights)


def test_a_model_with_states_is_refused(on_ray):
    b = GraphBuilder("counter")
    x = b.input("x", TensorType((1,), "float32"))
    zero = b.constant("zero", np.zeros(1, np.float32))
    total = b.add("add", x, b.add("variable", zero, state="total"))
    b.add("assign", total, state="total")
    with pytest.raises(trireme.RunError, match="has states, and a replica answers for any"):
        on_ray.Replica(on_ray.put(b.finish(total)))


@pytest.mark.parametrize("batching", [None, {"max_batch_size": 8, "max_queue_delay_us": 500}])
def test_no_request_is_lost_when_a_replica_dies(on_ray, answers, batching):
    """Four clients ask 400 times; one of two replicas is killed in between, another takes over."""
    from ray import serve

    app = on_ray.deployment(
        on_ray.put(graph()),
        session={"threads": 1},
        batching=batching,
        num_replicas=2,
        max_ongoing_requests=8,
        ray_actor_options={"num_cpus": 0.5},
        health_check_period_s=1,
    )
    handle = serve.run(app, name="load", route_prefix=None)
    wanted = {number: answers(rows(number)) for number in range(400)}
    found, kill_now = {}, threading.Event()

    async def client(first):
        asks = on_ray.Client(handle, retries=6)
        for number in range(first, 400, 4):
            found[number] = (await asks.run({"x": rows(number)}))["y"]
            if len(found) == 100:
                kill_now.set()

    async def load():
        await asyncio.gather(*(client(first) for first in range(4)))

    def kill():
        kill_now.wait(60)
        os.kill(asyncio.run(facts())["process"], 9)

    async def facts():
        return await handle.describe.remote()

    killer = threading.Thread(target=kill)
    killer.start()
    asyncio.run(load())
    killer.join()
    assert sorted(found) == sorted(wanted)
    for number, answer in found.items():
        within = 0 if batching is None else 1e-6
        np.testing.assert_allclose(answer, wanted[number], rtol=within, atol=within)
    serve.delete("load")


def test_a_dataset_goes_through_the_model(on_ray, answers):
    data = ray.data.from_items([{"x": rows(number)[0], "id": number} for number in range(50)])
    out = data.map_batches(
        on_ray.Predictor, fn_constructor_args=[on_ray.put(graph())], batch_size=16, concurrency=1
    )
    table = {row["id"]: row["y"] for row in out.take_all()}
    assert len(table) == 50
    for number, answer in table.items():
        np.testing.assert_allclose(answer, answers(rows(number))[0], rtol=1e-6, atol=1e-6)
