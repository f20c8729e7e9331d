"""Arrays whose shapes or elements a run decides: made, and combined by ufunc.at as numpy does."""

import numpy as np
import pytest
from same_as_python import expect_same, flat, in_python

import trireme
from trireme.ir.graph import TensorType

SEED = 53


def of_a_length(n):
    return (
        *(np.ones(n), np.zeros((n, 2)), np.eye(n), np.identity(n), np.arange(n), np.full(n, 3)),
        *(np.full((2, n), 1.5), np.zeros(n, dtype=int), np.ones((n, n), np.float32)),
        *(np.eye(n, 3, 1), np.eye(2, n, -1, dtype=bool), np.full(n, n), np.empty((0, n))),
        np.identity(n, bool),
    )


def ranges(n):
    return (
        *(np.arange(1, n + 1) / n, np.arange(0, n, 2), np.arange(n, dtype=np.float32)),
        *(np.linspace(0, 1, n), np.linspace(2, -1, n, endpoint=False), np.linspace(n, n + 1, 4)),
        *(np.arange(0.5, n), np.arange(n, 0, -0.3), np.array(list(range(n, 0, -2)))),
    )


def like_rows(x):
    y = np.ones(x.shape) + x
    y[1:] = np.zeros(x[1:].shape)
    return y, np.full(x.shape, 2.0) * x, np.arange(len(x)), np.eye(x.shape[0]) @ x


def counts(i):
    return np.bincount(i), np.bincount(i, minlength=9), np.bincount(i, weights=i * 0.5)


@pytest.mark.parametrize("program", [of_a_length, ranges])
def test_arrays_of_a_length_that_a_run_decides(program):
    captured = trireme.capture(program, np.int64(3), fallback=False)
    names = [value.name for value in captured.graph().input_values()]
    with trireme.Session(captured.graph()) as session:
        for n in (3, 1, 2, 7):
            wanted = program(n)
            got = captured(np.int64(n))
            expect_same(got[: len(wanted)], wanted, n)
            made = session.run({names[0]: np.array(n)})
            graph = captured.graph()
            expect_same([made[graph.values[v].name] for v in graph.outputs], got, n)


def test_arrays_like_one_of_an_open_length():
    captured = trireme.capture(like_rows, TensorType(("n",), "float64"), fallback=False)
    rng = np.random.default_rng(SEED)
    for n in (3, 1, 6):
        case = (rng.normal(size=n),)
        expect_same(captured(*case), like_rows(*case), (SEED, n))


def test_counts():
    rng = np.random.default_rng(SEED)
    captured = trireme.capture(counts, rng.integers(0, 7, 5), fallback=False)
    for _ in range(5):
        case = (rng.integers(0, 7, 5),)
        expect_same(captured(*case), in_python(counts, case), (SEED, case))


def histogram(x, i):
    counted = np.zeros(5, np.int64)
    np.add.at(counted, i, 1)
    sums = np.zeros(5, x.dtype)
    np.add.at(sums, i, x)
    np.subtract.at(sums, [0, 0, -1], x[:3])
    return counted, sums


def extremes(x, i):
    most, least = np.full(5, -9.0), np.zeros((5, 2)) + 3
    np.maximum.at(most, i, x)
    np.minimum.at(least, (i, i % 2), x)
    np.minimum.at(least, i % 3, 2.5)
    return most, least


def products(x, i):
    made = np.ones(5)
    for k in range(len(x)):
        np.multiply.at(made, i[k], x[k])
    np.multiply.at(made, np.arange(5) > 2, 2)
    return made


def table(x, i):
    joint = np.zeros((5, 5))
    np.add.at(joint, (i, i[::-1]), x)
    if x[0] > 0:
        np.add.at(joint, i, 1)
    np.add.at(joint, (slice(None), [0, 0]), x[0])
    return joint


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("program", [histogram, extremes, products, table])
def test_elements_are_combined_in_order(program, dtype):
    """To the last bit: a place that comes again gets its values one after another."""
    rng = np.random.default_rng(SEED)
    if dtype == np.float32 and program is not histogram:
        pytest.skip("numpy computes these in float64")
    cases = [(rng.normal(size=40).astype(dtype), rng.integers(0, 5, 40)) for _ in range(6)]
    captured = trireme.capture(program, *cases[0], fallback=False)
    graph = captured.graph()
    names = [value.name for value in graph.input_values()]
    with trireme.Session(graph) as session:
        for case in cases:
            wanted = flat(in_python(program, case))
            made = session.run(dict(zip(names, case, strict=True)))
            got = [made[graph.values[value].name] for value in graph.outputs]
            for results in (flat(captured(*case)), got):
                for one, other in zip(results, wanted, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=f"seed {SEED}")


def rounded_steps(x, i):
    made = np.zeros(5, np.float32)
    np.add.at(made, i, x)
    return made


def divided(x, i):
    made = np.ones(5)
    np.divide.at(made, i, x)
    return made


def of_the_caller(x, i):
    np.add.at(x, i, 1)
    return x


def shared(x, i):
    made = np.zeros(5)
    other = made
    np.add.at(made, i, x)
    return other


def shared_in_turns(x, i):
    made = np.zeros(5)
    other = made
    for k in i:
        np.add.at(made, k, 1)
    return other


BAD = {
    rounded_steps: "add.at computes in float64 and rounds to float32 at each step",
    divided: "divide.at of float64[5]",
    of_the_caller: "x is an argument, which its caller shares",
    shared: "made shares its elements with other",
    shared_in_turns: "made shares its elements with other",
}


@pytest.mark.parametrize("program", BAD, ids=lambda program: program.__name__)
def test_what_is_not_exact_is_refused_at_its_line(program):
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, np.ones(4), np.array([0, 1, 1, 2]))
    assert BAD[program] in str(raised.value)
    assert "test_making_arrays.py:" in str(raised.value)
