"""Calls of one session at the same time: the bits of calls one after another, in any number."""

import os
import random
import threading
import time
import tracemalloc

import numpy as np
import pytest

from trireme.devices.cpu.runtime.cores import all_cores
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.python_op import python_op
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SEED = 20261125
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def convs(rows=12, symbol=None, layers=4):
    """Convolutions, whose kernels use memory of their thread, then products and sums of rows."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("convs")
    x = y = b.input("x", TensorType((1, symbol or rows, 12, 8), "float32"))
    kind = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    for k in range(layers):
        w = b.constant(f"w{k}", (rng.standard_normal((8, 3, 3, 8)) / 8).astype(np.float32))
        y = b.add("relu", b.add("conv", y, w, **kind))
    v = b.constant("v", rng.standard_normal((8, 16)).astype(np.float32))
    return b.finish(b.add("softmax", b.add("matmul", b.add("add", y, x), v), axis=-1, names=["y"]))


def feeds(seed, rows=12):
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((1, rows, 12, 8)).astype(np.float32)}


def together(works):
    """Run functions at the same time; raise the first error."""
    errors, start = [], threading.Barrier(len(works))

    def go(work):
        try:
            start.wait(20)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a call hangs"
    if errors:
        raise errors[0]


def hammer(session, given, wanted, callers=6, runs=40):
    """Have callers run feeds in orders of their own, and compare the bits."""
    print(f"seed {SEED}")

    def call(number):
        rng = random.Random(SEED + number)
        for _ in range(runs):
            k = rng.randrange(len(given))
            got = session.run(given[k])
            for name, array in wanted[k].items():
                assert np.array_equal(got[name], array), f"case {k}: other bits"

    together([lambda n=n: call(n) for n in range(callers)])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("contexts", [1, 2, 5])
def test_calls_at_once_have_the_bits_of_calls_one_after_another(threads, contexts):
    given = [feeds(seed) for seed in range(8)]
    with Session(convs(), threads=1) as one:
        wanted = [one.run(each) for each in given]
    with Session(convs(), threads=threads, contexts=contexts) as session:
        assert session.contexts == contexts
        hammer(session, given, wanted)


@pytest.mark.parametrize("most_shapes", [2, 64])
def test_calls_of_many_shapes_at_once_have_the_same_bits(most_shapes):
    """With few kept shapes, instances go while others run."""
    given = [feeds(rows, rows) for rows in (3, 5, 8, 12, 17, 30)]
    options = ExecutionOptions(most_shapes=most_shapes)
    with Session(convs(symbol="h"), threads=1) as one:
        wanted = [one.run(each) for each in given]
    with Session(convs(symbol="h"), contexts=4, execution_options=options) as session:
        hammer(session, given, wanted)
        assert session.ready.runner.program.kept <= max(most_shapes, 6)


def test_shapes_that_are_compiled_for_themselves_run_at_once():
    given = [feeds(rows, rows) for rows in (3, 5, 8)]
    options = ExecutionOptions(most_shapes=2, execution="interactive")
    with Session(convs(symbol="h"), threads=1, execution_options=options) as one:
        wanted = [one.run(each) for each in given]
    with Session(convs(symbol="h"), contexts=3, execution_options=options) as session:
        hammer(session, given, wanted, runs=10)
        assert {stage.tier for stage in session.stages} == {"specialised"}


def test_stored_programs_run_at_once(tmp_path):
    import trireme

    path = tmp_path / "m.trm"
    trireme.save(convs(), path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    given = [feeds(seed) for seed in range(6)]
    with Session(path, execution_options=options) as first:
        assert not first.is_stored
        wanted = [first.run(each) for each in given]
    with Session(path, contexts=3, execution_options=options) as session:
        assert session.is_stored and session.contexts == 3
        hammer(session, given, wanted)
        assert session.is_stored
        together([lambda: hammer(session, given, wanted, 2), lambda: session.plan])
        assert not session.is_stored
        hammer(session, given, wanted)


def test_contexts_are_made_when_a_second_call_comes():
    with Session(convs(), contexts=3) as session:
        for seed in range(5):
            session.run(feeds(seed))
        assert not session._runner.beside
        held = session._contexts.hold()
        next(held)
        session.run(feeds(0))
        assert list(session._runner.beside) == [1]
        held.close()


def test_why_calls_take_turns():
    cores = len(all_cores())
    with Session(convs(), threads=cores) as session:
        assert (session.contexts, session.contexts_why) == (cores + 2, "so many keep cpu busy")
    if cores > 1:
        with Session(convs(), threads=cores - 1) as session:
            assert session.contexts == cores - 1
    b = GraphBuilder("python")
    twice = python_op(lambda x: x + x, name="twice")
    y = b.add("python", b.input("x", TensorType((4,), "float32")), names=["y"], **twice.attrs())
    graph = b.finish(y)
    with Session(graph) as session:
        assert session.contexts == 1 and "Python operator" in session.contexts_why
    with Session(graph, contexts=2) as session:
        assert session.contexts == 2


def test_many_threads_have_no_more_contexts_than_there_may_be(tmp_path):
    """Neither one, as without threads, nor one for each of a hundred threads."""
    import trireme

    path = tmp_path / "m.trm"
    trireme.save(convs(), path)
    options = ExecutionOptions(model_cache=str(tmp_path))
    for is_stored in (False, True):
        with Session(path, threads=100, execution_options=options) as session:
            session.run(feeds(0))
            assert (session.is_stored, session.contexts) == (is_stored, 64)


def test_contexts_that_cannot_be_are_an_error():
    with pytest.raises(RunError, match="contexts is 0, expected a whole number from 1 to 64"):
        Session(convs(), contexts=0)
    with pytest.raises(RunError, match="2 contexts cannot be: cpu#1 works on one call at a time"):
        Session(convs(), devices=["cpu#1"], threads=1, contexts=2)


def test_an_error_of_one_call_leaves_the_others_right():
    b = GraphBuilder("gather")
    x, i = b.input("x", TensorType((64, 64), "float32")), b.input("i", TensorType((64,), "int64"))
    graph = b.finish(b.add("softmax", b.add("gather", x, i, axis=0), axis=-1, names=["y"]))
    rng = np.random.default_rng(SEED)
    good = {"x": rng.standard_normal((64, 64)).astype(np.float32), "i": np.arange(64)}
    bad = {**good, "i": np.full(64, 99)}
    with Session(graph, contexts=3) as session:
        wanted = session.run(good)["y"]

        def right():
            for _ in range(100):
                assert np.array_equal(session.run(good)["y"], wanted)

        def wrong():
            for _ in range(100):
                with pytest.raises(RunError, match="99"):
                    session.run(bad)
                with pytest.raises(RunError, match="not given|missing"):
                    session.run({"x": good["x"]})

        together([right, right, wrong, wrong])


def test_closing_under_load_ends_every_call():
    for _ in range(5):
        session = Session(convs(), contexts=2)
        wanted, ended = session.run(feeds(0))["y"], []

        def call(session=session, wanted=wanted, ended=ended):
            with pytest.raises(RunError, match="the session is closed"):
                while True:
                    assert np.array_equal(session.run(feeds(0))["y"], wanted)
            ended.append(True)

        def close(session=session):
            time.sleep(0.02)
            session.close()

        together([call] * 5 + [close])
        assert len(ended) == 5


@needs_fork
def test_a_child_of_a_fork_under_load_runs():
    with Session(convs(), contexts=3) as session, Session(convs(symbol="h"), contexts=3) as shapes:
        stopped = threading.Event()
        wanted = [(one, one.run(feeds(0))["y"]) for one in (session, shapes)]

        def call(of):
            while not stopped.is_set():
                of.run(feeds(0))

        threads = [threading.Thread(target=call, args=(one,)) for one in (session, shapes) * 2]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                pid = os.fork()
                if not pid:
                    right = [np.array_equal(one.run(feeds(0))["y"], y) for one, y in wanted]
                    os._exit(0 if all(right) else 1)
                assert os.waitpid(pid, 0)[1] == 0
        finally:
            stopped.set()
            for thread in threads:
                thread.join(20)
        assert not any(thread.is_alive() for thread in threads)


def test_memory_stays_flat_over_many_runs():
    b = GraphBuilder("small")
    graph = b.finish(b.add("relu", b.input("x", TensorType((1, 64), "float32")), names=["y"]))
    x = {"x": np.ones((1, 64), np.float32)}
    with Session(graph, contexts=3) as session:

        def call():
            for _ in range(2500):
                session.run(x)

        together([call] * 4)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            together([call] * 4)
            assert tracemalloc.get_traced_memory()[0] - before < 64 << 10
        finally:
            tracemalloc.stop()


def test_a_long_call_gives_way_and_takes_its_threads_back():
    """A call that begins with the workers goes on alone beside others, with the same bits."""
    big, small = convs(rows=200, layers=12), convs()
    with Session(big, threads=2) as long, Session(small, threads=2) as short:
        device = long.devices["cpu"]
        with Session(small, devices=[device]) as beside:
            want_long, want = long.run(feeds(1, 200))["y"], short.run(feeds(2))["y"]

            def run_long():
                for _ in range(10):
                    assert np.array_equal(long.run(feeds(1, 200))["y"], want_long)

            def run_beside():
                for _ in range(200):
                    assert np.array_equal(beside.run(feeds(2))["y"], want)

            together([run_long, run_beside, run_beside])
