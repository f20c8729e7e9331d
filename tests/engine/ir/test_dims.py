"""Expressions of dimensions mean what Python's arithmetic means, and equal ones have one text."""

import random

import pytest

from trireme.ir.dims import (
    add,
    bounds_of,
    common_factor,
    exact_divide,
    floor_divide,
    is_expression,
    larger,
    multiply,
    range_of,
    simplified,
    smaller,
    substituted,
    subtract,
    symbol_name,
    symbols_of,
)
from trireme.ir.graph import UNKNOWN
from trireme.support.errors import GraphError

SYMBOLS = ("batch", "h", "seq", "s0")


def random_dim(rng, depth):
    """A dimension and a function of sizes that gives its number."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            number = rng.randrange(0, 9)
            return number, lambda sizes: number
        name = rng.choice(SYMBOLS)
        return name, lambda sizes: sizes[name]
    (a, of_a), (b, of_b) = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    by = rng.randrange(1, 6)
    return rng.choice(
        [
            (add(a, b), lambda s: of_a(s) + of_b(s)),
            (subtract(a, b), lambda s: of_a(s) - of_b(s)),
            (multiply(a, b), lambda s: of_a(s) * of_b(s)),
            (floor_divide(a, by), lambda s: of_a(s) // by),
            (subtract(a, multiply(by, floor_divide(a, by))), lambda s: of_a(s) % by),
            (smaller(a, b), lambda s: min(of_a(s), of_b(s))),
            (larger(a, b), lambda s: max(of_a(s), of_b(s))),
        ]
    )


@pytest.mark.parametrize("seed", range(300))
def test_an_expression_has_the_value_of_its_arithmetic(seed):
    print("seed", seed)
    rng = random.Random(seed)
    dim, value = random_dim(rng, 4)
    if dim == UNKNOWN:  # too long
        return
    limits = {name: (low, low + rng.randrange(0, 20)) for name in SYMBOLS if (low := 1) or True}
    assert isinstance(dim, int) or is_expression(dim)
    short = simplified(dim, limits)
    for _ in range(20):
        sizes = {name: rng.randint(*limits[name]) for name in SYMBOLS}
        wanted = value(sizes)
        assert substituted(dim, sizes) == wanted
        assert substituted(short, sizes) == wanted
        least, most = bounds_of(dim, limits)
        low, high = range_of(dim, limits)
        assert low <= wanted <= high
        assert wanted <= most
        assert isinstance(dim, int) or wanted % common_factor(dim) == 0
        assert least <= wanted or wanted < 0
    assert symbols_of(dim) <= set(SYMBOLS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (multiply(add("a", 1), add("a", -1)), add(multiply("a", "a"), -1)),
        (floor_divide(add(multiply(4, "h"), 3), 2), add(multiply(2, "h"), 1)),
        (floor_divide(floor_divide("h", 2), 2), floor_divide("h", 4)),
        (floor_divide(add(floor_divide("h", 2), 1), 3), floor_divide(add("h", 2), 6)),
        (smaller("a", add("a", 2)), "a"),
        (smaller("a", smaller("a", 3)), smaller("a", 3)),
        (larger("a", smaller("a", 3)), "a"),
        (larger(multiply("a", "b"), 0), multiply("a", "b")),
        (exact_divide(multiply("a", multiply("b", 6)), multiply("b", 3)), multiply(2, "a")),
        (exact_divide(add(multiply("a", "b"), multiply(2, "b")), "b"), add("a", 2)),
        (exact_divide(multiply(add("a", 1), add("b", 1)), add("a", 1)), add("b", 1)),
        (exact_divide(multiply(add("a", -3), add("a", "b")), add("a", "b")), add("a", -3)),
        (exact_divide(add(multiply("a", "a"), 1), add("a", 1)), UNKNOWN),
        (exact_divide(add(multiply(2, "a"), 2), multiply(4, "b")), UNKNOWN),
        (exact_divide("a", 2), UNKNOWN),
        (exact_divide("a", "b"), UNKNOWN),
        (multiply(UNKNOWN, 0), 0),
        (add(UNKNOWN, 1), UNKNOWN),
        (smaller(UNKNOWN, 3), UNKNOWN),
    ],
)
def test_equal_expressions_have_one_text(one, other):
    assert one == other


def test_bounds_decide_choices():
    cut = add(multiply(2, smaller("seq", 512)), 1)
    assert cut == "2*min(512,seq)+1"
    assert simplified(cut, {"seq": (0, 512)}) == "2*seq+1"
    assert simplified(cut, {"seq": (600, None)}) == 1025
    assert bounds_of(cut, {}) == (1, 1025)
    assert bounds_of("seq", {}) == (0, None)


def test_ranges_know_that_a_remainder_is_small():
    whole = subtract("h", subtract("h", multiply(7, floor_divide("h", 7))))  # h less h mod 7
    above = multiply(-7, floor_divide(multiply(-1, "h"), 7))
    assert range_of(subtract(above, "h"), {}) == (0, 6)
    assert (smaller("h", above), larger("h", above)) == ("h", above)
    assert smaller("h", whole) == whole
    assert smaller("h", add(larger(subtract(above, 3), 0), 3)) == "h"


@pytest.mark.parametrize(
    "text", ["b+a", "a +b", "a**2", "f(a)", "a-", "", "a b", "1", "a//0", "min(a)"]
)
def test_other_texts_are_no_dimensions(text):
    assert not is_expression(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("seq", "seq"),
        ("past + 1", "past___1"),
        ("2d", "_2d"),
        ("in", "_in"),
        ("", "_"),
        ("min", "_min"),
    ],
)
def test_any_text_has_a_name_as_a_symbol(text, name):
    assert symbol_name(text) == name
    assert is_expression(name)


def test_an_error_names_the_text():
    with pytest.raises(GraphError, match=r"dimension 'a \*\* b' is no expression"):
        substituted("a**b", {})
