"""Loops over lists as textbooks write them: one that is refused, the words of the error, a rewrite.

A pair is (refused, words, rewritten, arguments): the rewritten program does what the words say.
"""

import numpy as np


def table(n):
    rows = []
    for i in range(n):
        rows.append([i, i * i])
    return np.array(rows)


def grid(n):
    rows = []
    for i in range(n):
        row = []
        for j in range(n):
            row.append(i * j)
        rows.append(row)
    return np.array(rows), rows[0]


def halves(x, n):
    rows = [x]
    for _ in range(n):
        x = x * 0.5
        rows.append(x)
    return np.stack(rows), rows[-1], len(rows)


def nested_choice(x, i):
    choices = [[1, 2], [3, 4]]
    return choices[i][1] * x, len(choices[i])


def cut_on_both_paths(x, n):
    out = []
    for i in range(n):
        out.append(i * 1.5)
    out = out[1:] if n > 2 else out[:1]
    return np.array(out + [1.0])


def cut_in_turns(x, n):
    out = []
    for i in range(n):
        out.append(i * 1.5)
    for _ in range(n):
        out = out[:2]
    return np.array(out + [x])


def joined_in_turns(x, n):
    out = []
    for i in range(n):
        out.append(i * 1.5)
    for _ in range(n):
        out = out + [x]
    return np.array(out)


LENGTHS = [(np.float64(2), np.int64(n)) for n in (3, 4, 2)]
PROGRAMS = {
    cut_on_both_paths: LENGTHS,
    cut_in_turns: LENGTHS,
    joined_in_turns: LENGTHS,
    table: [(np.int64(3),), (np.int64(1),)],
    grid: [(np.int64(3),), (np.int64(2),)],
    halves: [(np.ones(2, np.float32), np.int64(3)), (np.ones(2, np.float32), np.int64(1))],
    nested_choice: [(np.float32(1.5), np.int64(i)) for i in (0, 1, -1)],
}


def collatz_by_last(n):
    out = [n]
    while out[-1] != 1:
        out.append(out[-1] // 2 if out[-1] % 2 == 0 else 3 * out[-1] + 1)
    return np.array(out)


def collatz(n):
    out, last = [n], n
    while last != 1:
        last = last // 2 if last % 2 == 0 else 3 * last + 1
        out.append(last)
    return np.array(out)


def fibonacci_by_length(n):
    out = [0, 1]
    while len(out) < n:
        out.append(out[-1] + out[-2])
    return np.array(out)


def fibonacci(n):
    out = np.zeros(n, np.int64)
    out[1] = 1
    for i in range(2, n):
        out[i] = out[i - 1] + out[i - 2]
    return out


def sizes_by_branch(x):
    out = []
    for v in x:
        if v > 0:
            out.append(v)
        else:
            out.append(-v)
    return np.array(out)


def sizes(x):
    out = []
    for v in x:
        size = v if v > 0 else -v
        out.append(size)
    return np.array(out)


def two_a_turn(n):
    out = []
    for i in range(n):
        out.append(i)
        out.append(i * i)
    return np.array(out)


def a_pair_a_turn(n):
    out = []
    for i in range(n):
        out.append((i, i * i))
    return np.array(out).ravel()


def multiples_by_slice(p):
    marked = np.zeros(30, bool)
    marked[p * p :: p] = True
    return marked


def multiples(p):
    marked = np.zeros(30, bool)
    marked[np.arange(p * p, 30, p)] = True
    return marked


def marked_by_range(p):
    total = 0
    for j in range(p * p, 30, p):
        total += j
    return total


def marked_by_count(p):
    total, j = 0, p * p
    while j < 30:
        total += j
        j += p
    return total


LISTS = (np.array([1.0, -2.0, 0.5]),), (np.array([-1.0, 2.0, 3.0]),)
REWRITES = [
    (collatz_by_last, "keep its last item", collatz, [(np.int64(6),), (np.int64(1),)]),
    (fibonacci_by_length, r"into np\.zeros", fibonacci, [(np.int64(8),), (np.int64(3),)]),
    (sizes_by_branch, "choose the item in the branch, and append it once", sizes, LISTS),
    (two_a_turn, "one item a turn, which may be a tuple", a_pair_a_turn, [(np.int64(3),)]),
    (multiples_by_slice, r"np\.arange\(start, stop, step\)", multiples, [(np.int64(2),)]),
    (marked_by_range, "count in a while loop", marked_by_count, [(np.int64(3),)]),
]
