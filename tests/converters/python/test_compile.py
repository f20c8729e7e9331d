"""trireme.compile: graphs answer while their guards hold, Python else, and the counts say so."""

import numbers

import numpy as np
import pytest
from small_programs import PROGRAMS, bisection, collatz, horner

import trireme
from trireme import eager
from trireme.converters.python.trace import TraceWarning

SEED = 7
X = np.linspace(-1, 2, 6).astype(np.float32).reshape(2, 3)
SCALE = 2.0


def branching(x, n):
    y = np.tanh(x) * SCALE
    y = y + n if y.sum() > 0 else y - n
    return y, n


def expect_same(got, wanted):
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-6, err_msg=f"seed {SEED}")
    assert got[1] == wanted[1]


def test_a_path_is_traced_once_and_then_runs_as_a_graph():
    compiled = trireme.compile(branching)
    for _ in range(3):
        expect_same(compiled(X, 3), branching(X, 3))
    stats = compiled.stats
    assert (stats.calls, stats.graph_runs, stats.eager_runs, stats.graphs) == (3, 2, 1, 1)
    assert stats.guard_misses == 0
    compiled.close()


def test_a_guard_miss_runs_as_python_and_is_counted_with_its_line():
    compiled = trireme.compile(branching)
    for x in (X, -X, X, -X, -X):
        expect_same(compiled(x, 3), branching(x, 3))
    stats = compiled.stats
    assert (stats.guard_misses, stats.eager_runs, stats.graphs, stats.graph_runs) == (1, 2, 2, 3)
    line = branching.__code__.co_firstlineno + 2
    assert set(stats.missed_at) == {f"test_compile.py:{line}"}
    compiled.close()


@pytest.mark.parametrize(
    "other",
    [(X[:1], 3), (X.astype(np.float64), 3), (X, 4), (X, 3.0)],
    ids=["shape", "dtype", "number", "kind of number"],
)
def test_other_types_and_values_are_other_graphs(other):
    compiled = trireme.compile(branching)
    for case in ((X, 3), other, other, (X, 3)):
        expect_same(compiled(*case), branching(*case))
    stats = compiled.stats
    assert (stats.graphs, stats.guard_misses, stats.graph_runs) == (2, 0, 2)
    compiled.close()


def test_a_global_that_changed_is_another_graph(monkeypatch):
    compiled = trireme.compile(branching)
    compiled(X, 3)
    monkeypatch.setitem(branching.__globals__, "SCALE", 5.0)
    for _ in range(2):
        expect_same(compiled(X, 3), branching(X, 3))
    assert compiled.stats.graphs == 2
    compiled.close()


def test_beyond_the_most_graphs_calls_run_as_python():
    compiled = trireme.compile(branching, most_graphs=1)
    for x in (X, -X, -X, X):
        expect_same(compiled(x, 3), branching(x, 3))
    stats = compiled.stats
    assert (stats.graphs, stats.eager_runs, stats.guard_misses, stats.graph_runs) == (1, 3, 2, 1)
    compiled.close()


@pytest.mark.parametrize("program", [collatz, bisection, horner], ids=lambda one: one.__name__)
def test_programs_that_decide_often_stay_right(program):
    rng = np.random.default_rng(SEED)
    cases = [[draw(rng) for draw in PROGRAMS[program]] for _ in range(4)]
    compiled = trireme.compile(program, most_graphs=2)
    for case in (*cases, *cases):
        got, wanted = compiled(*case), program(*case)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, err_msg=f"seed {SEED}: {case}")
    stats = compiled.stats
    assert stats.calls == 8
    assert stats.graph_runs + stats.eager_runs == 8
    assert stats.graph_runs > 0
    compiled.close()


def test_tensors_come_in_and_go_out():
    compiled = trireme.compile(lambda x: eager.softmax(x * 2))
    x = eager.tensor(X)
    for _ in range(2):
        made = compiled(x)
        assert isinstance(made, eager.Tensor)
        np.testing.assert_allclose(made.numpy(), eager.softmax(x * 2).numpy(), rtol=1e-5)
    assert compiled.stats.graph_runs == 1
    compiled.close()


def test_an_op_that_fails_past_another_decision_is_a_miss():
    def guarded(xs, i):
        return xs[i] if i < 3 else xs[0] * 2

    compiled = trireme.compile(guarded)
    xs = np.arange(3.0)
    for i in (np.int64(1), np.int64(7), np.int64(2)):
        assert compiled(xs, i) == guarded(xs, i)
    assert compiled.stats.guard_misses == 1
    compiled.close()


def of_its_kind(x, n, s):
    """What a tensor and an array answer differently."""
    y = x * 2 if isinstance(x, np.ndarray) else x
    if isinstance(n, numbers.Integral) and n in {1, 2, 3}:
        y = y + {1: 0.5, 2: 0.25}.get(n, 8.0)
    seen = {}
    for one in (n, n + 1, n):
        seen[one] = seen.get(one, 0) + 1
    return y * len(seen) if isinstance(s, float) else y, round(s * 3), round(s, 1)


def test_what_asks_for_the_kind_or_the_key_of_a_value_gets_that_of_numpy():
    compiled = trireme.compile(of_its_kind)
    for n in (2, 3, 9, 2):
        for _ in range(2):
            case = np.ones(3), np.int64(n), np.float64(1.26)
            for got, wanted in zip(compiled(*case), of_its_kind(*case), strict=True):
                np.testing.assert_array_equal(got, wanted)
    assert compiled.stats.graph_runs == 5
    with pytest.warns(TraceWarning, match="a key from int64"):
        trireme.trace(of_its_kind, *case)
    compiled.close()


def test_an_array_that_is_changed_in_place():
    def added(total, v):
        total += v

    def shared(x):
        y = x * 2
        z = y
        added(z, np.float64(0.5) * x)
        return y, z

    def viewed(x):
        y = x * 2
        row = y[0]
        row += 1
        return y

    compiled = trireme.compile(shared)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(X), shared(X))
    assert (compiled.stats.graphs, compiled.stats.graph_runs) == (1, 1)
    compiled.close()
    compiled = trireme.compile(viewed)
    with pytest.warns(UserWarning, match="that another value shows is changed in place"):
        np.testing.assert_array_equal(compiled(X), viewed(X))
    changing = trireme.compile(added)
    given = np.zeros(2)
    with pytest.warns(UserWarning, match="an argument is changed in place"):
        assert changing(given, np.ones(2)) is None
    np.testing.assert_array_equal(given, 1)


def test_what_a_traced_value_lacks_runs_as_python():
    def filled(x):
        y = x * 2
        y.fill(3)
        return y

    compiled = trireme.compile(filled)
    line = filled.__code__.co_firstlineno + 2
    with pytest.warns(UserWarning, match=rf":{line}: .* no attribute 'fill'; every call runs"):
        np.testing.assert_array_equal(compiled(X), filled(X))

    def raising(x):
        raise ValueError("too big")

    compiled = trireme.compile(raising)
    with pytest.raises(ValueError, match="too big"):
        compiled(X)


def test_what_returns_no_tensor_is_an_error():
    with pytest.raises(trireme.ConvertError, match="returns no tensor"):
        trireme.compile(lambda x: 3)(X)
    with pytest.raises(trireme.ConvertError, match="missing a required argument"):
        trireme.compile(branching)(X)
