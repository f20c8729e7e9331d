"""The cpu device's workers and its object cache: sleep, forks, exits, several callers, damage."""

import logging
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from alarm import Interrupted, alarms, needs_timers
from zoo import CHECKOUT

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.devices.cpu.options import NO_CACHE
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.errors import DeviceError

SHAPE = (300_000,)


def tanh_graph():
    builder = GraphBuilder("tanh")
    x = builder.input("x", TensorType(SHAPE, "float32"))
    return builder.finish(builder.add("tanh", x))


def bound(device, seed=0):
    """A bound call, its input and its output as arrays."""
    executable = device.compile([tanh_graph()])[0]
    x, y = (device.alloc(4 * SHAPE[0]) for _ in range(2))
    x.handle.view(np.float32)[:] = np.random.default_rng(seed).standard_normal(SHAPE)
    return executable.bind([x, y], None), x.handle.view(np.float32), y.handle.view(np.float32)


@pytest.fixture(params=["futex", "python"])
def device(request, tmp_path):
    opened = open_device(
        "cpu",
        threads=3,
        cache_dir=tmp_path / "cache",
        spins=500,
        futex=None if request.param == "futex" else False,
    )
    yield opened
    opened.close()


def test_an_idle_session_costs_no_cpu(device):
    call, x, y = bound(device)
    for _ in range(3):
        call.launch()
    time.sleep(0.05)  # spinning ends
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1  # one that spins takes a whole core
    call.launch()
    np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)


def test_a_short_call_stays_as_chosen(device):
    call, x, y = bound(device)
    (native,) = call._parts
    for alone in (True, False):
        assert call.use_single_thread(alone)
        for _ in range(40):
            call.launch()
        words = native.call.words
        assert words[runtime.CALL_RUNS] == -1  # no trials, nothing learnt
        assert (words[runtime.CALL_WITH] > words[runtime.CALL_ALONE]) == alone
        np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)
    assert call.use_single_thread(None)
    for _ in range(40):
        call.launch()
    assert native.call.words[runtime.CALL_RUNS] >= 40
    call.launch(profile=True)  # runs in the way that was learnt
    learnt = [runtime.CALL_WITH, runtime.CALL_ALONE]
    assert (native._stamping.words[learnt] == native.call.words[learnt]).all()


@pytest.mark.parametrize(
    ("runs", "with_ns", "runs_after"),
    [(4, 1, 32), (4, 1 << 60, 8), (28, 1, 32), (28, 1 << 60, 960), (1052, 1 << 60, 1056)],
)
def test_a_clear_trial_ends_early(device, runs, with_ns, runs_after):
    """Four runs alone that are slower by far are enough; the first unclear trial comes again."""
    call, _, _ = bound(device)
    (native,) = call._parts
    words = native.call.words
    for _ in range(4):
        call.launch()
    assert words[runtime.CALL_RUNS] == 4
    words[runtime.CALL_RUNS], words[runtime.CALL_WITH] = runs, with_ns
    for _ in range(4):
        call.launch()
    assert words[runtime.CALL_RUNS] == runs_after


def test_several_callers_take_turns(device):
    calls = [bound(device, seed) for seed in range(4)]

    def work(call):
        for _ in range(50):
            call.launch()

    threads = [threading.Thread(target=work, args=(call,)) for call, _, _ in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for _, x, y in calls:
        np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)


def test_steps_of_more_chunks_than_a_share_holds(device, monkeypatch):
    """They become several rows of the table, each with its first chunk's number."""
    monkeypatch.setattr(runtime, "MOST_CHUNKS", 3)
    call, x, y = bound(device)
    for _ in range(5):
        y[:] = 0
        call.launch()
        np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)


def test_a_closed_device_says_so(device):
    call, _, _ = bound(device)
    call.launch()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        call.launch()


def test_a_call_without_work_for_workers_starts_none(device, monkeypatch):
    builder = GraphBuilder("small")
    graph = builder.finish(builder.add("relu", builder.input("x", TensorType((16,), "float32"))))
    x, y = (device.alloc(64) for _ in range(2))
    call = device.compile([graph])[0].bind([x, y], None)
    with monkeypatch.context() as patched:
        patched.setattr(StepPool, "_run_with_care", lambda *_: pytest.fail("it was run with care"))
        for value in (-1.0, 2.0):
            x.handle.view(np.float32)[:16] = value
            call.launch()
            assert (y.handle.view(np.float32)[:16] == max(value, 0)).all()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        call.launch()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_runs(device):
    call, x, y = bound(device)
    call.launch()
    y[:] = 0
    child = os.fork()
    if child == 0:
        ok = False
        try:
            call.launch()
            ok = bool(np.allclose(y, np.tanh(x), rtol=2e-6))
        finally:
            os._exit(0 if ok else 1)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        pytest.fail("the forked child hangs")
    call.launch()
    np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)


@needs_timers
def test_a_long_run_can_be_interrupted(device):
    """A signal is seen between chunks of one long step; the device works afterwards."""
    builder = GraphBuilder("long")
    size = 1536
    x = builder.input("x", TensorType((size, size), "float32"))
    weights = np.full((size, size), 1 / size, np.float32)
    y = x
    for _ in range(4):
        y = builder.add("matmul", y, builder.constant("w", weights))
    graph = builder.finish(y)
    executable = device.compile([graph])[0]
    buffers = [device.alloc(4 * size * size) for _ in range(2)]
    buffers[0].handle.view(np.float32)[:] = 1
    call = executable.bind(buffers, device.alloc(executable.scratch_bytes))
    call.launch()
    expected = buffers[1].handle.copy()

    with alarms() as set_alarm:
        hits = 0
        for delay in (0.001, 0.01, 0.03):
            set_alarm(delay)
            try:
                for _ in range(20):
                    call.launch()
            except Interrupted:
                hits += 1
        assert hits == 3
    buffers[1].handle[:] = 0
    call.launch()
    np.testing.assert_array_equal(buffers[1].handle, expected)


@pytest.mark.parametrize("close", ["device.close()", "pass", "del device, call"])
def test_the_interpreter_ends(close, tmp_path):
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "import test_pool as t, pathlib\n"
        "device = t.open_device('cpu', threads=3, cache_dir=pathlib.Path(sys.argv[3]))\n"
        "call, x, y = t.bound(device)\n"
        "call.launch()\n"
        f"{close}\n"
    )
    here, support = os.path.dirname(__file__), str(CHECKOUT / "tests" / "support")
    done = subprocess.run(
        [sys.executable, "-c", code, here, support, str(tmp_path)], timeout=60, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_damaged_objects_are_compiled_again(tmp_path, caplog):
    folder = tmp_path / "cache"
    for damage in (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1]):
        device = open_device("cpu", threads=1, cache_dir=folder)
        bound(device)[0].launch()
        device.close()
        objects = list(folder.glob("*.o"))
        assert objects
        for path in objects:
            path.write_bytes(damage(path.read_bytes()))
        with caplog.at_level(logging.WARNING):
            device = open_device("cpu", threads=1, cache_dir=folder)
            call, x, y = bound(device)
        call.launch()
        device.close()
        np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)
        assert "damaged" in caplog.text


def test_a_cache_others_can_write_is_not_used(tmp_path, caplog):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        device = open_device("cpu", threads=1, cache_dir=folder)
        bound(device)[0].launch()
    device.close()
    assert not list(folder.iterdir())
    assert "its mode is 777, expected 700" in caplog.text


def test_options_are_checked():
    with pytest.raises(DeviceError, match="threads"):
        open_device("cpu", threads=0)
    with pytest.raises(DeviceError, match="unknown instruction set"):
        open_device("cpu", isa="sse9")
    open_device("cpu", threads=1, cache_dir=NO_CACHE).close()


def test_a_parked_worker_sleeps_as_soon_as_the_run_is_over(tmp_path):
    """With spins that never end, only parking lets it sleep; the next run wakes it."""
    device = open_device("cpu", threads=2, cache_dir=tmp_path / "cache", spins=1 << 60)
    if not device._pool.futex:
        pytest.skip("workers sleep in Python here")
    try:
        call, x, y = bound(device)
        call.set_idle()
        (native,) = call._parts
        native.call.words[runtime.CALL_WAKES] = 1
        assert call.use_single_thread(False)
        for run in range(50):
            x[:] = run / 50
            call.launch()
            np.testing.assert_allclose(y, np.tanh(x), rtol=2e-6)
            deadline = time.monotonic() + 20  # a hang guard
            while device._pool._workers.context[runtime.SLEEPERS] != 1:
                assert time.monotonic() < deadline, f"run {run}: the worker does not sleep"
                time.sleep(0.0005)
    finally:
        device.close()


def workers():
    return sum(thread.name.startswith("trireme-cpu-") for thread in threading.enumerate())


def test_pools_of_as_many_threads_share_their_workers():
    before = workers()
    one, two = (open_device("cpu", threads=7, cache_dir=NO_CACHE) for _ in range(2))
    assert one._pool._workers is two._pool._workers
    for device in (one, two):
        device._pool._workers.start()
    assert workers() == before + 6
    one.close()
    assert workers() == before + 6
    two.close()
    assert workers() == before
    three = open_device("cpu", threads=7, cache_dir=NO_CACHE)
    assert three._pool._workers is not two._pool._workers
    three.close()


def test_more_threads_than_cores_in_several_pools_are_a_warning(caplog):
    one = open_device("cpu", threads=7, cache_dir=NO_CACHE)
    caplog.clear()
    again = open_device("cpu", threads=7, cache_dir=NO_CACHE)
    assert not caplog.text
    two = open_device("cpu", threads=200, cache_dir=NO_CACHE)
    assert "sessions of this process work with" in caplog.text
    assert "with equal threads= share theirs" in caplog.text
    for device in (one, again, two):
        device.close()
