"""Statements that no graph can express: Python operators at their lines, with a warning."""

import inspect

import bad_programs
import numpy as np
import pytest

import trireme
from trireme.ir.graph import Graph, TensorType

SEED = 11


def solved(m, v):
    singular = np.linalg.svd(m)[1]
    if singular[0] > 2 * singular[-1]:
        return np.linalg.solve(m, v), singular[0]
    return v * 2, singular[-1]


def in_a_loop(m, n):
    x = m + 0.0
    for _ in range(n):
        u, s, w = np.linalg.svd(x)
        x = np.linalg.multi_dot([u, np.diag(s / s[0]), w]) + 0.1
    return x


def in_tests(x):
    turns = 0
    while np.linalg.cond(x) > 3 and turns < 5:
        x = x + np.eye(3)
        turns += 1
    if (count := np.unique(x).size) > 4:
        x = x * count
    return x, turns


def caught(x):
    try:
        y = 1 / int(x)
    except ZeroDivisionError:
        y = -1.0
    return y * x


def kinds(x):
    text = f"{x:.1f}"
    size = len(text)
    return x + size


def choices(x):
    found = {1, 2, 3} & {int(x)}
    many = len(found)
    return x * many


def square(rng):
    return rng.standard_normal((3, 3)) + 3 * np.eye(3)


PROGRAMS = {
    solved: (lambda rng: (square(rng), rng.standard_normal(3)), ["svd(", "solve("]),
    in_a_loop: (lambda rng: (square(rng), np.int64(rng.integers(0, 5))), ["svd(", "multi_dot("]),
    in_tests: (lambda rng: (rng.standard_normal((3, 3)),), ["cond(", "unique("]),
    caught: (lambda rng: (np.float64(rng.integers(0, 3)),), ["try"]),
}


def ops_in(graph):
    found = []
    for node in graph.nodes:
        found.append(node.op)
        for value in node.attrs.values():
            found += ops_in(value) if isinstance(value, Graph) else []
    return found


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, one in enumerate(lines) if text in one)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_statement_runs_in_python(program, caplog):
    make, texts = PROGRAMS[program]
    rng = np.random.default_rng(SEED)
    cases = [make(rng) for _ in range(8)]
    captured = trireme.capture(program, *cases[0])
    graph = captured.graph()
    assert "python" in ops_in(graph)
    places = captured.fallbacks()
    for text in texts:
        where = f"test_fallback.py:{line_of(program, text)}: "
        assert any(one.startswith(where) for one in places), places
        assert where in caplog.text
    names = [value.name for value in graph.input_values()]
    with trireme.Session(graph) as session:
        for case in cases:
            wanted = program(*case)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            got = captured(*case)
            made = session.run(dict(zip(names, map(np.asarray, case), strict=True)))
            for results in (got if isinstance(got, tuple) else (got,), made.values()):
                for one, other in zip(results, wanted, strict=True):
                    np.testing.assert_allclose(
                        one, other, rtol=1e-6, atol=1e-9, err_msg=f"seed {SEED}: {case}"
                    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_without_fallback_each_is_an_error_at_its_line(program):
    make, texts = PROGRAMS[program]
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, *make(np.random.default_rng(SEED)), fallback=False)
    first = f"test_fallback.py:{line_of(program, texts[0])}: "
    assert first in str(raised.value)


@pytest.mark.parametrize(
    "program",
    [
        bad_programs.factorial,
        bad_programs.endless,
        bad_programs.argument,
        bad_programs.random_number,
        bad_programs.several,
    ],
    ids=lambda one: one.__name__,
)
def test_what_a_node_cannot_do_either_is_an_error(program):
    with pytest.raises(trireme.ConvertError, match=r"bad_programs.py:\d+"):
        trireme.capture(program, *bad_programs.BAD[program][0])


def test_a_list_that_a_statement_may_change_stays_an_error():
    def shrinking(x):
        values = [x, x + 1]
        least = values.pop(np.argmin(np.linalg.svd(np.ones((2, 2)) * x)[1]))
        return least + values[0]

    with pytest.raises(trireme.ConvertError, match="values.pop"):
        trireme.capture(shrinking, np.float64(1))


def test_a_number_of_python_widens_and_is_never_cut():
    """The example gives the whole number 0; a later call gives -1.5, which int64 does not hold."""

    def least(m):
        return min(np.linalg.det(m), 0)

    whole = trireme.capture(least, np.eye(2))
    assert whole(np.eye(2)) == 0
    with pytest.raises(trireme.RunError, match=r"returned float64\[\] as output 0, declared int64"):
        whole(np.diag([1.5, -1.0]))
    real = trireme.capture(least, np.diag([1.5, -1.0]))
    assert (real(np.diag([1.5, -1.0])), real(np.eye(2))) == (-1.5, 0)


def test_types_without_elements_cannot_tell_the_types_of_a_python_operator():
    with pytest.raises(trireme.ConvertError, match="svd is called with a tensor"):
        trireme.capture(solved, TensorType((3, 3), "float64"), TensorType((3,), "float64"))


def test_the_source_shows_where_python_runs():
    captured = trireme.capture(caught, np.float64(2))
    assert "python_op('test_fallback.py:" in captured.source()
