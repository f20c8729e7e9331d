"""Functions of Python on tensors and containers of them: what plain Python gives, or the reason."""

import functools
import itertools
import math
import operator

import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme
from trireme import eager

SEED = 43
HALVES = np.array([2.5, -1.5, 0.5, 2.5])


def extremes(x):
    parts = {"a": x[0], "b": x[1] * 2, "c": -x[2]}
    return min(parts.values()), max(parts.values()), max(v * v for v in x), min(x[0], 1.0, x[1])


def extremes_by_key(x):
    parts = {0: x[0], 1: x[1], 2: x[2]}
    place, most = max(enumerate(x), key=lambda pair: pair[1])
    return (
        max(x, key=lambda v: -v),
        min([x[0], x[1], x[2]], key=abs),
        max(range(len(x)), key=lambda i: x[i]),
        max(parts, key=parts.get),
        max(parts.items(), key=lambda item: item[1]),
        (place, most),
        max([x[0]], default=1.0),
        min([], default=x[1]),
    )


def extremes_beside_nan(x):
    y = np.array([1.0, np.nan, 0.5]) * x[0]
    return min(y), max(y), min(y[0], y[1]), min(y[1], y[0]), max(y[::-1]), max(y[1:])


def extremes_of_tuples(x):
    return min((x[0], 1.0), (x[1], 2.0)), max([(0, x[0], 1.0), (0, x[1], 2.0)])


def extremes_of_a_range(n):
    return max(range(n)), min(range(2, n + 3)), sum(range(n)), list(range(n))


def truths(x):
    parts = {"a": x[0] > 0, "b": x[1] > 1}
    return any(parts.values()), all(parts.values()), any(v > 1 for v in x), all(x), sum(x > 0)


def in_order(x):
    values = [x[0], x[1], x[2]]
    values.sort(reverse=True)
    names = {"b": x[0], "a": x[1]}
    return (
        *values,
        *sorted(x),
        *sorted(x[1:], reverse=True),
        *sorted(names.values()),
        *(names[name] for name in sorted(names)),
    )


def in_order_by_key(x):
    pairs = sorted(zip([3, 1, 2, 1], x, strict=True), key=lambda pair: pair[1], reverse=True)
    ties = sorted(range(4), key=lambda i: x[i] > 0)
    by_two = sorted([(abs(v) > 1, v) for v in x])
    return [*pairs, *sorted(x, key=abs), *ties, *(v for _, v in by_two)]


def ties_stay_in_order(x):
    y = np.round(x)
    places = sorted(range(4), key=lambda i: y[i])
    backward = sorted(range(4), key=lambda i: y[i], reverse=True)
    pairs = sorted([(y[i], -i) for i in range(4)])
    return places, backward, pairs, max(range(4), key=lambda i: y[i])


def mapped(x):
    total = 0.0
    for one in map(lambda v: v + 1, x):
        total += one
    a, b = map(float, x[:2])
    even = sum(x[i] for i in filter(lambda i: i % 2, range(4)))
    return total, a, b, sum(map(lambda v, w: v * w, x, x[::-1])), even


def folded(x):
    pairs = itertools.combinations(x, 2)
    return (
        functools.reduce(lambda a, b: a * 2 + b, x),
        functools.reduce(operator.add, [x[0], x[1]], 5.0),
        sum(itertools.accumulate([x[0], x[1], x[2]])),
        sum(a * b for a, b in pairs),
        sum(itertools.chain([x[0]], x[1:])),
        sum(x[i] * x[j] for i, j in itertools.product(range(2), range(2))),
        sum(b - 2 * a for a, b in itertools.pairwise(x)),
    )


def numbers(x):
    return (
        *(round(x[0]), round(x[1], 2), round(x[2], -1), abs(x[3]), pow(x[0], 2), pow(2.0, x[1])),
        *divmod(x[0], x[1]),
        *(int(x[0]), float(x[1]), bool(x[2]), int(x[2] * 10) // 3, len([*x]), x[0].item()),
    )


def angles(x):
    return (
        *(math.atan2(x[0], x[1]), math.degrees(x[0]), math.radians(x[1]), math.trunc(float(x[2]))),
        *(math.asin(x[0] / 10), math.acos(x[1] / 10), math.sinh(x[0]), math.cosh(x[1])),
        *(math.log(abs(x[0]) + 1, 2), math.prod(x), math.prod([x[0], 2.0]), math.pow(x[0], 2)),
    )


def backward(x):
    total = 0.0
    for i, one in reversed(list(enumerate(x))):
        total = total * 2 + one * i
    for one in reversed([x[0], x[1]]):
        total = total * 3 - one
    return total


def compared(x):
    pair = [x[0], x[1]]
    return (
        *(pair == [x[0], x[1]], pair == [x[1], x[0]], pair != [x[0]], (x[0], 1) < (x[1], 0)),
        *(pair >= [x[0], x[2]], (1, x[0]) in [(1, x[0]), (2, x[1])], [int(v) for v in x].count(1)),
    )


def kinds(x):
    y = x * 2 if isinstance(x, np.ndarray) else x
    z = y + 1 if isinstance(y, (list, tuple, str)) else y - 1
    return z if not isinstance(float(x[0]), float) or isinstance(int(x[0]), float) else z * 2


def merged(x):
    first = {"a": x[0], "b": x[1]}
    parts = {**first, "b": x[2]}
    return parts["a"], parts["b"], sum((parts | {"c": x[3]}).values()), next(v for v in x)


VECTORS = [
    *(extremes, extremes_by_key, extremes_beside_nan, extremes_of_tuples, truths, in_order),
    *(in_order_by_key, ties_stay_in_order, mapped, folded, numbers, angles, backward, compared),
    *(kinds, merged),
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("program", VECTORS, ids=lambda program: program.__name__)
def test_a_function_gives_what_python_gives(program, dtype):
    rng = np.random.default_rng(SEED)
    cases = [(HALVES.astype(dtype),), *((rng.normal(0, 2, 4).astype(dtype),) for _ in range(10))]
    captured = trireme.capture(program, *cases[0], fallback=False)
    names = [value.name for value in captured.graph().input_values()]
    for case in cases:
        expect_same(captured(*case), in_python(program, case), (SEED, case))
    with trireme.Session(captured.graph()) as session:
        made = session.run(dict(zip(names, cases[-1], strict=True)))
        outputs = captured.graph().outputs
        got = [made[captured.graph().values[value].name] for value in outputs]
        expect_same(got, in_python(program, cases[-1]), (SEED, cases[-1]))


def test_a_range_that_only_a_run_knows():
    captured = trireme.capture(extremes_of_a_range, np.int64(3), fallback=False)
    for n in (1, 2, 7):
        got, wanted = captured(np.int64(n)), extremes_of_a_range(n)
        assert [int(one) for one in got[:3]] == list(wanted[:3])
        assert [int(one) for one in got[3]] == wanted[3]


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (lambda x: sum(filter(lambda v: v > 0, [x[0], x[1]])), "filter keeps items by a tensor's"),
        (lambda x: max("one", "two", key=lambda t: x[len(t) - 3]), "'two' or 'one' is taken, and"),
        (lambda x: sorted(["b", "a"], key=lambda t: x[ord(t) - 97])[0], "that are no numbers come"),
        (lambda x: round(float(x[0]), 2), "Python rounds the decimal digits of a float"),
        (lambda x: max(x.reshape(2, 2))[0], "max of float64[2,2]: Python compares its rows"),
        (lambda x: x if isinstance(x.sum(), float) else -x, "isinstance of a tensor depends on"),
        (lambda x: next(iter(x)), "how far an iterator was read changes at a run"),
        (lambda x: [x[0], x[1]].index(x[1]), "index of a list compares tensors"),
        (lambda x: max([x[0], x[1:]])[0], "a Python number is made of bool[3], which has"),
    ],
)
def test_the_others_say_why_not(program, sentence):
    line = program.__code__.co_firstlineno
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, HALVES, fallback=False)
    assert f"test_python_calls.py:{line}: " in str(raised.value)
    assert sentence in str(raised.value)


def test_an_eager_tensor_is_no_array():
    def doubled(x):
        return x * 2 if isinstance(x, np.ndarray) else x

    tensor = eager.tensor(HALVES)
    with pytest.raises(trireme.ConvertError, match="isinstance of a tensor"):
        trireme.capture(doubled, tensor, fallback=False)


def test_a_python_operator_gets_numbers_of_python():
    """Python rounds 2.675 to 2.67, and numpy to 2.68."""

    def rounded(x):
        return round(float(x), 2)

    captured = trireme.capture(rounded, np.float64(1))
    assert captured.fallbacks()
    assert captured(np.float64(2.675)) == 2.67


def test_a_statement_that_changes_a_list_is_no_python_operator():
    import heapq

    def popped(x):
        heap = [x[0], x[1]]
        least = heapq.heappop(heap)
        return least + len(heap)

    with pytest.raises(trireme.ConvertError, match="heapq.heappop"):
        trireme.capture(popped, HALVES)


def test_round_to_digits_of_tensors():
    x = np.array([2.675, -1.25, 1234.5, 0.125], np.float32)
    for decimals in (0, 1, 2, -2):
        got = eager.tensor(x).round(decimals)
        np.testing.assert_array_equal(np.asarray(got), x.round(decimals))
    assert np.asarray(eager.tensor(np.arange(3)).round(2)).tolist() == [0, 1, 2]
    with pytest.raises(trireme.GraphError, match="digits less"):
        eager.tensor(np.arange(3)).round(-1)
