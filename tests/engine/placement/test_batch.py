"""Batches: a graph of one made a graph of many, and its elements shared out over devices."""

import numpy as np
import pytest
from placing import place_plain
from random_graphs import random_feeds
from toy_device import ToyDevice
from zoo import zoo_path

from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.model_file.cache import optimised
from trireme.placement.options import PlacementOptions
from trireme.placement.shards.batch import batched
from trireme.placement.shards.choose import shard_where_it_gains
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError

MODELS = ["ad01_int8", "kws_dscnn_int8", "resnet8_cifar10_int8", "kws_dscnn_f32", "ad01_fp32"]


def mlp(width=48, layers=3):
    b, rng = GraphBuilder("mlp"), np.random.default_rng(2)
    value = b.input("x", TensorType((1, width), "float32"))
    for _ in range(layers):
        w = b.constant("w", rng.standard_normal((width, width)).astype(np.float32) / 7)
        value = b.add("fully_connected", value, w, activation="relu")
    value = b.add("reshape", value, b.constant("s", np.array([1, 2, width // 2], np.int64)))
    return b.finish(b.add_node("softmax", [value], {"axis": -1}, names=["y"])[0])


def joined(rows):
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_batch_is_its_elements(count):
    graph = mlp()
    feeds = [random_feeds(graph, i) for i in range(count)]
    want = joined([run_reference(graph, one) for one in feeds])
    got = run_reference(batched(graph, count), joined(feeds))
    assert got["y"].shape == (count, 2, 24)
    assert got["y"].tobytes() == want["y"].tobytes()


@pytest.mark.parametrize("devices", ["cpu", "npu,cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_models_in_batches_and_in_shards(name, devices):
    """Three elements at once, and shared out over the devices where they take the model."""
    if "npu" in devices and "int8" not in name:
        pytest.skip("the npu has no float32")
    path, names = str(zoo_path(f"{name}.tflite")), devices.split(",")
    split = "off" if len(names) == 1 else [f"*={devices}:batch:2"]
    graph = optimised(path)
    feeds = [random_feeds(graph, i) for i in range(3)]
    options = {"calibration": Calibration(), "threads": 1}
    with Session(path, devices=["cpu"], **options) as session:
        want = joined([session.run(one) for one in feeds])
    with Session(
        path, devices=names, batch=3, placement_options=PlacementOptions(sharding=split), **options
    ) as session:
        assert all(session.placement.nodes_on(one) for one in names)
        got = session.run(joined(feeds))
    for output, array in got.items():
        if array.dtype.kind == "f":
            largest = np.abs(want[output]).max()
            np.testing.assert_allclose(array, want[output], atol=1e-6 * largest, rtol=0)
        else:
            assert array.tobytes() == want[output].tobytes()


def test_a_batch_is_shared_out_where_that_gains():
    graph = batched(mlp(width=256), 8)
    devices = {
        "cpu": ToyDevice("cpu", flops=1e9),
        "gpu": ToyDevice("gpu", flops=1e9, link_bandwidth=8e9),
    }
    costs = CostModel(devices, Calibration())
    plain = place_plain(graph, costs)
    found = shard_where_it_gains(plain, costs)
    assert found.score.value < 0.65 * plain.score.value
    shards = place_plain(graph, costs, sharding=["*=cpu,gpu:batch"])
    assert shards.shards[0].text == "*=cpu,gpu:batch:4"
    assert shards.score.value < 0.65 * plain.score.value
    feeds = random_feeds(graph, 1)
    want = run_reference(graph, feeds)["y"]
    with Session(
        graph,
        devices=list(devices.values()),
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding=["*=cpu,gpu:batch"]),
    ) as session:
        assert session.run(feeds)["y"].tobytes() == want.tobytes()


def test_what_cannot_be_batched_is_said():
    b = GraphBuilder("sum")
    x = b.input("x", TensorType((1, 4), "float32"))
    graph = b.finish(b.add("reduce_sum", x, keepdims=0))
    with pytest.raises(PlacementError, match=r"its output is float32\[\], not a batch of one"):
        batched(graph, 2)
    b = GraphBuilder("mixed")
    x = b.input("x", TensorType((1, 4), "float32"))
    graph = b.finish(b.add("softmax", x, axis=0))
    with pytest.raises(PlacementError, match="it normalises along that axis"):
        batched(graph, 2)
    b = GraphBuilder("two")
    graph = b.finish(b.add("relu", b.input("x", TensorType((2, 4), "float32"))))
    with pytest.raises(PlacementError, match="only a first axis of 1 can become a batch"):
        batched(graph, 2)
    with pytest.raises(PlacementError, match="expected at least 1"):
        batched(graph, 0)
