"""Random assignments to elements: `y[key] = v` and `y[key] += v` with keys that a run decides."""

import numpy as np
import pytest
from random_python import load
from same_as_python import expect_same
from sweep import sweep

import trireme
from trireme.ir.graph import TensorType

RUNS = 5
NAMES = ("x", "i", "j", "n", "v", "mask", "side")
"""An array of 4x4x3, two numbers of -4 to 3, one of 0 to 4, 3 of 0 to 3, two masks."""


def key_part(rng, rank):
    """Return the text of one part of a key, for an axis of length 4."""
    kinds = ["i", "j", "i:", ":n", "-1", "::2", "n:0:-1", ":", "v", "[0, 2, 1]", "[i, j, i]", "1:3"]
    return str(rng.choice(kinds if rank > 1 else kinds[:8]))


def key(rng):
    """Return the text of a key of an array of 4x4x3."""
    masks = ["mask", "side", "side, 1", ":, side", "~mask", "x > 0.5", "side, ..., 0", "y < 0"]
    if rng.random() < 0.35:
        return str(rng.choice(masks))
    count = int(rng.integers(1, 3))
    parts = [key_part(rng, 3) for _ in range(count)]
    if rng.random() < 0.2:
        parts.append(str(rng.choice(["...", ":", "..., None"])))
    return ", ".join(parts)


def source(rng):
    """Return a program that assigns to elements of an array three times."""
    lines = ["def program(x, i, j, n, v, mask, side):", "    y = x.copy()"]
    for _ in range(3):
        at = key(rng)
        value = str(rng.choice(["0.5", "i", f"y[{at}]", f"x[{at}] * 2", "x[0, 0, 0]"]))
        lines.append(f"    y[{at}] {rng.choice(['=', '=', '+=', '*='])} {value}")
    return "\n".join([*lines, "    return y", ""])


def case(rng):
    ints = rng.integers(-4, 4, 2)
    return (
        rng.standard_normal((4, 4, 3)),
        *map(np.int64, ints),
        np.int64(rng.integers(0, 5)),
        rng.permutation(4)[:3],
        rng.random((4, 4)) < 0.5,
        rng.random(4) < 0.5,
    )


@pytest.mark.parametrize("is_open", (False, True), ids=("static", "open"))
@pytest.mark.parametrize("seed", sweep(list(range(200)), always=list(range(25))))
def test_elements_become_what_numpy_makes_of_them(seed, is_open, tmp_path):
    rng = np.random.default_rng(seed)
    text = source(rng)
    program = load(text, tmp_path / f"assigns_{seed}.py")
    cases = [case(rng) for _ in range(RUNS)]
    examples = list(cases[0])
    if is_open:
        examples[0] = TensorType(("a", "b", "c"), "float64")
    captured = trireme.capture(program, *examples, fallback=False)
    for one in cases:
        expect_same(captured(*one), program(*one), f"seed {seed}: {one}\n{text}")
    with trireme.Session(captured.graph()) as session:
        for one in cases[:2]:
            (made,) = session.run(dict(zip(NAMES, map(np.asarray, one), strict=True))).values()
            expect_same(made, program(*one), f"seed {seed}: {one}\n{text}")


def test_a_mask_of_another_shape_is_refused():
    def own(x, m):
        y = x.copy()
        y[m] = 0
        return y

    with pytest.raises(trireme.ConvertError, match=r"a mask of bool\[2\] is the key of float64\[3"):
        trireme.capture(own, np.zeros((3, 3)), np.zeros(2, bool), fallback=False)
