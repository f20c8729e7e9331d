"""ShardSpec graphs: the same bits as the graph they were, in the references and on the devices."""

import random
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from placing import place_plain
from plan_verifier import check_plan
from random_graphs import random_feeds, random_graph
from sweep import sweep
from toy_device import ToyDevice
from zoo import zoo_path

from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.cost.model import CostModel
from trireme.cost.work import roofline_s, work_of
from trireme.devices.npu.compiler import estimate
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Quant, TensorType, node_names
from trireme.ir.interpreter import run_reference
from trireme.model_file.cache import optimised
from trireme.model_file.convert import convert
from trireme.passes.pipeline import optimise
from trireme.placement.explain import explain
from trireme.placement.lock import lock
from trireme.placement.lockfile import load_lock, save_lock
from trireme.placement.options import PlacementOptions
from trireme.placement.shards.choose import shard_where_it_gains
from trireme.placement.shards.evaluate import Evaluator
from trireme.placement.shards.shard import KINDS, ShardSpec, axis_of, extent, shard
from trireme.placement.virtual_time import end_s, timeline
from trireme.plan.plan import make_plan
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import PlacementError, TriremeError

F32 = "float32"


def random_split(graph, rng, devices):
    """A shard of a random stretch of nodes at random cuts; None where there is none so."""
    first = rng.randrange(len(graph.nodes))
    nodes = graph.nodes[first : first + rng.choice([1, 1, 2, 3, 6])]
    kind, count = rng.choice(KINDS), rng.choice([2, 2, 3])
    try:
        size, step = extent(graph, [n.id for n in nodes], kind)
        if size // step < count:
            return None
        cuts = sorted(step * c for c in rng.sample(range(1, size // step), count - 1))
        ids = tuple(node.id for node in nodes)
        return shard(graph, ShardSpec(ids, kind, tuple(devices[:count]), tuple(cuts)))
    except PlacementError as error:
        assert "cannot be sharded" in str(error)
        return None


@pytest.mark.parametrize("quantised", [False, True])
def test_random_splits_of_random_graphs_keep_every_bit(quantised):
    done = 0
    for seed in range(60):
        graph = random_graph(seed, 12, quantised=quantised)
        feeds, rng = random_feeds(graph, seed), random.Random(seed)
        want = run_reference(graph, feeds)
        for _ in range(5):
            parts = random_split(graph, rng, ["a", "b", "c"])
            if parts is None:
                continue
            done += 1
            for name, array in run_reference(parts.graph, feeds).items():
                assert array.tobytes() == want[name].tobytes(), f"seed {seed}: {parts.graph}"
    assert done > 80


@pytest.mark.parametrize("seed", sweep(range(12), always=[1, 3, 6, 8]))
def test_int8_splits_on_the_devices_are_exact(devices, seed):
    """Parts where each device takes them; what it refuses goes where the placement likes."""
    graph = random_graph(seed, 10, quantised=True)
    feeds, rng = random_feeds(graph, seed), random.Random(seed)
    want = run_reference(graph, feeds)
    for _ in range(6):
        parts = random_split(graph, rng, list(devices))
        if parts is None:
            continue
        pins = {
            node: name
            for node, name in parts.device_of.items()
            if devices[name].unsupported_reason(parts.graph, parts.graph.node(node)) is None
        }
        costs = CostModel(devices, Calibration())
        placed = place_plain(parts.graph, costs, "serial", pins=pins)
        with Session(
            placed.source,
            devices=list(devices.values()),
            execution_options=AS_GIVEN,
            placement=placed,
            calibration=Calibration(),
        ) as session:
            check_plan(session.plan)
            for name, array in session.run(feeds).items():
                np.testing.assert_array_equal(array, want[name], err_msg=f"seed {seed}")


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((), (-1, -1, -1)),
        ((5,), (-1, 0, 0)),
        ((5, 6), (-1, 1, 0)),
        ((5, 6, 7), (1, 2, 0)),
        ((5, 6, 7, 8), (1, 3, 0)),
    ],
)
def test_the_axis_of_a_split(shape, axes):
    type = TensorType(shape, F32)
    assert tuple(axis_of(kind, type) for kind in ("rows", "channels", "batch")) == axes


def wide_conv(dtype=F32, groups=1):
    b, quant = GraphBuilder("conv"), Quant((0.05,), (3,)) if dtype == "int8" else None
    rng = np.random.default_rng(3)
    x = b.input("x", TensorType((1, 40, 40, 16), dtype, quant))
    w = rng.integers(-127, 128, (24 * groups, 3, 3, 16 // groups)).astype(dtype) / (
        1 if dtype == "int8" else np.float32(127)
    )
    scales = Quant((0.01,) * w.shape[0], (0,) * w.shape[0], 0) if quant else None
    y = b.add_node(
        "conv",
        [x, b.constant("w", w.astype(dtype), scales)],
        dict(strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=groups),
        names=["y"],
        quants=[quant],
    )[0]
    return b.finish(y)


def toys():
    """Two devices of one speed, and a third that shares the first one's silicon."""
    return {
        "cpu": ToyDevice("cpu", flops=1e9, resource_group="cores"),
        "gpu": ToyDevice("gpu", flops=1e9, link_bandwidth=8e9),
        "half": ToyDevice("half", flops=1e9, resource_group="cores"),
    }


@pytest.mark.parametrize("text", ["y=cpu,gpu:rows", "y=cpu,gpu:channels", "y=gpu,cpu:rows:7"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_forced_split_runs_and_is_equal(text, groups):
    graph = wide_conv(groups=groups)
    feeds = random_feeds(graph, 1)
    want = run_reference(graph, feeds)["y"]
    made = toys()
    del made["half"]
    with Session(
        graph,
        devices=list(made.values()),
        placement_options=PlacementOptions(sharding=[text]),
        execution_options=AS_GIVEN,
    ) as session:
        assert session.run(feeds)["y"].tobytes() == want.tobytes()
        assert len(session.placement.shards) == 1
        assert "it was asked for" in session.placement.shards[0].why
    assert all(device.launches for device in made.values())


def test_a_split_is_chosen_where_it_gains_and_is_balanced():
    graph, made = wide_conv(), toys()
    costs = CostModel(made, Calibration())
    plain = place_plain(graph, costs)
    found = shard_where_it_gains(plain, costs)
    assert found.score.value < 0.6 * plain.score.value
    (one,) = found.shards
    assert one.text.startswith("y=") and "half" not in one.text
    assert "less" in one.why
    with Session(graph, devices=list(made.values()), execution_options=AS_GIVEN) as session:
        assert session.placement.shards == found.shards
        feeds = random_feeds(graph, 1)
        assert session.run(feeds)["y"].tobytes() == run_reference(graph, feeds)["y"].tobytes()


def test_it_declines_with_a_sentence():
    graph, made = wide_conv(), toys()
    del made["gpu"]
    costs = CostModel(made, Calibration())
    found = shard_where_it_gains(place_plain(graph, costs), costs)
    assert not found.shards
    assert found.no_shard == "nothing is sharded: there is one resource group, cores"
    made = {"cpu": ToyDevice("cpu"), "gpu": ToyDevice("gpu", launch_s=1.0)}
    costs = CostModel(made, Calibration())
    found = shard_where_it_gains(place_plain(graph, costs), costs)
    assert not found.shards and "no region can be sharded" in found.no_shard
    made = {"cpu": ToyDevice("cpu"), "gpu": ToyDevice("gpu", link_bandwidth=2e6)}
    costs = CostModel(made, Calibration())
    plain = place_plain(graph, costs)
    found = shard_where_it_gains(plain, costs)
    assert not found.shards and "at most: " in found.no_shard and "25% is asked" in found.no_shard
    assert found.score == plain.score


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("y=cpu,gpu", "is not a region, devices and one of rows, channels, batch"),
        ("y=cpu,cpu:rows", "is not a region, devices and one of"),
        ("y=cpu,tpu:rows", "'tpu' is not among the devices"),
        ("z=cpu,gpu:rows", "no node is called 'z'"),
        ("y=cpu,gpu:batch", "1 in steps of 1 are too few for 2 devices"),
        ("y=cpu,gpu:rows:40", "cannot be sharded: 40 rows over cpu, gpu at (40,)"),
        ("y=cpu,gpu:rows:x", "the cuts must be numbers"),
    ],
)
def test_what_cannot_be_split_is_said(text, sentence):
    costs = CostModel(toys(), Calibration())
    with pytest.raises(PlacementError) as caught:
        place_plain(wide_conv(), costs, sharding=[text])
    assert sentence in str(caught.value)


def test_a_pinned_node_is_not_split():
    graph, costs = wide_conv(), CostModel(toys(), Calibration())
    with pytest.raises(PlacementError, match="pinned to cpu"):
        place_plain(graph, costs, sharding=["y=cpu,gpu:rows"], pins={0: "cpu"})


def test_a_lock_keeps_the_splits(tmp_path):
    graph, made = wide_conv(), toys()
    costs = CostModel(made, Calibration())
    found = place_plain(graph, costs, sharding=["y=cpu,gpu:rows:11"])
    save_lock(lock(found), tmp_path / "lock.toml")
    again = place_plain(graph, costs, fixed=load_lock(tmp_path / "lock.toml"))
    assert [one.text for one in again.shards] == ["y=cpu,gpu:rows:11"]
    assert {n: c.device for n, c in again.choices.items()} == {
        n: c.device for n, c in found.choices.items()
    }
    assert again.score.value == found.score.value
    held = place_plain(graph, costs, fixed=found)
    assert held.score.value == found.score.value and held.shards == found.shards


@pytest.mark.parametrize(
    "name",
    sweep(["resnet8_cifar10_int8", "ad01_int8", "kws_dscnn_int8"], always=["resnet8_cifar10_int8"]),
)
def test_models_split_over_npu_and_cpu(devices, name):
    """Every node that has channels, one at a time; then a region by rows; all bits as before."""
    if "npu" not in devices:
        pytest.skip("no npu")
    graph = optimised(str(zoo_path(f"{name}.tflite")))
    chosen = [devices["npu"], devices["cpu"]]
    feeds = random_feeds(graph, 7)
    with Session(
        graph, devices=["cpu"], execution_options=AS_GIVEN, calibration=Calibration()
    ) as session:
        want = session.run(feeds)
    names = node_names(graph)
    texts = [
        [f"{names[node.id]}=npu,cpu:channels"]
        for node in graph.nodes[::3]
        if node.op in ("conv", "fully_connected")
    ]
    if name == "resnet8_cifar10_int8":
        texts.append([f"{names[0]}..{names[3]}=npu,cpu:rows", f"{names[8]}=cpu,npu:rows:2"])
    for text in texts:
        with Session(
            graph,
            devices=chosen,
            execution_options=AS_GIVEN,
            calibration=Calibration(),
            placement_options=PlacementOptions(sharding=text, objective="serial"),
        ) as session:
            assert len(session.placement.shards) == len(text)
            for output, array in session.run(feeds).items():
                assert array.tobytes() == want[output].tobytes(), text


def test_a_gain_of_a_few_microseconds_is_not_taken():
    """A third of a run of 12 us: starting the parts could take as long."""
    fast = {"flops": 1e12, "bandwidth": 1e13, "launch_s": 1e-7}
    made = {name: ToyDevice(name, memory="host", **fast) for name in ("cpu", "gpu")}
    costs = CostModel(made, Calibration())
    plain = place_plain(wide_conv(), costs)
    found = shard_where_it_gains(plain, costs)
    assert 10e-6 < plain.score.value < 20e-6
    assert not found.shards and "less" in found.no_shard


def test_a_small_gain_is_not_taken_on_a_data_sheet_s_word():
    """A device a tenth as fast could take a tenth of the work: 9 % less, if its figures hold."""
    graph = wide_conv()
    made = {"cpu": ToyDevice("cpu"), "gpu": ToyDevice("gpu", flops=1e8, link_bandwidth=1e12)}
    plain = place_plain(graph, CostModel(made, Calibration()))
    found = shard_where_it_gains(plain, CostModel(made, Calibration()))
    assert not found.shards
    assert "less" in found.no_shard and "25% is asked of devices never measured" in found.no_shard
    for device in made.values():
        spec = device.spec
        device.spec = replace(spec, clock="virtual")
        device.estimate_s = lambda g, n, spec=spec: roofline_s(work_of(g, n), spec)
    costs = CostModel(made, Calibration())
    found = shard_where_it_gains(place_plain(graph, costs), costs)
    assert len(found.shards) == 1 and found.score.value < 0.95 * plain.score.value


@pytest.mark.parametrize("seed", sweep(range(30), always=range(0, 30, 4)))
def test_chosen_splits_are_never_predicted_worse(seed):
    """Random graphs over toys of random speeds: what is chosen gains, and is what would run."""
    rng = random.Random(seed)
    graph = random_graph(seed, 12)
    made = {
        name: ToyDevice(
            name,
            flops=10 ** rng.uniform(5, 7),
            bandwidth=1e9,
            launch_s=10 ** rng.uniform(-7, -5),
            link_bandwidth=10 ** rng.uniform(8, 10),
        )
        for name in ("cpu", "gpu", "npu")[: rng.choice([2, 3])]
    }
    costs = CostModel(made, Calibration())
    for objective in ("makespan", "throughput"):
        plain = place_plain(graph, costs, objective)
        found = shard_where_it_gains(plain, costs)
        assert found.score.value <= plain.score.value
        assert bool(found.shards) or found.no_shard
        plan = make_plan(found)
        check_plan(plan)
        if objective == "makespan":  # memory does not take away what was gained
            predicted = end_s(timeline(plan.tasks, [t.estimate_s for t in plan.tasks]))
            assert predicted == pytest.approx(found.score.value, rel=1e-6)
    if found.shards:
        feeds = random_feeds(graph, seed)
        want = run_reference(graph, feeds)
        with Session(
            graph, devices=list(made.values()), execution_options=AS_GIVEN, placement=found
        ) as session:
            for name, array in session.run(feeds).items():
                assert array.tobytes() == want[name].tobytes(), f"seed {seed}"


@pytest.mark.parametrize("fault", ["fail_compile", "fail_launch"])
def test_a_device_that_fails_its_part_is_an_error_or_is_left_out(fault):
    graph = wide_conv()
    made = [ToyDevice("cpu"), ToyDevice("gpu", link_bandwidth=8e9, **{fault: True})]
    with (
        pytest.raises(TriremeError, match="gpu was told to fail"),
        Session(graph, devices=made, execution_options=AS_GIVEN) as session,
    ):
        assert session.placement.shards
        session.run(random_feeds(graph, 1))
    if fault == "fail_compile":
        with Session(graph, devices=made, execution_options=AS_GIVEN, fallback=True) as session:
            assert not session.placement.shards and "gpu" in session.dropped
            assert session.run(random_feeds(graph, 1))


def test_explain_prices_the_parts():
    graph, made = wide_conv(), toys()
    costs = CostModel(made, Calibration())
    found = shard_where_it_gains(place_plain(graph, costs), costs)
    explanation = explain(found)
    assert "shard y=cpu,gpu" in str(explanation)
    for node, (chosen, *others) in explanation.nodes:
        for other in others:
            if other.run_s is not None:
                moved = place_plain(found.source, costs, pins={node.id: other.device}, fixed=found)
                assert moved.score.value == pytest.approx(other.run_s), chosen


def test_looking_for_splits_of_a_batch_compiles_little(devices, monkeypatch):
    """The NPU compiles a part to say what it takes: it was asked for 850 parts here.

    The search takes 100 of them. It finds a shard that gains, since the join of int8 parts is a
    plain copy on the cpu, and what is around the shard is placed anew.
    """
    counted = []
    inner = estimate.compile_graph
    monkeypatch.setattr(
        estimate, "compile_graph", lambda *a, **k: counted.append(1) or inner(*a, **k)
    )
    tried = []
    trial = Evaluator._tried
    monkeypatch.setattr(Evaluator, "_tried", lambda self, one: tried.append(1) or trial(self, one))
    model = (files("trireme.tools") / "demo" / "digits.onnx").read_bytes()
    fresh = {**devices, "npu": open_device("npu")}
    found = place_plain(
        optimise(convert(model)),
        CostModel(fresh, Calibration()),
        sharding="auto",
        multi_device="significant",
    )
    fresh["npu"].close()
    assert found.no_shard and next(found.source.input_values()).shape[0] == 360
    assert 6 <= len(counted) <= (450 if found.shards else 100)
    assert len(tried) <= 30 * (len(found.shards) + 1)


def test_what_is_known_is_not_left_for_a_device_never_measured():
    """A modelled device beside one of a data sheet: half the time, if that were true."""
    graph, made = wide_conv(), {"cpu": ToyDevice("cpu"), "npu": ToyDevice("npu", memory="host")}
    spec = replace(made["npu"].spec, clock="virtual")
    made["npu"].spec = spec
    made["npu"].estimate_s = lambda g, n: roofline_s(work_of(g, n), spec) / 1.01
    costs = CostModel(made, Calibration())
    plain = place_plain(graph, costs)
    assert plain.nodes_on("npu")
    assert len(shard_where_it_gains(plain, costs).shards) == 1
    found = shard_where_it_gains(plain, costs, multi_device="significant")
    assert not found.shards and "less" in found.no_shard
    assert "left for devices never measured: trireme calibrate" in found.no_shard
