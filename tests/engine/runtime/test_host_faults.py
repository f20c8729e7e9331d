"""Threads that cannot be started or die, exits with work under way, forks: errors and no hangs."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import evaluate
from trireme.runtime.dataflow.executor import Executor
from trireme.runtime.dataflow.lower import lower
from trireme.support.errors import RunError, TriremeError
from trireme.support.threads import TaskThreads

X = {"x": np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256)}
START = threading.Thread.start


def graph():
    rng = np.random.default_rng(0)
    b = GraphBuilder("m")
    x = b.input("x", TensorType((64, 256), "float32"))
    w = b.constant("w", rng.standard_normal((256, 256)).astype(np.float32))
    return b.finish(b.add("relu", b.add("matmul", x, w)))


@pytest.fixture
def session():
    how = trireme.ExecutionOptions(model_cache=None)
    with trireme.Session(graph(), threads=2, execution_options=how) as made:
        yield made


class Starts:
    """Have the n-th start of a thread fail, as where the system has no more."""

    def __init__(self, monkeypatch):
        self.fails_at, self.count = None, 0
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.start(thread))

    def start(self, thread):
        self.count += 1
        if self.count - 1 == self.fails_at:
            raise RuntimeError("can't start new thread")
        START(thread)


def bounded(work, most_s=20):
    """Return what a call returns or raises; a hang fails the test."""
    found = []

    def go():
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=go, daemon=True)
    START(thread)
    thread.join(most_s)
    assert found, "it hangs"
    return found[0]


def first(outputs):
    return next(iter(outputs.values()))


USES = {
    "run": lambda session: first(session.run(X)),
    "async": lambda session: first(session.run_async(X).result(15)),
    "async with a deadline": lambda session: first(session.run_async(X, timeout_s=15).result(15)),
    "stream": lambda session: first(list(session.stream([X] * 3))[2]),
}


@pytest.mark.parametrize("use", USES)
def test_a_thread_that_cannot_be_started_is_a_typed_error(use, monkeypatch):
    """For each start in turn; the session then works, and closes."""
    starts, hits = Starts(monkeypatch), 0
    right = None
    for at in range(5):
        how = trireme.ExecutionOptions(model_cache=None)
        made = trireme.Session(graph(), threads=2, execution_options=how)
        starts.count, starts.fails_at = 0, at
        found = bounded(lambda made=made: USES[use](made))
        was_hit, starts.fails_at = starts.count > at, None
        hits += was_hit
        if not isinstance(found, np.ndarray):
            assert was_hit and isinstance(found, TriremeError), repr(found)
            assert "cannot be started" in str(found)
        found = None  # the error holds a stream, which is under way until it is collected
        again = bounded(lambda made=made: first(made.run(X)))
        right = again if right is None else right
        assert (again == right).all()
        assert bounded(made.close) is None
    assert hits or use == "run"  # the cpu's threads may be there, of another session


def kill(thread):
    """Have a thread end at its next step of Python."""
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    assert raised == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_noticed_and_replaced():
    """Its job is lost: the caller can tell, and the next job works."""
    pool, done = TaskThreads("doomed", 1), threading.Event()
    pool.submit(done.set)
    assert done.wait(10) and pool.are_alive
    (thread,) = pool._threads
    kill(thread)
    pool.submit(lambda: None)  # wakes it
    thread.join(10)
    assert not thread.is_alive() and not pool.are_alive
    pool.end()
    done.clear()
    pool.submit(done.set)
    assert done.wait(10) and pool.are_alive
    pool.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_whose_thread_dies_with_an_op_ends_with_an_error(monkeypatch):
    """A thread that dies between taking a job and running it loses the job."""
    small = graph()
    executor = Executor(lower(small), lambda graph, node, arrays: evaluate(graph, node, arrays), 1)
    submit = TaskThreads.submit

    def lose(pool, job):
        submit(pool, lambda: None)
        kill(pool._threads[0])
        submit(pool, lambda: None)

    feeds = {small.inputs[0]: X["x"]}
    with monkeypatch.context() as patched:
        patched.setattr(TaskThreads, "submit", lose)
        error = bounded(lambda: executor.run(feeds))
    assert isinstance(error, RunError) and "a thread ended before its op was over" in str(error)
    (found,) = bounded(lambda: executor.run(feeds))
    assert found.shape == (64, 256)
    executor.close()


def test_threads_that_cannot_be_started_leave_the_others_usable(monkeypatch):
    starts = Starts(monkeypatch)
    pool = TaskThreads("few", 2)
    for at in range(2):
        starts.count, starts.fails_at = 0, at
        with pytest.raises(RunError, match="cannot be started"):
            pool.submit(lambda: None)
        starts.fails_at = None
        done = threading.Event()
        pool.submit(done.set)
        assert done.wait(10)
        pool.end()


BEGIN = """
import os, sys, threading, time, numpy as np, trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
b = GraphBuilder("m")
y = b.input("x", TensorType((4096, 1024), "float32"))
w = b.constant("w", np.full((1024, 1024), 1e-3, np.float32))
for _ in range(200):
    y = b.add("matmul", y, w)
how = trireme.ExecutionOptions(model_cache=None)
X = {"x": np.ones((4096, 1024), np.float32)}
session = trireme.Session(b.finish(y), threads=2, execution_options=how)
"""
EXITS = {
    "idle": "",
    "run": "threading.Thread(target=lambda: [session.run(X) for _ in range(9**9)], daemon=True)"
    ".start()",
    "async": "waiting = [session.run_async(X) for _ in range(100)]",
}
"""What is under way when a process ends; one run takes some 20 s."""


@pytest.mark.parametrize("most_s", [pytest.param(2, marks=pytest.mark.timed), 8])
@pytest.mark.parametrize("under_way", EXITS)
def test_a_process_with_work_under_way_ends(under_way, most_s):
    """Within 2 s on a quiet machine; nothing waits for a run."""
    code = f"{BEGIN}{EXITS[under_way]}\ntime.sleep(1)\nprint(time.time(), flush=True)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    took_s = time.time() - float(done.stdout)
    assert done.returncode == 0, done.stderr
    assert took_s < most_s, took_s


def test_a_forked_child_runs_the_sessions_of_its_parent_and_its_own(session):
    right = first(session.run(X))
    session.run_async(X).result(15)
    child = os.fork()
    if not child:
        status = 1
        try:
            how = trireme.ExecutionOptions(model_cache=None)
            with trireme.Session(graph(), threads=2, execution_options=how) as own:
                found = [first(own.run(X)), first(session.run(X))]
            found.append(first(session.run_async(X).result(15)))
            status = 0 if all((one == right).all() for one in found) else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    if not ended[0]:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    assert (first(session.run(X)) == right).all()
