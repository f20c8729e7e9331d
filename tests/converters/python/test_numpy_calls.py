"""Functions of numpy that are several ops: a trace, a capture and numpy itself agree."""

import numpy as np
import pytest
from same_as_python import expect_same

import trireme
from trireme.ir.interpreter import interpret

A = np.array([[3.0, -1.0, 2.0], [0.5, np.nan, -4.0], [2.0, 2.0, 0.0]])
X = np.array([2, 0, 3, 0, 1, 2], np.int32)
F = np.array([0.5, -2.0, 3.0, 0.5], np.float32)
CALLS = {
    "sort": (lambda x: (np.sort(x), np.sort(x, axis=0), np.sort(x, axis=None)), A),
    "sort of integers": (lambda x: (np.sort(x), np.argsort(x, kind="stable")), X),
    "searchsorted": (
        lambda x: (
            np.searchsorted(np.cumsum(x), 3),
            np.searchsorted(np.cumsum(x), x, side="right"),
        ),
        X,
    ),
    "searchsorted of odd floats": (
        lambda x: (
            np.searchsorted(np.sort(x), x),
            np.searchsorted(np.sort(x), x, side="right"),
            np.searchsorted(x[2:4], x),
        ),
        np.array([np.nan, 1.0, -0.0, 0.0, np.inf, -np.inf, np.nan], np.float32),
    ),
    "flip": (lambda x: (np.flip(x), np.flip(x, 0), np.flip(x, (0, -1))), A),
    "roll": (lambda x: (np.roll(x, 2), np.roll(x, -1, 1), np.roll(x, (1, 4), (0, 1))), A),
    "split": (lambda x: (*np.split(x, 3), *np.split(x, [1, 4])), X),
    "split of columns": (lambda x: np.split(x, [1], axis=1), A),
    "tile": (lambda x: (np.tile(x, 2), np.tile(x, (2, 1, 3))), A),
    "repeat": (lambda x: (np.repeat(x, 2), np.repeat(x, 3, axis=-1)), A),
    "stacks": (
        lambda x: (np.hstack([x, x]), np.vstack([x, x]), np.column_stack([x, x, x])),
        F,
    ),
    "stacks of matrices": (lambda x: (np.hstack([x, x]), np.vstack([x, x])), A),
    "broadcast_to": (lambda x: np.broadcast_to(x, (2, 3, 3)) + 0, A),
    "moveaxis": (lambda x: np.moveaxis(x[None], (0, 2), (2, 0)), A),
    "isfinite": (lambda x: (np.isfinite(x / 0.0), np.isfinite(x)), A),
    "isfinite of integers": (lambda x: np.isfinite(x), X),
    "isclose": (lambda x: (np.isclose(x, x + 1e-7), np.isclose(x / 0, x / 0)), A),
    "allclose": (lambda x: (np.allclose(x, x + 1e-9), np.allclose(x, x + 1, atol=2)), F),
    "array_equal": (lambda x: (np.array_equal(x, x), np.array_equal(x, x[1:])), F),
    "count_nonzero": (lambda x: (np.count_nonzero(x), np.count_nonzero(x > 1)), X),
    "count_nonzero of rows": (lambda x: np.count_nonzero(x, axis=1), A),
    "diff": (lambda x: (np.diff(x), np.diff(x, n=2, axis=0)), A),
    "diff of integers": (lambda x: (np.diff(x), np.diff(x > 1)), X),
    "outer": (lambda x: (np.outer(x, x), np.vdot(x, x), np.inner(x, x)), F),
    "diag": (lambda x: (np.diag(x), np.diag(x, 1), np.diag(x, -2)), F),
    "diagonal": (lambda x: (np.diag(x), np.diag(x, -1), np.diagonal(x, 1), np.trace(x)), A),
    "triangles": (lambda x: (np.triu(x), np.tril(x, -1), np.triu(x, 1)), A),
    "norm": (lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=0, keepdims=True)), A),
    "norm of integers": (lambda x: np.linalg.norm(x), X),
    "ptp": (lambda x: (np.ptp(x), np.ptp(x, axis=0)), F),
    "polyval": (lambda x: (np.polyval([1.0, -2.0, 3.0], x), np.polyval(x, 2.0)), A[2]),
    "dot": (lambda x: (x.dot(x), np.dot(x, x[0]), x.copy()), A),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_gives_what_numpy_gives(name):
    function, x = CALLS[name]
    with np.errstate(all="ignore"):
        wanted = function(x)
        captured = trireme.capture(function, x, fallback=False)
        expect_same(captured(x), wanted, name)
        graph = trireme.trace(function, x)
        made = interpret(graph, {graph.inputs[0]: x})
        expect_same([made[value] for value in graph.outputs], wanted, name)


WRONG = {
    "inner": lambda x: np.inner(x),
    "vdot": lambda x: np.vdot(x),
    "hstack": lambda x: np.hstack(x, x, x),
    "median": lambda x: np.median(x, of=2),
    "linspace": lambda x: np.linspace(x[0], 1, of=2),
    "full": lambda x: np.full(x.shape, x[0], of=2),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_name_the_function_that_was_called(name):
    with pytest.raises(trireme.ConvertError, match=rf"TypeError: {name}\(\)"):
        trireme.capture(WRONG[name], F, fallback=False)


def test_full_of_a_traced_number():
    def filled(x):
        return np.full((2, 3), x[0]), np.full(2, x[1], np.float64)

    expect_same(trireme.capture(filled, F, fallback=False)(F), filled(F), F)


def test_a_lambda_is_found_among_others_of_its_line():
    def pick(function):
        return trireme.capture(function, np.float64(3), fallback=False)(np.float64(3))

    pair = {
        "one": (lambda x: x * 2, 1),
        "other": lambda x: x * 3,
        "nested": lambda x: (lambda x: x - 1)(x),
    }
    assert pick(pair["one"][0]) == 6
    assert pick(pair["other"]) == 9
    assert pick(pair["nested"]) == 2
    assert pick((lambda x: x + 1) if pair else (lambda x: x + 2)) == 4


def test_arange_of_a_traced_number():
    def total(n, m):
        return np.arange(n).sum() + np.arange(m, n, 2).sum(), np.arange(n, m, -1)

    captured = trireme.capture(total, np.int64(7), np.int64(2), fallback=False)
    for n, m in ((7, 2), (1, 0), (4, 9)):
        case = np.int64(n), np.int64(m)
        expect_same(captured(*case), total(*case), case)


def test_rows_that_settle_are_compared_in_a_loop():
    def jacobi(a, b):
        x, d = np.zeros_like(b), np.diag(a)
        for _ in range(50):
            new = (b - (a @ x - d * x)) / d
            if np.allclose(new, x, atol=1e-10):
                break
            x = new
        return x

    rng = np.random.default_rng(3)
    case = np.eye(3) * 5 + rng.random((3, 3)), rng.standard_normal(3)
    captured = trireme.capture(jacobi, *case, fallback=False)
    expect_same(captured(*case), jacobi(*case), "seed 3")
