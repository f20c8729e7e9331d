"""Tasks that a device starts one behind the other: launched ahead, copies under kernels."""

import functools
import itertools
import queue
import random
import threading
import time

import numpy as np
import pytest
from forced import open_all
from recorded_calls import Call, planned

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.profiling.trace import chrome_trace
from trireme.runtime.loop.dispatch import ParallelRunner
from trireme.runtime.loop.execute import check_order, serial_order, serial_runner
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError


class Stream:
    """A queue of a driver: runs what it is given in order, each after the events it names."""

    def __init__(self):
        self.inbox = queue.SimpleQueue()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while (job := self.inbox.get()) is not None:
            event, after, work = job
            try:
                for other in after:
                    other.wait()
                work()
            except DeviceError as error:
                event.error = error
            event.over.set()


class StreamEvent:
    def __init__(self):
        self.over, self.error = threading.Event(), None

    def wait(self):
        self.over.wait()
        if self.error:
            raise self.error

    def spans(self):
        return ()


class Handle:
    """What the host has of an event: like a driver's of a copy of host memory, it waits for the
    event to be over when it is let go."""

    def __init__(self, event):
        self.event, self.wait, self.spans = event, event.wait, event.spans

    def __del__(self):
        self.event.over.wait(5)


class QueuedCall:
    """A bound call on a stream; its work must find all that it waits for over."""

    def __init__(self, plan, index, streams, log, gate=None, fail=()):
        self.plan, self.index, self.log, self.gate, self.fail = plan, index, log, gate, fail
        self.stream, self.driver_queue = streams[plan.tasks[index].device], streams["driver_queue"]

    def launch(self, profile=False, after=()):
        self.log["launched"].append(self.index)
        event = StreamEvent()
        self.stream.inbox.put((event, [one.event for one in after], self._work))
        return Handle(event)

    def _work(self):
        if self.gate is not None:
            self.gate.wait(5)
        if self.index in self.fail:
            raise DeviceError(f"task {self.index} was told to fail")
        for other in self.plan.tasks[self.index].waits:
            assert other in self.log["done"], f"{self.index} ran before {other}"
        self.log["done"].append(self.index)


def streams_of(plan):
    return {"driver_queue": object()} | {task.device: Stream() for task in plan.tasks}


@pytest.mark.parametrize("seed", range(8))
def test_chains_beside_other_devices_respect_waits(seed):
    """Some devices are queued, the others run on the host, all in one plan."""
    print("seed", seed)
    plan, log, rng = planned(seed), {"done": [], "launched": []}, random.Random(seed)
    names = sorted({task.device for task in plan.tasks})
    queued = set(rng.sample(names, max(1, len(names) // 2)))
    streams = streams_of(plan)
    calls = [
        QueuedCall(plan, task.index, streams, log)
        if task.device in queued
        else Call(plan, task.index, log, lambda index: rng.choice([0, 0, 2e-4]))
        for task in plan.tasks
    ]
    runner = ParallelRunner(plan, calls, 0.0)
    for run in (runner.run, serial_runner(plan, calls)):
        for _ in range(5):
            log["done"].clear()
            run()
            assert sorted(log["done"]) == list(range(len(plan.tasks)))
    runner.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", ["parallel", "serial"])
def test_a_chain_is_launched_before_its_first_task_is_over(seed, way):
    plan, log, gate = planned(seed), {"done": [], "launched": []}, threading.Event()
    streams = streams_of(plan)
    calls = [QueuedCall(plan, task.index, streams, log, gate) for task in plan.tasks]
    runner = ParallelRunner(plan, calls)
    thread = threading.Thread(
        target=runner.run if way == "parallel" else serial_runner(plan, calls)
    )
    thread.start()
    deadline = time.perf_counter() + 5
    while len(log["launched"]) < len(calls) and time.perf_counter() < deadline:
        time.sleep(1e-3)
    assert len(log["launched"]) == len(calls) and not log["done"]
    assert runner.dispatches == 0
    gate.set()
    thread.join()
    assert sorted(log["done"]) == list(range(len(calls)))
    runner.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_serial_order_respects_waits_and_changes_chain_least(seed):
    """With one driver queue no order that the waits allow has fewer launches to wait for."""
    print("seed", seed)
    plan, rng = planned(seed, 9), random.Random(seed)
    names = sorted({task.device for task in plan.tasks})
    queued, driver_queue = set(rng.sample(names, max(1, len(names) // 2))), object()
    calls = [Chained(driver_queue) if task.device in queued else Alone() for task in plan.tasks]
    order = serial_order(plan, calls)
    check_order(plan, order)
    is_chained = tuple(task.device in queued for task in plan.tasks)
    assert chains_in(order, is_chained) == fewest_chains(plan, is_chained)
    assert chains_in(order, is_chained) <= chains_in(range(len(order)), is_chained)
    assert serial_order(plan, [Alone()] * len(order)) == list(range(len(order)))


class Chained:
    def __init__(self, driver_queue):
        self.driver_queue = driver_queue

    def launch(self, profile=False, after=()):
        raise NotImplementedError


class Alone:
    pass


def chains_in(order, is_chained):
    return sum(1 for queued, _ in itertools.groupby(order, lambda i: is_chained[i]) if queued)


def fewest_chains(plan, is_chained):
    """By trying every order: the least driver queues from each set of tasks that are over."""

    @functools.cache
    def least(done, in_chain):
        if len(done) == len(plan.tasks):
            return 0
        return min(
            least(done | {task.index}, is_chained[task.index])
            + (is_chained[task.index] and not in_chain)
            for task in plan.tasks
            if task.index not in done and done.issuperset(task.waits)
        )

    return least(frozenset(), False)


def by_turns():
    """A value for the other device is made early, and read after more work on this one."""
    b = GraphBuilder("by turns")
    x = b.input("x", TensorType((64, 64), "float32"))
    early = b.add("tanh", x, pin="cpu")
    late = b.add("matmul", early, early, pin="cpu")
    there = b.add("matmul", early, late, pin="opencl")
    return b.finish(b.add("matmul", there, late, pin="opencl")), {"x": np.eye(64, dtype=np.float32)}


def test_a_copy_stands_before_the_kernel_that_reads_it(opencl_device):
    """Merged puts the copy after its maker; run serially it need not be waited for by itself."""
    graph, feeds = by_turns()
    cpu = open_all(("cpu",))[0]["cpu"]
    found = {}
    for subgraphs in ("merged", "split"):
        with Session(
            graph,
            devices=[cpu, opencl_device],
            execution_options=ExecutionOptions(
                passes=(), subgraphs=subgraphs, execution="interactive"
            ),
            calibration=Calibration(),
            mode="serial",
        ) as session:
            tasks = [session.plan.tasks[index] for index in session.runs.order]
            groups = itertools.groupby(task.device == "cpu" for task in tasks)
            found[subgraphs] = [len(list(some)) for _, some in groups]
            (output,) = session.run(feeds).values()
    assert found["merged"] == found["split"] == [2, 5]
    np.testing.assert_allclose(output[0, 0], np.tanh(1) ** 5, rtol=1e-5)
    cpu.close()


@pytest.mark.parametrize("way", ["parallel", "serial"])
def test_an_error_in_a_chain_comes_out_and_the_next_run_is_right(way):
    plan, log = planned(2), {"done": [], "launched": []}
    streams, fail = streams_of(plan), {len(plan.tasks) // 2}
    calls = [QueuedCall(plan, task.index, streams, log, fail=fail) for task in plan.tasks]
    runner = ParallelRunner(plan, calls)
    run = runner.run if way == "parallel" else serial_runner(plan, calls)
    with pytest.raises(DeviceError, match="told to fail"):
        run()
    assert fail.isdisjoint(log["done"])
    fail.clear()
    for stream in streams.values():
        if isinstance(stream, Stream):
            choose_executor(stream)
    log["done"].clear()
    run()
    assert sorted(log["done"]) == list(range(len(plan.tasks)))
    runner.close()


def choose_executor(stream):
    event = StreamEvent()
    stream.inbox.put((event, (), lambda: None))
    event.wait()


def pipeline(size=1024, stages=3):
    """Inputs that each cross to OpenCL and are multiplied there."""
    b = GraphBuilder("pipeline")
    weights = b.constant("w", np.full((size, size), 1e-3, np.float32))
    made = []
    for k in range(stages):
        x = b.input(f"x{k}", TensorType((size, size), "float32"))
        made.append(b.add("matmul", x, weights, pin="opencl", names=[f"y{k}"]))
    feeds = {f"x{k}": np.full((size, size), k + 1, np.float32) for k in range(stages)}
    return b.finish(*made), feeds


@pytest.fixture
def opencl_device():
    opened, absent = open_all(("opencl",))
    if absent:
        pytest.skip(str(absent))
    yield opened["opencl"]
    opened["opencl"].close()


def test_copies_run_under_kernels_in_the_trace(opencl_device):
    """Copy k+1 runs while kernel k does, by the driver's own times, as the Chrome trace shows it.

    On a busy machine the host may be late with a launch, so one overlap in 20 runs will do.
    """
    graph, feeds = pipeline()
    with Session(
        graph,
        devices=[opencl_device],
        execution_options=ExecutionOptions(passes=(), execution="interactive"),
        calibration=Calibration(),
        mode="parallel",
    ) as session:
        want = session.run(feeds)
        overlaps = runs = 0
        while not overlaps and (runs := runs + 1) <= 20:
            trace = chrome_trace(session.profile(feeds, runs=1, warmup=0))["traceEvents"]
            tasks = [e for e in trace if e["ph"] == "X" and e["pid"] == 1 and "bytes" in e["args"]]
            kernels = [e for e in tasks if not e["args"]["bytes"]]
            writes = {e["name"]: e for e in tasks if e["name"].startswith("copy x")}
            assert len(kernels) == len(writes) == 3
            kernels.sort(key=lambda e: e["ts"])
            overlaps += any(apart(writes[f"copy x{k + 1}"], kernels[k]) < 0 for k in range(2))
        assert session.runs.runner.dispatches == 0
        session.runs.mode = "serial"
        for name, array in session.run(feeds).items():
            assert array.tobytes() == want[name].tobytes()
    assert overlaps


def apart(one, two):
    """Microseconds between two slices of a trace, negative where they overlap."""
    first, second = sorted((one, two), key=lambda e: e["ts"])
    return second["ts"] - first["ts"] - first["dur"]


@pytest.mark.parametrize("name", ["cpu", "opencl"])
def test_python_goes_on_while_a_device_works(name):
    """Another Python thread makes progress in the middle of a long run: no interpreter lock."""
    opened, absent = open_all((name,))
    if absent:
        pytest.skip(str(absent))
    b = GraphBuilder("long")
    x = y = b.input("x", TensorType((768, 768), "float32"))
    for _ in range(12):
        y = b.add("matmul", y, x)
    with Session(b.finish(y), devices=list(opened.values()), calibration=Calibration()) as session:
        feeds = {"x": np.zeros((768, 768), np.float32)}
        session.run(feeds)
        ticks = []
        thread = threading.Thread(target=session.run, args=(feeds,))
        start = time.perf_counter()
        thread.start()
        while thread.is_alive():
            ticks.append(time.perf_counter() - start)
        took = ticks[-1]
        middle = [t for t in ticks if 0.25 * took < t < 0.75 * took]
        print(f"{took * 1e3:.1f} ms, {len(middle)} ticks in its middle")
    for device in opened.values():
        device.close()
    assert len(middle) > 1000
