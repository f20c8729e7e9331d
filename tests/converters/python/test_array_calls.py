"""np.array, np.asarray and lists beside arrays: the dtypes and the sharing that numpy has."""

import copy
import functools
import threading
import warnings

import numpy as np
import pytest
from same_as_python import expect_same

import trireme
from trireme import eager

SEED = 61
DTYPES = ("float32", "int32", "int64", "bool")


def itself(x):
    return np.asarray(x) * 2, np.asanyarray(x).sum()


def of_a_dtype(x):
    return np.tanh(np.asarray(x, np.float64)).sum(), np.array(x, dtype="float32", copy=True)


def of_numbers(x):
    return np.array([x.sum(), x.max(), 1.0]), np.array((x[0], 3))


def nested(x):
    return np.array([[x[0], 0], [1, x[1]]]), np.array([x, [1, 2, 3]], dtype=np.float32)


def of_rows(x):
    return np.array([row * 2 for row in x]), np.asarray([x, x + x]).sum(axis=0)


def without_axes(x):
    return np.asarray(x.max()), np.array(x[0])


def joined(x):
    return np.stack([x[0], 1.5]), np.hstack([x, 1.0]), np.append(x, 0.1), np.append([1], x)


def beside_a_list(x):
    return x + [0.1, 1, 2], [1, 2, 3] * x, x - (0.5, 1, 2), np.maximum([1, 0, 1], x)


PROGRAMS = [itself, of_a_dtype, of_numbers, nested, of_rows, without_axes, joined, beside_a_list]


def draws(dtype, count):
    rng = np.random.default_rng([SEED, len(dtype)])
    return [rng.integers(-3, 4, 3).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_an_array_of_traced_values_is_no_constant(program, dtype):
    compiled = trireme.compile(program, devices=["cpu"])
    captured = trireme.capture(program, draws(dtype, 1)[0], fallback=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in draws(dtype, 4):
            got, wanted = compiled(x.copy()), program(x)
            assert [type(one) for one in got] == [type(one) for one in wanted]
            expect_same(got, wanted, (SEED, x))
            expect_same(captured(x), wanted, (SEED, x))
    assert (compiled.stats.graphs, compiled.stats.graph_runs) == (1, 3)
    assert type(np.array) is type(np.asarray) is type(len)
    compiled.close()


def test_asarray_is_the_argument_and_array_a_copy():
    def changed(x):
        y = np.asarray(x)
        y += 1
        return y * 2

    def copied(x):
        y = np.array(x)
        y += 1
        return y * 2

    for program, said in ((changed, "an argument is changed in place"), (copied, "")):
        compiled = trireme.compile(program, devices=["cpu"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for x in draws("int64", 3):
                given, own = x.copy(), x.copy()
                expect_same(compiled(given), program(own), (SEED, x))
                expect_same(given, own, (SEED, x))
        assert [said in str(one.message) for one in caught] == [True] * bool(said)


def test_arrays_of_other_threads_stay_numpys():
    """A trace holds numpy's functions for its own values alone."""
    traced, done = threading.Event(), threading.Event()
    found = []

    def slow(x):
        traced.set()
        done.wait(10)
        return np.asarray(x) + 1

    def other():
        traced.wait(10)
        found.extend([np.array([1, 2]), np.asarray(eager.tensor([1.5])), np.array([[1], [2.5]])])
        found.append(trireme.capture(lambda x: np.array([x[0], 1.0]), np.ones(2))(np.ones(2)))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    compiled = trireme.compile(slow, devices=["cpu"])
    expect_same(compiled(np.ones(2)), np.full(2, 2.0), "slow")
    thread.join()
    expect_same(found[:2], [np.array([1, 2]), np.array([1.5], np.float32)], "other")
    expect_same(found[2:], [np.array([[1], [2.5]]), np.ones(2)], "other")


def test_items_at_places_that_a_run_decides_have_their_own_dtypes():
    """A number of Python takes the dtype of the tensor beside it, from whatever list it comes."""

    def read(x, i):
        table, nested, grown = [0.5, 0.25], [[1, 2], [3, 4]], []
        for k in range(i + 2):
            grown.append(k * 0.5)
        total = 0.0
        for one in grown:
            total += one
        row = nested[i]
        return table[i] * x, row[1] * x, np.add(row, x), grown[i] * x, total * x, grown + [1.5]

    for dtype in DTYPES[:3]:
        cases = [(x[:2], np.int64(i)) for i, x in enumerate(draws(dtype, 2))]
        captured = trireme.capture(read, *cases[0], fallback=False)
        for case in cases:
            expect_same(captured(*case), read(*case), (SEED, case))


def test_what_a_decorator_or_a_partial_calls_is_read():
    def twice(function):
        @functools.wraps(function)
        def wrapped(*args, **named):
            return function(*args, **named) * 2

        return wrapped

    @twice
    def scaled(x, by=3.0):
        return x * by

    shifted = functools.partial(scaled, by=5.0)
    x = np.arange(3.0)
    for program in (scaled, lambda x: shifted(x) + scaled(x, by=2.0)):
        captured = trireme.capture(program, x, fallback=False)
        expect_same(captured(copy.copy(x)), program(x), "x")
