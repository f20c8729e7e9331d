"""The parallel runner: few hand-overs, one task at a time on a device, faults, little overhead."""

import random
import threading
import time
from dataclasses import replace

import pytest
from forced import open_all, pinned_at_random
from placing import place_plain
from recorded_calls import Call, planned
from toy_device import ToyDevice

from trireme.backend.device import Done
from trireme.cost.model import CostModel
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.model_file.cache import optimised
from trireme.plan.plan import make_plan
from trireme.runtime.loop.dispatch import CHEAP_S, ParallelRunner
from trireme.runtime.loop.execute import serial_runner
from trireme.support.errors import DeviceError, RunError


@pytest.mark.parametrize("cheap_s", [0.0, 2e-6, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_waits_and_queues_are_respected(seed, cheap_s):
    print("seed", seed)
    plan, log, rng = planned(seed), {"done": []}, random.Random(seed)
    delays = {task.index: rng.choice([0, 0, 0, 2e-4]) for task in plan.tasks}
    runner = ParallelRunner(
        plan, [Call(plan, task.index, log, delays.get) for task in plan.tasks], cheap_s
    )
    for _ in range(5):
        log["done"].clear()
        runner.run()
        assert sorted(log["done"]) == list(range(len(plan.tasks)))
    assert len(runner.run(profile=True)) == len(plan.tasks)
    runner.close()


@pytest.mark.parametrize("seed", range(6))
def test_an_error_stops_what_has_not_started_and_the_runner_lives(seed):
    plan, log = planned(seed), {"done": []}
    fail = {len(plan.tasks) // 2}
    calls = [Call(plan, task.index, log, fail=fail) for task in plan.tasks]
    runner = ParallelRunner(plan, calls, 0.0)
    with pytest.raises(DeviceError, match="told to fail"):
        runner.run()
    after = {t.index for t in plan.tasks if fail & set(t.waits)}
    assert not after & set(log["done"])
    fail.clear()
    log["done"].clear()
    runner.run()
    assert sorted(log["done"]) == list(range(len(plan.tasks)))
    runner.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_thread_that_cannot_be_started_fails_the_run_and_the_runner_lives(seed, monkeypatch):
    plan, log = planned(seed), {"done": []}
    runner = ParallelRunner(plan, [Call(plan, task.index, log) for task in plan.tasks], 0.0)
    hits = []

    def refuse(thread):
        hits.append(thread.name)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        error = None
        try:
            runner.run()
        except RunError as caught:
            error = caught
        assert bool(hits) == (error is not None and "cannot be started" in str(error))
    assert hits or seed
    log["done"].clear()
    runner.run()
    assert sorted(log["done"]) == list(range(len(plan.tasks)))
    runner.close()


def shape_heavy(branches=12):
    """Big work on one device beside many small reads of shapes and slices on the other."""
    b = GraphBuilder("shapes")
    x = b.input("x", TensorType((8, 8), "float32"))
    ends = []
    for k in range(branches):
        y = b.add("tanh", x, pin="npu")
        z = x
        for _ in range(4):
            z = b.add("neg", z, pin="cpu")
            z = b.add("relu", z, pin="gpu" if k % 2 else "cpu")
        ends.append(b.add("add", y, z, pin="cpu"))
    return b.finish(b.add("sum", *ends, pin="cpu"))


def test_cheap_tasks_run_where_they_become_ready():
    """Dispatches fall by at least 40 % on a graph of many small nodes."""
    toys = {n: ToyDevice(n, memory="host", flops=1e9) for n in ("cpu", "gpu", "npu")}
    plan = make_plan(place_plain(shape_heavy(), CostModel(toys)), "merged", "interactive")
    tasks = [replace(t, estimate_s=1e-3 if t.nodes[0].op == "tanh" else 3e-6) for t in plan.tasks]
    plan = replace(plan, tasks=tuple(tasks))
    counts = {}
    for name, cheap_s in (("all", 0.0), ("expensive", 30e-6)):
        log = {"done": []}
        runner = ParallelRunner(plan, [Call(plan, i, log) for i in range(len(tasks))], cheap_s)
        counts[name] = 0
        for _ in range(5):
            runner.run()
            counts[name] += runner.dispatches
        runner.close()
    print(counts)
    assert counts["expensive"] <= 0.6 * counts["all"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert_mini", "vit_tiny"])
def test_hand_overs_fall_on_real_graphs_with_many_shape_nodes(model, made_models):
    """Exported transformers as they are, nothing folded, every node on a random device: three
    placements each, with the estimates of the devices.
    """
    opened, absent = open_all(("cpu", "opencl"))
    if absent:
        pytest.skip(str(absent))
    graph = optimised(str(made_models / f"{model}.onnx"), None, (), (), None)
    counts = {0.0: 0, CHEAP_S: 0}
    for seed in (1, 2, 3):
        pinned = pinned_at_random(graph, opened, seed)
        plan = make_plan(place_plain(pinned, CostModel(opened)), "merged", "interactive")
        for cheap_s in counts:
            runner = ParallelRunner(plan, [Nothing()] * len(plan.tasks), cheap_s)
            runner.run()
            counts[cheap_s] += runner.dispatches
            runner.close()
    for device in opened.values():
        device.close()
    print(f"{model}: {counts[0.0]} hand-overs, {counts[CHEAP_S]} with cheap nodes inline")
    assert counts[0.0] >= 30 and counts[CHEAP_S] <= 0.6 * counts[0.0]


def test_a_misjudged_task_is_dispatched_in_the_end():
    plan, log = planned(4), {"done": []}
    runner = ParallelRunner(
        plan,
        [Call(plan, i, log, lambda i: 3e-3 if i == 2 else 0) for i in range(len(plan.tasks))],
        cheap_s=1.0,
    )
    assert runner.cheap[2]
    for _ in range(3):
        runner.run()
    assert not runner.cheap[2]
    runner.close()


class Nothing:
    def launch(self, profile=False):
        return Done()


@pytest.mark.parametrize("way", ["parallel", "serial"])
def test_overhead_is_at_most_six_microseconds_a_task(way):
    """The best of 1,000 runs of tasks that do nothing: other processes only add to it."""
    plan = planned(3, 60)
    calls = [Nothing()] * len(plan.tasks)
    runner = ParallelRunner(plan, calls)
    run = runner.run if way == "parallel" else serial_runner(plan, calls)
    best = 1.0
    for _ in range(1000):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    runner.close()
    print(f"{way}: {best / len(plan.tasks) * 1e6:.2f} us a task")
    assert best / len(plan.tasks) <= 6e-6


def test_threads_are_made_only_for_what_is_dispatched():
    plan = planned(3)
    before = threading.active_count()
    runner = ParallelRunner(plan, [Nothing()] * len(plan.tasks), 1.0)
    runner.run()
    assert threading.active_count() == before
    runner.close()


def test_no_lock_is_held_while_a_device_works():
    plan, log = planned(1), {"done": []}
    free = []

    class Prober(Call):
        def launch(self, profile=False):
            free.append(runner.lock.acquire(timeout=5))
            runner.lock.release()
            return super().launch(profile)

    runner = ParallelRunner(plan, [Prober(plan, t.index, log) for t in plan.tasks], 0.0)
    runner.run()
    runner.close()
    assert free and all(free)
