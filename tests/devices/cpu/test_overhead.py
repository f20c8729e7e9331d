"""What a call costs beside its work, what an idle session costs, sessions in many threads.

Tests of times are run alone: `pytest -s -m timed tests/devices/cpu/test_overhead.py` prints the
figures.
"""

import threading
import time

import numpy as np
import pytest

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session

RUN_US, STEP_US = 8.0, 0.5
"""The bars: a run of an empty graph, and a native step more."""


def chain(count, shape=(16,), op="softmax"):
    """`count` ops that are not fused, one after another: x to y."""
    builder = GraphBuilder("chain")
    value = builder.input("x", TensorType(shape, "float32"))
    for k in range(count):
        value = builder.add(op, value, names=["y" if k == count - 1 else f"v{k}"])
    return builder.finish(value)


def session(count, threads, shape=(16,), op="softmax", devices=("cpu",)):
    return Session(
        chain(count, shape, op),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        threads=threads,
        devices=devices,
    )


def best_us(made, feeds, times=300, rounds=7):
    """The best mean of `times` runs, in microseconds."""
    made.run(feeds)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(times):
            made.run(feeds)
        best = min(best, (time.perf_counter() - start) / times)
    return best * 1e6


def test_an_idle_session_takes_no_cpu():
    with session(4, 2, shape=(300_000,), op="tanh") as made:
        feeds = {"x": np.ones(300_000, np.float32)}
        for _ in range(20):
            made.run(feeds)
        time.sleep(0.05)  # workers spin for a while
        before = time.process_time()
        time.sleep(1.0)
        used = time.process_time() - before
        print(f"\nidle: {100 * used:.2f} % of a CPU")
        assert used < 0.2  # one that spins takes a whole core


def test_a_short_run_after_a_pause_wakes_nobody():
    """Two chunks of 2 us: the caller does them alone, and is right; in a row, the workers help."""
    x = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    with session(1, 2, shape=x.shape, op="relu") as made:
        for _ in range(20):
            np.testing.assert_array_equal(made.run({"x": x})["y"], np.maximum(x, 0))
            time.sleep(2e-3)
        for _ in range(1200):  # with workers, alone, then in the faster way, and again
            np.testing.assert_array_equal(made.run({"x": x})["y"], np.maximum(x, 0))


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "a device each"])
def test_sessions_in_many_threads(shared):
    """Six threads run four sessions of their own inputs at once; every result is right."""
    shapes = [(64,), (300, 40), (1000, 70), (200_000,)]
    device = open_device("cpu", threads=3) if shared else None
    made = [
        session(3, 3, shape=s, op="relu", devices=[device] if device else ("cpu",)) for s in shapes
    ]
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for k in range(60):
            which = (seed + k) % len(made)
            x = rng.standard_normal(shapes[which]).astype(np.float32)
            if not np.array_equal(made[which].run({"x": x})["y"], np.maximum(x, 0)):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a run hangs"
    for each in made:
        each.close()
    if device:
        device.close()
    assert not wrong


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_every_chunk_runs_once(threads):
    """Steps of more chunks than threads, of as many, and of fewer."""
    with session(2, threads, shape=(5, 3000), op="tanh") as made:
        x = np.random.default_rng(1).standard_normal((5, 3000)).astype(np.float32)
        expected = np.tanh(np.tanh(x))
        for _ in range(50):
            np.testing.assert_allclose(made.run({"x": x})["y"], expected, rtol=1e-5)


@pytest.mark.timed
def test_a_profile_does_not_count_itself():
    """What it says of a task is what the task takes, not what telling of 100 steps takes."""
    feeds = {"x": np.ones(16, np.float32)}
    with session(100, 1) as made:
        wall = best_us(made, feeds, 50)
        profiles = [made.profile(feeds, runs=20) for _ in range(5)]
    plain = min(min(profile.wall_s) for profile in profiles) * 1e6
    virtual = min(profile.virtual_s for profile in profiles) * 1e6
    print(f"a run {wall:.1f} us, in a profile {plain:.1f} us, its tasks {virtual:.1f} us")
    assert virtual < 2 * wall + 5
    assert plain < 2 * wall + 5


@pytest.mark.timed
@pytest.mark.parametrize("threads", [1, 2])
def test_figures(threads):
    """The bars of an empty graph and of a step; print these, and what pauses cost."""
    feeds, took = {"x": np.ones(16, np.float32)}, {}
    for count, op in ((1, "identity"), (1, "relu"), (10, "softmax"), (100, "softmax")):
        with session(count, threads, op=op) as made:
            took[count, op] = best_us(made, feeds, 2000)
            print(f"{threads} threads, {count} x {op}: {took[count, op]:.2f} us")
    assert took[1, "identity"] <= RUN_US
    assert took[100, "softmax"] - took[10, "softmax"] <= 90 * STEP_US
    x = np.ones((100, 1000), np.float32)
    with session(4, threads, shape=x.shape, op="tanh") as made:
        for pause_s in (0.0, 2e-4, 5e-4, 1e-3, 1e-2):
            times = []
            for _ in range(200):
                start = time.perf_counter()
                made.run({"x": x})
                times.append(time.perf_counter() - start)
                time.sleep(pause_s)
            print(f"  a pause of {pause_s * 1e3:4.1f} ms: median {np.median(times) * 1e6:.0f} us")
