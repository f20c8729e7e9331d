"""Textbook programs as a newcomer writes them: capture, a session and compile beside Python."""

import warnings

import none_programs
import numpy as np
import pytest
import textbook_arrays
import textbook_methods
import textbook_programs
import textbook_statistics
import user_helped
import user_methods
import user_signals
from same_as_python import expect_same, in_python

import trireme
from trireme.converters.python.trace import TraceWarning

SEED = 26
PROGRAMS = (
    textbook_programs.PROGRAMS
    | textbook_arrays.PROGRAMS
    | textbook_methods.PROGRAMS
    | textbook_statistics.PROGRAMS
    | none_programs.PROGRAMS
    | user_methods.PROGRAMS
    | user_signals.PROGRAMS
)
by_name = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


def draws(program, count, programs=PROGRAMS):
    rng = np.random.default_rng([SEED, len(program.__name__)])
    return [[draw(rng) for draw in programs[program]] for _ in range(count)]


@by_name
def test_capture_gives_what_python_gives(program):
    cases = draws(program, 16)
    captured = trireme.capture(program, *cases[0], fallback=False)
    graph = captured.graph()
    for case in cases:
        expect_same(captured(*case), in_python(program, case), case)
    names = [value.name for value in graph.input_values()]
    with trireme.Session(graph) as session:
        for case in cases[:3]:
            made = session.run(dict(zip(names, map(np.asarray, case), strict=True)))
            got = [made[graph.values[value].name] for value in graph.outputs]
            expect_same(got, in_python(program, case), case)


@by_name
def test_compile_gives_what_python_gives(program):
    compiled = trireme.compile(program, devices=["cpu"], most_graphs=3)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", TraceWarning)
        for case in draws(program, 6):
            got = compiled(*[np.copy(one)[()] for one in case])
            expect_same(got, in_python(program, case), case)
    compiled.close()


@pytest.mark.parametrize("program", user_helped.PROGRAMS, ids=lambda program: program.__name__)
def test_one_statement_that_no_op_stands_for_runs_in_python(program):
    cases = draws(program, 6, user_helped.PROGRAMS)
    with pytest.raises(trireme.ConvertError, match=r"user_helped\.py:\d+: .*no op stands for it"):
        trireme.capture(program, *cases[0], fallback=False)
    captured = trireme.capture(program, *cases[0])
    assert len(captured.fallbacks()) == 1
    for case in cases:
        expect_same(captured(*case), in_python(program, case), case, 1e-9)


def test_a_loop_whose_else_leaves_the_outer_loop():
    """The `continue` and `break` of an `else` belong to the loop around it."""

    def place(m):
        found = (-1, -1)
        for i in range(m.shape[0]):
            for j in range(m.shape[1]):
                if m[i, j] > 1.0:
                    found = (i, j)
                    break
            else:
                continue
            break
        return found

    m = np.zeros((3, 3))
    m[0, 2] = m[2, 0] = 2
    captured = trireme.capture(place, m)
    assert tuple(map(int, captured(m))) == (0, 2) == place(m)


def test_what_no_op_stands_for_runs_as_python():
    def own(x):
        y = x.copy()
        y[1] += 2.0
        return y

    line = own.__code__.co_firstlineno + 2
    compiled = trireme.compile(own)
    with pytest.warns(TraceWarning, match=f"test_textbook.py:{line}: .* runs as Python"):
        made = compiled(np.zeros(3))
    np.testing.assert_array_equal(made, [0, 2, 0])
    np.testing.assert_array_equal(compiled(np.ones(3)), [1, 3, 1])
    assert (compiled.stats.eager_runs, compiled.stats.graphs) == (2, 0)
    with pytest.raises(trireme.GraphError, match="elements of float64"):
        trireme.trace(own, np.zeros(3))


def test_an_array_that_a_tensor_is_added_to():
    def own(x):
        total = np.zeros(3)
        total += x
        return total

    with pytest.raises(trireme.GraphError, match="numpy.add writes a tensor into an array"):
        trireme.trace(own, np.ones(3))
    with pytest.warns(TraceWarning, match="numpy.add writes"):
        np.testing.assert_array_equal(trireme.compile(own)(np.ones(3)), np.ones(3))
    np.testing.assert_array_equal(trireme.capture(own, np.ones(3))(np.ones(3)), np.ones(3))


def test_elements_at_traced_places():
    def swapped(m, i, j):
        m = m.copy()
        m[[i, j]] = m[[j, i]]
        m[i, [0, j]] = m[j, [1, 0]] * 2
        return m, m[[i, -1]]

    m = np.arange(9.0).reshape(3, 3)
    captured = trireme.capture(swapped, m, np.int64(0), np.int64(1), fallback=False)
    for case in (
        (m, np.int64(0), np.int64(2)),
        (m, np.int64(1), np.int64(1)),
        (m, *np.int64([-1, 0])),
    ):
        expect_same(captured(*case), swapped(*case), case)
