"""`match` and `with`: what plain Python gives, for subjects that are known and others."""

import contextlib
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from same_as_python import expect_same, in_python

import trireme

SEED = 47


@dataclass
class Step:
    kind: str
    by: float = 1.0


def values(n):
    match n:
        case 0:
            return n + 1
        case 1 | 2:
            return n * 10
        case 3 if n > 2:
            return n - 100
        case k:
            return k * 2


def joined(n):
    match n % 4:
        case 0:
            y = 1
        case -1:
            y = 7
        case (2 | 3) as v if v + n > 6:
            y = v * 5
        case _:
            y = n
    return y + n


def leaving_a_loop(n):
    total = 0
    while True:
        match n % 3:
            case 0:
                n = n + 1
                continue
            case 1:
                total = total + n
                n = n + 1
            case _:
                break
        total = total + 1
    return total


def in_a_loop(n):
    total, last = 0, 9
    for i in range(n):
        match i % 3:
            case 0:
                total += 1
            case 1 if total > 2:
                total, last = total + 10, i
            case other:
                last = last + other
    return total, last


def a_guard_that_fails_binds(n):
    k = 5
    match n:
        case 1:
            k = 6
        case k if n > 3:
            return k
    return k * 10


def pairs(x):
    match (x[0], x[1]):
        case (a, b) if a > b:
            return a - b
        case (a, b, _):
            return a
        case [a, b]:
            return b + a * 2


def ends(x):
    match [*x]:
        case []:
            return x[0]
        case [first, *_, last] if first < last:
            return first - last
        case [_, _, *rest]:
            return rest[0] + len(rest)


def shapes(x):
    match x.shape:
        case (n, m):
            return x * m
        case (n,):
            return x * n


def texts(x, how=("sum", "max", "none", 3)):
    total = x[0]
    for one in how:
        match one:
            case "sum":
                total = total + x.sum()
            case "max":
                total = total * x.max()
            case int(k):
                total = total - k
            case _:
                continue
        total = total / 2
    return total


def parts(x):
    match {"a": x[0], "b": 2, "c": x[1]}:
        case {"b": 3}:
            return x[1]
        case {"a": v, "d": _}:
            return v
        case {"a": v, **rest} if v > 0:
            return v * rest["b"]
        case {"c": v}:
            return v


def steps(x):
    for step in (Step("scale", 2.0), Step("shift"), Step("skip")):
        match step:
            case Step("scale", by):
                x = x * by
            case Step(kind="shift", by=by):
                x = x + by
    return x


def singles(x):
    match None:
        case True:
            return x
        case None:
            y = x * 2
    match x:
        case None:
            return x
        case [a, _]:
            return a
        case str():
            return x * 3
        case int() | float() as z:
            return z
    return y


def quiet(x):
    with np.errstate(divide="ignore", invalid="ignore"), contextlib.nullcontext(2) as two:
        y = x / (x - x[0])
    with warnings.catch_warnings(), np.printoptions(precision=2):
        warnings.simplefilter("ignore")
        return np.where(np.isfinite(y), y, 0) * two


def quiet_exits(x):
    total = 0.0
    for one in x:
        with np.errstate(all="ignore"):
            if one < 0:
                continue
            total = total + np.sqrt(one)
    with np.errstate(all="ignore"):
        if total > 2:
            return np.log(total)
        return total


WHOLE = [values, joined, leaving_a_loop, in_a_loop, a_guard_that_fails_binds]
VECTORS = [pairs, ends, shapes, texts, parts, steps, singles, quiet, quiet_exits]


@pytest.mark.parametrize("program", WHOLE + VECTORS, ids=lambda program: program.__name__)
def test_capture_and_compile_give_what_python_gives(program):
    rng = np.random.default_rng(SEED)
    cases = [(np.int64(n),) for n in range(9)]
    if program in VECTORS:
        cases = [(rng.normal(size=4),) for _ in range(8)]
    captured = trireme.capture(program, *cases[0], fallback=False)
    compiled = trireme.compile(program, devices=["cpu"], most_graphs=2)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in cases:
            wanted = in_python(program, case)
            expect_same(captured(*case), wanted, (SEED, case))
            expect_same(compiled(*case), wanted, (SEED, case))
    compiled.close()


def kind_of_number(x):
    match x.sum():
        case float():
            y = x
        case _:
            y = x * 2
    return y


def truth_itself(x):
    match x[0] > 0:
        case True:
            return x
    return x * 2


def loud(x):
    with np.errstate(divide="raise"):
        return x / 2


def printed(x):
    with contextlib.redirect_stdout(None):
        return x / 2


BAD = {
    kind_of_number: ("match x.sum():", "isinstance of a tensor depends on how"),
    truth_itself: ("match x[0] > 0:", "numpy's truths are not True and False themselves"),
    loud: ("with np.errstate", "np.errstate raises, calls or prints here"),
    printed: ("with contextlib.redirect", "a `with` of redirect_stdout acts outside the graph"),
}


@pytest.mark.parametrize("program", BAD, ids=lambda program: program.__name__)
def test_what_only_python_can_tell_is_refused_at_its_line(program):
    line, sentence = BAD[program]
    with pytest.raises(trireme.ConvertError) as raised:
        trireme.capture(program, np.ones(3), fallback=False)
    assert any(line in fact and sentence in fact for fact in raised.value.facts), raised.value


def test_a_python_operator_runs_a_match():
    captured = trireme.capture(kind_of_number, np.ones(3))
    assert "isinstance" in captured.fallbacks()[0]
    np.testing.assert_array_equal(captured(np.ones(3)), np.ones(3))


def test_torch_without_gradients():
    torch = pytest.importorskip("torch")

    def halved(x):
        with torch.no_grad():
            return x / 2

    assert trireme.capture(halved, np.float64(3), fallback=False)(np.float64(3)) == 1.5
