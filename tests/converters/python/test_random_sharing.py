"""Random programs whose variables share arrays: the answer is numpy's, or the program is refused.

Arrays are 3x3 throughout, so that any may be a view of any other.
"""

import warnings

import numpy as np
import pytest
from random_python import load
from same_as_python import expect_same
from sweep import sweep

import trireme

RUNS = 4
NAMES = ("a", "b", "c")
VIEWS = ("{w}", "{w}.T", "{w}[::-1]", "{w}[:, ::-1]", "{w}.reshape(3, 3)", "np.asarray({w})")
VALUES = (
    "{w}.copy()",
    "{w} * 2",
    "np.array({w})",
    "{w} + {u}",
    "{w} if k > 0 else {u}",
    "{w}.astype(float)",
    "np.maximum({w}, 0)",
)
CHANGES = (
    "{v} += {w}",
    "{v} *= 0.5",
    "{v}[0] = {w}[1]",
    "{v}[k] += 1",
    "{v}[{w} > 1] = 0.5",
    "items[0] += 1",
    "moved({v}, {w})",
)
LOOPS = (
    ("for row in {v}:", "row += 1"),
    ("for row in {v}:", "{w} = {w} + row"),
    ("for row in {v}:", "{w}[0] += row"),
    ("for i, row in enumerate({v}):", "{v}[i] = row * 2"),
    ("for i, row in enumerate({v}):", "{w}[i] = row * 2"),
    ("for i, row in enumerate({v}):", "{v}[k] = row * 2"),
    ("for one, other in zip({v}, {w}):", "one *= 0.5; {u} = {u} + other"),
)


class Writer:
    def __init__(self, rng):
        self.rng = rng
        self.lines = []

    def one_of(self, choices):
        return choices[self.rng.integers(len(choices))]

    def add(self, indent, text):
        v, w, u = (self.one_of(NAMES) for _ in range(3))
        self.lines.append("    " * indent + text.format(v=v, w=w, u=u))

    def statement(self, depth, indent):
        kind = self.rng.random()
        if depth and kind < 0.15:
            self.add(indent, self.one_of(["if k > 0:", "if {v}.sum() > 1:"]))
            self.block(depth - 1, indent + 1)
        elif depth and kind < 0.3:
            self.add(indent, self.one_of(["for _ in range(2):", "for _ in range(abs(k)):"]))
            self.block(depth - 1, indent + 1)
        elif kind < 0.4:
            head, body = self.one_of(LOOPS)
            v, w, u = (self.one_of(NAMES) for _ in range(3))
            self.lines.append("    " * indent + head.format(v=v, w=w, u=u))
            self.lines.append("    " * (indent + 1) + body.format(v=v, w=w, u=u))
        elif kind < 0.7:
            self.add(indent, self.one_of(CHANGES))
        else:
            self.add(indent, "{v} = " + self.one_of(VIEWS if kind < 0.8 else VALUES))

    def block(self, depth, indent):
        for _ in range(self.rng.integers(1, 4)):
            self.statement(depth, indent)


def source(rng):
    writer = Writer(rng)
    writer.block(2, 1)
    head = ["a, b, c = x.copy(), x * 2, x + y", "items = [c * 1.0, y.copy()]"]
    text = ["import numpy as np", "", "", "def program(x, y, k):", *(f"    {h}" for h in head)]
    text += ["    def moved(one, other):", "        one += other * 0.25", ""]
    return "\n".join([*text, *writer.lines, "    return a, b, c, items[0], items[1]", ""])


def cases(rng):
    return [
        (rng.standard_normal((3, 3)), rng.standard_normal((3, 3)), np.int64(k))
        for k in rng.permutation([-2, 0, 1, 2])[:RUNS]
    ]


def same(function, program, drawn, note):
    for case in drawn:
        given = [np.copy(one)[()] for one in case]
        expect_same(function(*given), program(*[np.copy(one)[()] for one in case]), note)
        for one, other in zip(given, case, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=note)


@pytest.mark.parametrize("seed", sweep(list(range(300)), always=list(range(40))))
def test_capture_gives_what_numpy_gives_or_refuses(seed, tmp_path):
    rng = np.random.default_rng(seed)
    text = source(rng)
    program, drawn = load(text, tmp_path / f"shared_{seed}.py"), cases(rng)
    try:
        captured = trireme.capture(program, *drawn[0], fallback=False)
    except trireme.ConvertError:
        return
    same(captured, program, drawn, f"seed {seed}\n{text}")


@pytest.mark.parametrize("seed", sweep(list(range(300)), always=list(range(40))))
def test_compile_gives_what_numpy_gives(seed, tmp_path):
    rng = np.random.default_rng(seed)
    text = source(rng)
    program, drawn = load(text, tmp_path / f"compiled_{seed}.py"), cases(rng)
    compiled = trireme.compile(program, devices=["cpu"], most_graphs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        same(compiled, program, [*drawn, *drawn], f"seed {seed}\n{text}")
    compiled.close()


def test_most_random_programs_are_captured(tmp_path):
    """The net holds no water if all its programs are refused."""
    captured = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        program = load(source(rng), tmp_path / f"kept_{seed}.py")
        try:
            trireme.capture(program, *cases(rng)[0], fallback=False)
            captured += 1
        except trireme.ConvertError:
            continue
    assert captured >= 10


def test_an_item_of_a_list_that_is_changed_is_the_array_itself():
    def own(x):
        y = x.copy()
        both = [y, x * 2]
        both[0] += 1
        return y

    with pytest.raises(trireme.ConvertError, match=r"both\[0\] \+= 1`: both shares its .* with y"):
        trireme.capture(own, np.ones(3))


def test_a_row_that_is_changed_is_part_of_the_array():
    def own(x):
        y = x.copy()
        for row in y:
            row /= row.sum()
        return y

    with pytest.raises(trireme.ConvertError, match="row shares its elements with y"):
        trireme.capture(own, np.ones((2, 3)))


def test_a_loop_that_changes_later_rows_is_refused():
    def own(x):
        y = x.copy()
        for i, row in enumerate(y):
            y[i + 1 :] -= row
        return y

    with pytest.raises(trireme.ConvertError, match="y is changed while a loop runs over its rows"):
        trireme.capture(own, np.ones((2, 3)))
