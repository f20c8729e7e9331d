"""Loading takes time in proportion to the nodes: no stage looks at all pairs of anything."""

import random
import time

import numpy as np
import pytest
from growing_graphs import KINDS, SHAPE, chain, onnx_bytes
from onnx import helper
from opencl import need_opencl
from placement_cases import random_problem

from trireme.backend import arena as memory
from trireme.backend.arena import LiveRange, pack
from trireme.placement import search
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

SLACK = 2.0
"""Times linear that the quick test allows, on a machine that other processes use."""


def load_cpu_s(data, folder, devices=("cpu",)):
    """Return the CPU seconds of all threads that a session takes to load with empty caches."""
    options = {"cpu": {"cache_dir": folder}}
    start = time.process_time()
    with Session(
        data,
        devices=list(devices),
        execution_options=ExecutionOptions(device_options=options, model_cache=None),
    ):
        return time.process_time() - start


@pytest.mark.parametrize("kind", ["chain", "fan", "split"])
def test_four_times_the_nodes_take_four_times_as_long(kind, tmp_path):
    load_cpu_s(chain(4), tmp_path / "first")
    ratios = []
    for attempt in range(3):
        small, large = (
            load_cpu_s(KINDS[kind](n), tmp_path / f"{attempt}-{n}") for n in (400, 1600)
        )
        ratios.append(large / small / 4)
        if ratios[-1] < SLACK:
            return
    raise AssertionError(f"loading {kind} grows {ratios} times as fast as its nodes")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "npu"), ("cpu", "opencl")], ids="+".join)
@pytest.mark.parametrize("kind", KINDS)
def test_16_000_nodes_take_16_times_1_000(kind, devices, tmp_path):
    load_cpu_s(chain(4), tmp_path / "first", devices)
    small = min(load_cpu_s(KINDS[kind](1000), tmp_path / f"s{k}", devices) for k in range(3))
    large = load_cpu_s(KINDS[kind](16000), tmp_path / "large", devices)
    print(f"{kind} on {devices}: 1,000 nodes {small:.2f} CPU s, 16,000 nodes {large:.2f}")
    assert large <= 1.3 * 16 * small


@pytest.mark.slow
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "npu"), ("cpu", "opencl")], ids="+".join)
def test_8_000_nodes_in_a_chain_load_in_5_cpu_seconds(devices, tmp_path):
    load_cpu_s(chain(4), tmp_path / "first", devices)
    cold_s = load_cpu_s(chain(8000), tmp_path / "cold", devices)
    print(f"{devices}: {cold_s:.2f} CPU s")
    assert cold_s <= 5


def test_devices_that_take_no_node_cost_no_search(monkeypatch):
    """Each of n nodes was tried on each device, in a tuple of n: on the npu too, which has none."""

    def improve(*args):
        raise AssertionError("there is one assignment, and it is searched")

    monkeypatch.setattr(search, "improve", improve)
    with Session(
        KINDS["fan"](300),
        devices=["cpu", "npu"],
        execution_options=ExecutionOptions(model_cache=None),
    ) as session:
        assert {task.device for task in session.plan.tasks} == {"cpu"}


@pytest.mark.parametrize("seed", range(5))
def test_each_move_of_a_search_changes_something(seed):
    problem = random_problem("layered", seed, 12)
    assigned = tuple(able[0] for able in problem.able)
    for change in search._moves(problem, assigned):
        assert search._changed(problem, assigned, change) != assigned


def test_a_long_chain_is_a_few_kernels(tmp_path):
    options = {"cpu": {"cache_dir": tmp_path}}
    with Session(
        chain(320), execution_options=ExecutionOptions(device_options=options, model_cache=None)
    ) as session:
        codes = session.program.executables[0].codes
        assert len(codes) == 10
        assert len({code.symbol for code in codes}) == 1


def test_waits_grow_with_tasks():
    """In a chain each task writes over what a task long before it used."""
    with Session(
        chain(300), execution_options=ExecutionOptions(execution="interactive", model_cache=None)
    ) as session:
        tasks = session.plan.tasks
        assert len(tasks) == 300
        assert sum(len(task.waits) for task in tasks) <= 3 * len(tasks)


@pytest.mark.parametrize("seed", range(20))
def test_the_two_ways_to_place_ranges_agree(seed, monkeypatch):
    print("seed", seed)
    rng = random.Random(seed)
    ranges = []
    for key in range(rng.randrange(80)):
        first, length = rng.randrange(40), rng.randrange(rng.choice([1, 3, 40]))
        ranges.append(
            LiveRange(key, first, first + length, rng.choice([1, 64, rng.randrange(5000)]))
        )
    packings = []
    for most in (-1, 10**9):
        monkeypatch.setattr(memory, "MOST_CONFLICTS", most)
        packings.append(pack(ranges))
    assert packings[0] == packings[1]


@pytest.mark.parametrize("device", ["cpu", "opencl"])
@pytest.mark.parametrize("op", ["Sum", "Max", "Min"])
def test_many_operands(op, device):
    """A template that names an operand twice doubled the kernel's text with each of them."""
    if device == "opencl":
        need_opencl()
    rng = np.random.default_rng(7)
    weights = {f"w{i}": rng.standard_normal(SHAPE).astype(np.float32) for i in range(40)}
    nodes = [
        *(helper.make_node("Mul", ["x", name], [f"m{name}"]) for name in weights),
        helper.make_node(op, [f"m{name}" for name in weights], ["y"]),
    ]
    x = np.linspace(-2, 2, SHAPE[1], dtype=np.float32)[None]
    with Session(onnx_bytes(nodes, [("y", SHAPE)], weights=weights), devices=[device]) as session:
        found = session.run({"x": x})["y"]
    expected = x * weights["w0"]
    fold = {"Sum": np.add, "Max": np.maximum, "Min": np.minimum}[op]
    for weight in list(weights.values())[1:]:
        expected = fold(expected, x * weight)
    np.testing.assert_array_equal(found, expected)
