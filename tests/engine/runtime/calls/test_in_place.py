"""Bound runs whose program has the caller's arrays as inputs and outputs."""

import threading

import numpy as np
import pytest
from cpu_run import sample_graph
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SEED = 20261129
ROWS = TensorType((1, 4, 6), "float32")
NEW = TensorType((1, 1, 6), "float32")


def window():
    """Return a graph whose state holds the last four frames; y is their weighted sum."""
    b = GraphBuilder("window")
    x = b.input("x", NEW)
    zero = b.constant("zero", np.zeros(ROWS.shape, np.float32))
    old = b.add("variable", zero, state="frames")
    both = b.add("concat", old, x, axis=1)
    ends = [b.constant(name, np.array([k])) for name, k in (("from", 1), ("to", 5), ("axis", 1))]
    b.add("assign", b.add("slice", both, *ends), state="frames")
    weights = b.constant("weights", np.arange(1, 6, dtype=np.float32).reshape(1, 5, 1))
    y = b.add("reduce_sum", b.add("mul", both, weights), b.constant("axes", np.array([1])))
    return b.finish(b.add("tanh", y, names=["y"]))


def frames(count):
    rng = np.random.default_rng(SEED)
    return [rng.standard_normal(NEW.shape).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 2])
def test_fifty_frames_of_a_window(threads):
    """A bound run, plain runs and another bound run take turns on one state."""
    graph, states, x = window(), {}, np.empty(NEW.shape, np.float32)
    y = np.empty((1, 1, 6), np.float32)
    with Session(graph, devices=["cpu"], threads=threads) as session:
        bound, other = session.bind({"x": x}, {"y": y}), session.bind({"x": x})
        assert bound.copies == other.copies == ()
        for k, frame in enumerate(frames(50)):
            (want,) = interpret(graph, {graph.inputs[0]: frame}, states=states).values()
            x[...] = frame
            if k % 5 == 3:
                made = session.run({"x": frame})["y"]
            else:
                run = other if k % 5 == 1 else bound
                made = run.run()["y"]
                assert made is run.outputs["y"]
            np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)
            assert session.get_state()["frames"].tobytes() == states["frames"].tobytes()
        saved, first = session.get_state(), bound.run()["y"].copy()
        session.set_state(saved)
        assert bound.run()["y"].tobytes() == first.tobytes() == y.tobytes()
        session.reset()
        assert not session.get_state()["frames"].any()


def test_every_way_to_run_gives_the_bits_of_a_bound_run():
    ways = [dict(mode="serial"), dict(mode="parallel"), dict(threads=1), dict(threads=2)]
    made = []
    for way in ways:
        x = np.empty(NEW.shape, np.float32)
        with Session(window(), devices=["cpu"], **way) as session:
            bound, outputs = session.bind({"x": x}), []
            for frame in frames(8):
                x[...] = frame
                outputs.append(bound.run()["y"].tobytes())
        made.append(outputs)
    with Session(window(), devices=["cpu"]) as session:
        plain = [session.run({"x": frame})["y"].tobytes() for frame in frames(8)]
    assert all(one == plain for one in made)


def test_an_output_tied_to_an_input_is_a_state_of_bound_runs():
    b = GraphBuilder("sum")
    past, x = b.input("past", NEW), b.input("x", NEW)
    total = b.add("add", past, x, names=["present"])
    graph, x = b.finish(b.add("neg", total, names=["y"]), total), np.ones(NEW.shape, np.float32)
    with Session(graph, devices=["cpu"], states={"past": "present"}) as session:
        bound = session.bind({"x": x})
        assert bound.copies == ()
        assert set(bound.run()) == {"y"}
        session.run({"x": x})
        assert bound.run()["y"].tolist() == [[[-3] * 6]]


def test_a_closed_session_runs_no_more():
    session = Session(window(), devices=["cpu"])
    bound = session.bind({"x": np.zeros(NEW.shape, np.float32)})
    bound.run()
    session.close()
    with pytest.raises(RunError, match="closed"):
        bound.run()


def picks():
    """Return a graph that reads rows by number: one that is not there is an error."""
    b = GraphBuilder("picks")
    table, row = (
        b.input("table", TensorType((4, 3), "float32")),
        b.input("row", TensorType((1,), "int64")),
    )
    zero = b.constant("zero", np.zeros((1, 3), np.float32))
    old = b.add("variable", zero, state="sum")
    made = b.add("add", old, b.add("gather", table, row, axis=0), names=["y"])
    b.add("assign", made, state="sum")
    return b.finish(made)


def test_a_run_that_fails_is_as_one_of_the_session():
    table, row = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1])
    with Session(picks(), devices=["cpu"]) as session:
        bound = session.bind({"table": table, "row": row})
        bound.run()
        row[0] = 9
        with pytest.raises(RunError) as mine:
            bound.run()
        left = session.get_state()["sum"]
        session.reset()
        session.run({"table": table, "row": np.array([1])})
        with pytest.raises(RunError) as plain:
            session.run({"table": table, "row": row})
        assert str(mine.value) == str(plain.value)
        assert left.tobytes() == session.get_state()["sum"].tobytes()
        session.set_state({"sum": np.zeros((1, 3), np.float32)})
        row[0] = 2
        assert bound.run()["y"].tolist() == [[6, 7, 8]]


def test_bound_runs_of_many_threads_are_right():
    b = GraphBuilder("small")
    x = b.input("x", TensorType((40,), "float32"))
    graph = b.finish(b.add("mul", x, b.add("tanh", x), names=["y"]))
    wrong = []

    def work(session, seed):
        mine = np.empty(40, np.float32)
        bound, rng = session.bind({"x": mine}), np.random.default_rng(seed)
        for k in range(200):
            mine[...] = rng.standard_normal(40)
            made = session.run({"x": mine})["y"] if k % 7 == seed else bound.run()["y"]
            if not np.allclose(made, mine * np.tanh(mine), rtol=1e-5, atol=1e-6):
                wrong.append((seed, k))

    with Session(graph, devices=["cpu"], contexts=2, threads=2) as session:
        threads = [threading.Thread(target=work, args=(session, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not wrong


OPS = {op.name: op for op in all_ops() if not op.effect}
OFTEN = ["add", "concat", "conv", "gather", "identity", "reshape", "slice", "softmax", "split"]


@pytest.mark.parametrize("name", sweep(OPS, always=OFTEN))
def test_every_op_on_bound_arrays(name):
    """The outputs have the bits of a plain run, whether the arrays are in place or copied."""
    for sample in list(OPS[name].samples(np.random.default_rng(SEED)))[:2]:
        graph, feeds = sample_graph(OPS[name], sample)
        named = {graph.values[value].name: array for value, array in feeds.items()}
        with Session(graph, devices=["cpu"], execution_options=AS_GIVEN) as session:
            bound = session.bind({key: array.copy() for key, array in named.items()})
            for _ in range(2):
                made, plain = bound.run(), session.run(named)
                for key, array in plain.items():
                    assert np.asarray(made[key]).tobytes() == array.tobytes(), bound.copies
