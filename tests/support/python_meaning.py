"""Small programs about what Python's and numpy's own rules are: texts, numbers, names, sharing.

Each is run as plain Python on numpy's arrays, and captured. `MEANING` has them; all take four
numbers of float32.
"""

import math

import numpy as np


def text_of_a_number(x):
    table = {"1.50": 2.0, "1.5": 3.0}
    k = 1.5
    return x * table[f"{k:.2f}"]


def converted_text(x):
    w, k = 5, "q"
    table = {f"{k!r:>5}": 2.0, f"{k:>5}": 3.0}
    return x * table["  'q'"] + len(f"{x.shape[0]:>{w}}|{w=}")


def sets_and_dicts(x):
    squares = {i: i * x for i in range(3)}
    return squares[2] + len({k % 2 for k in range(9)} | {7})


def names_of_a_comprehension(x):
    x = [x * k for k in range(3)]
    x = [y for x in x for y in x]
    return sum(x)


def name_kept_by_a_comprehension(x):
    found = [(last := x * k) for k in range(3)]
    return last + len(found)


def numbers_beside_rows(x):
    total = 0
    for row, weight in zip(x, reversed([1.0, 2.0, 3.0, 4.0]), strict=True):
        total = total + row * weight
    return total


def numbers_of_a_long_list(x):
    total = x * 0
    for weight in [0.5 * k for k in range(200)]:
        total = total + x * weight
    return total


def late_closures(x):
    functions = [lambda v: v * k for k in range(3)]  # noqa: B023
    return functions[0](x) + functions[1](x)


def unpacked(x):
    a, *rest = [1, 2, 3]
    b, c, d, e = x
    return b * c - d / e + sum(rest) + a


def unpacked_arguments(x):
    def inner(a, *args, k=2, **named):
        return a * k + sum(args) + named["z"]

    return inner(x, *(1, 2), k=3, z=4)


def whole_numbers(x):
    i = x.astype(np.int32)
    return i // 2 + i % 3 + (i << 1) - (i >> 1) + i**2 + -7 // 2 + 7 % -3


def divided_whole_numbers(x):
    return x.astype(np.int64) / 2 + x.shape[0] // 3 + x.shape[0] / 3


def remainders(x):
    return -7 // 2 * x + (-x) // 2 + (-x) % 2 - np.mod(-x, 2) + -(x**2)


def wide_constants(x):
    return np.float32(2) * x + np.array([1, 2, 3, 4], np.float64)


def bytes_that_wrap(x):
    return np.abs(x).astype(np.uint8) - 5


def counted_truths(x):
    return (x > 0).sum() / x.shape[0] + (x > 0).astype(np.float32).mean()


def numbers_of_all_kinds(x):
    y = x * 1
    for v in (1, 2.5, True):
        y = y + v
    return y


def python_numbers(x):
    return float(x[0]) * 2 + int(x[2]) + round(2.5) + math.sqrt(x.shape[0])


def negative_places(x):
    return x[-1] + x[x.shape[0] // 2] + x[::-1]


def last_turn(x):
    k = 0
    for k in range(3):  # noqa: B007
        pass
    return x * k


def inner_breaks(x):
    total = np.zeros(2, np.float32)
    for i in range(2):
        for j in range(2):
            if j > i:
                break
            total[i] = total[i] + x[i * 2 + j]
    return total


def copied_before_a_change(x):
    y = x.copy()
    y[0] = 5
    y[1:] += 1
    return y + x


def scalars_are_not_shared(x):
    t = x[0]
    t += np.float64(1)
    u = t
    u += 1
    return t + u


def an_array_keeps_its_dtype(x):
    y = x * 1
    for _ in range(int(abs(x).sum())):
        y += np.float64(0.5)
    return y


def changed_parts(x):
    y = x.reshape(2, 2).T * 1
    y[0] += x[0]
    y -= y.mean()
    return y


def changed_on_two_paths(x):
    c = np.ones(4, np.float32)
    if x.sum() > 0:
        c += x
    else:
        c -= x
    return c


def changed_in_turns(x):
    y = x * 2
    for r in x:
        y *= r
    return y


MEANING = [
    text_of_a_number,
    converted_text,
    sets_and_dicts,
    names_of_a_comprehension,
    name_kept_by_a_comprehension,
    numbers_beside_rows,
    numbers_of_a_long_list,
    late_closures,
    unpacked,
    unpacked_arguments,
    whole_numbers,
    divided_whole_numbers,
    remainders,
    wide_constants,
    bytes_that_wrap,
    counted_truths,
    numbers_of_all_kinds,
    python_numbers,
    negative_places,
    last_turn,
    inner_breaks,
    copied_before_a_change,
    scalars_are_not_shared,
    an_array_keeps_its_dtype,
    changed_parts,
    changed_on_two_paths,
    changed_in_turns,
]
