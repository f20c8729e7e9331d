"""Loops before which a variable is None, as strangers write them, with draws of their arguments."""

import numpy as np
from textbook_programs import array, digits, real, whole


def best_of_rows(m):
    best = None
    for row in m:
        score = (row * row).sum()
        if best is None or score > best:
            best = score
    return best


def best_with_place(xs):
    best, at = None, None
    for i, x in enumerate(xs):
        if best is None or x > best:
            best, at = x, i
    return best, at


def closest_pair(xs, ys):
    closest = None
    for i in range(len(xs)):
        for j in range(len(ys)):
            d = abs(xs[i] - ys[j])
            if closest is None or d < closest:
                closest = d
    return closest


def longest_rise(xs):
    previous = None
    length, best = 0, 0
    for x in xs:
        length = length + 1 if previous is not None and x > previous else 1
        best = max(best, length)
        previous = x
    return best, previous


def smoothed(xs, rate):
    state = None
    out = np.zeros(len(xs))
    for i, x in enumerate(xs):
        state = x if state is None else rate * x + (1 - rate) * state
        out[i] = state
    return out


def until_it_settles(x):
    last = None
    for _ in range(60):
        if last is not None and abs(x - last) < 1e-6:
            break
        last = x
        x = np.cos(x)
    return x, last


def first_repeat(xs):
    last = None
    for x in xs:
        if last is not None and x == last:
            return x
        last = x
    return -1 * last


def climbing(xs):
    i, best = 0, None
    while i < 40:
        value = xs[i % len(xs)] - 0.1 * i
        if best is None or value > best:
            best = value
        i += 1
    return best


def newton_steps(x):
    step = None
    while step is None or abs(step) > 1e-9:
        step = (x * x - 2) / (2 * x)
        x = x - step
    return x


def endless_with_none(x):
    old = None
    while True:
        if old is not None and x <= old + 0.5:
            break
        old = x
        x = x / 2 + 1
    return x, old


def for_else_with_none(xs, limit):
    top = None
    for x in xs:
        if top is None or x > top:
            top = x
        if top > limit:
            kind = 1
            break
    else:
        kind = 2
    return top, kind


def best_zip(xs, ys):
    best = None
    for x, y in zip(xs, ys, strict=False):
        if best is None or x * y < best:
            best = x * y
    return best


def argmax_of_vectors(m):
    best_row, best = None, None
    for row in m:
        if best is None or row.sum() > best:
            best, best_row = row.sum(), row
    return best_row * 1


def row_changed_first(m):
    m = m.copy()
    seen = None
    for i, row in enumerate(m):
        seen = row.sum() if seen is None else seen + row.sum()
        m[i] = seen
    return m, seen


PROGRAMS = {
    best_of_rows: (array(20, 3),),
    best_with_place: (digits(25),),
    closest_pair: (array(18), array(5)),
    longest_rise: (digits(30),),
    smoothed: (array(21), real(0, 1)),
    until_it_settles: (real(0, 1),),
    first_repeat: (digits(20),),
    climbing: (array(7),),
    newton_steps: (real(1, 9),),
    endless_with_none: (real(0, 9),),
    for_else_with_none: (digits(22), whole(2, 5)),
    best_zip: (array(19), array(17)),
    argmax_of_vectors: (array(20, 4),),
    row_changed_first: (array(20, 4),),
}
"""The programs, and what draws each argument from a generator of random numbers."""
