"""Large arrays are used where they are: when, and what must not change by it."""

import weakref

import numpy as np
import pytest

import trireme.ops  # noqa: F401
from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

LARGE, SMALL = (64, 512), (4, 4)


def session(shape=LARGE, nodes=("relu",), execution="sunk"):
    """A chain of ops over one input, x to y."""
    builder = GraphBuilder("chain")
    value = builder.input("x", TensorType(shape, "float32"))
    for k, op in enumerate(nodes):
        value = builder.add(op, value, names=["y" if k == len(nodes) - 1 else f"v{k}"])
    graph = builder.finish(value)
    how = ExecutionOptions(passes=(), execution=execution)
    return Session(graph, threads=2, calibration=Calibration(), execution_options=how)


def numbers(shape=LARGE, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def variants(x):
    """The same numbers as arrays that lie differently in memory."""
    yield "dense", x.copy()
    yield "Fortran order", np.asfortranarray(x)
    yield "every other row", np.repeat(x, 2, axis=0)[::2]
    yield "read-only", _read_only(x)
    shifted = np.empty(x.nbytes + 4, np.uint8)[4:].view(np.float32).reshape(x.shape)
    shifted[...] = x
    yield "4 bytes off", shifted
    odd = np.empty(x.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(x.shape)
    odd[...] = x
    yield "1 byte off", odd
    yield "a list", x.tolist()


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize(
    "nodes", [("relu",), ("tanh", "abs"), ("identity",), ("softmax", "relu"), ("relu", "identity")]
)
def test_inputs_of_every_form(shape, nodes):
    x = numbers(shape)
    with session(shape, nodes) as made:
        expected = made.run({"x": x.copy()})["y"].copy()
        for name, form in variants(x):
            if name == "a list":
                form = np.asarray(form, np.float32)
            before = np.array(form)
            got = made.run({"x": form})["y"]
            np.testing.assert_array_equal(got, expected, err_msg=name)
            np.testing.assert_array_equal(form, before, err_msg=name)


def test_outputs_are_the_callers_own():
    """An output stays as it is when the session runs again, and when it is closed."""
    a, b = numbers(seed=1), numbers(seed=2)
    with session() as made:
        first = made.run({"x": a})["y"]
        second = made.run({"x": b})["y"]
        assert not np.may_share_memory(first, second)
    np.testing.assert_array_equal(first, np.maximum(a, 0))
    np.testing.assert_array_equal(second, np.maximum(b, 0))


def test_an_input_may_be_changed_and_freed_after_the_run():
    with session() as made:
        x = numbers()
        expected = np.maximum(x, 0)
        y = made.run({"x": x})["y"]
        x[:] = -1
        np.testing.assert_array_equal(y, expected)
        del x
        np.testing.assert_array_equal(
            made.run({"x": numbers(seed=3)})["y"], np.maximum(numbers(seed=3), 0)
        )


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_out_of_every_form(shape):
    x = numbers(shape)
    expected = np.maximum(x, 0)
    with session(shape) as made:
        for name, target in variants(np.zeros(shape, np.float32)):
            if name in ("read-only", "a list"):
                continue
            given = made.run({"x": x}, out={"y": target})["y"]
            assert given is target, name
            np.testing.assert_array_equal(target, expected, err_msg=name)


@pytest.mark.parametrize("nodes", [("softmax", "abs"), ("abs",)])
def test_out_may_be_the_input(nodes):
    """Ops of an array into itself, and into one that overlaps it."""
    room = np.zeros((LARGE[0] + 1, LARGE[1]), np.float32)
    with session(nodes=nodes) as made:
        for target in (room[:-1], room[1:]):
            room[...] = 0
            room[:-1] = numbers()
            expected = made.run({"x": numbers()})["y"]
            made.run({"x": room[:-1]}, out={"y": target})
            np.testing.assert_array_equal(target, expected)


def test_out_is_checked_before_the_run():
    x = numbers()
    with session() as made:
        with pytest.raises(RunError, match="expected float32"):
            made.run({"x": x}, out={"y": np.zeros(SMALL, np.float32)})
        with pytest.raises(RunError, match="no output is called z"):
            made.run({"x": x}, out={"z": np.zeros(LARGE, np.float32)})
        with pytest.raises(RunError, match="expected float32"):
            made.run({"x": x}, out={"y": np.zeros(LARGE, np.float64)})
        np.testing.assert_array_equal(made.run({"x": x})["y"], np.maximum(x, 0))


def test_watched_runs_see_every_value():
    """A value that is watched is read from its own place, so nothing is used in place then."""
    x = numbers()
    with session(nodes=("relu", "abs"), execution="interactive") as made:
        made.run({"x": numbers(seed=9)})
        steps = []
        made.run_nodes({"x": x}, steps.append)
        (y,) = steps[-1].values.values()
        np.testing.assert_array_equal(y, np.maximum(x, 0))


@pytest.mark.parametrize("call", ["profile", "run_traced"])
def test_what_the_tries_of_a_mode_write_into_is_alive(call, monkeypatch):
    """Large outputs are written where they will be handed out, by every try: never into arrays that
    are gone (it damaged the heap), nor into those that the user has."""
    b = GraphBuilder("large")
    x = b.input("x", TensorType((300, 300), "float32"))
    with Session(b.finish(b.add("exp", x)), threads=1, calibration=Calibration()) as session:
        feeds = {"x": np.zeros((300, 300), np.float32)}
        given, alive = [], []
        give = session.ready.latest().binding.bind

        def watched(*args, **named):
            targets = give(*args, **named)
            given[:] = [weakref.ref(array) for array, _ in targets[0] if array is not None]
            return targets

        monkeypatch.setattr(session.ready.latest().binding, "bind", watched)
        monkeypatch.setattr(
            session.runs, "choose_executor", lambda: alive.extend(r() for r in given)
        )
        getattr(session, call)(feeds)
        assert len(alive) == 1 and alive[0] is not None
