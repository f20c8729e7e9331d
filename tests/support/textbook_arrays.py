"""Textbook programs on arrays in plain Python, as a newcomer writes them.

Each runs on numpy's arrays and scalars as it stands. `PROGRAMS` has them with functions from a
random generator to arguments.
"""

import numpy as np
from textbook_programs import array, digits, real, whole


def prefix_sums(xs):
    out = np.zeros_like(xs)
    total = xs.dtype.type(0)
    for i, x in enumerate(xs):
        total += x
        out[i] = total
    return out


def hillis_steele(xs):
    ys = xs.copy()
    d = 1
    while d < len(ys):
        new = ys.copy()
        new[d:] = ys[d:] + ys[:-d]
        ys = new
        d *= 2
    return ys


def matrix_power(m, n):
    result = np.eye(len(m), dtype=m.dtype)
    while n > 0:
        if n & 1:
            result = result @ m
        m = m @ m
        n >>= 1
    return result


def insertion_sort(xs):
    a = np.array(xs)
    for i in range(1, len(a)):
        key = a[i]
        j = i - 1
        while j >= 0 and a[j] > key:
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = key
    return a


def run_length_max(xs):
    best = run = 1
    for i in range(1, len(xs)):
        run = run + 1 if xs[i] == xs[i - 1] else 1
        best = max(best, run)
    return best


def run_lengths(xs):
    lengths = np.zeros(len(xs), np.int64)
    values = np.zeros_like(xs)
    count = 0
    for x in xs:
        if count > 0 and values[count - 1] == x:
            lengths[count - 1] += 1
        else:
            values[count] = x
            lengths[count] = 1
            count += 1
    return values, lengths, count


def histogram(xs):
    h = np.zeros(5, np.int64)
    for x in xs:
        h[x] += 1
    return h


def aug_ops(x):
    x = x.copy()
    x[0] += 1
    x[1:3] *= 2
    x[-1] -= 3
    x[::2] /= 2
    x[x > 3] = 0
    return x


def floyd_warshall(d):
    d = d.copy()
    n = d.shape[0]
    for k in range(n):
        for i in range(n):
            for j in range(n):
                if d[i, k] + d[k, j] < d[i, j]:
                    d[i, j] = d[i, k] + d[k, j]
    return d


def lcs(a, b):
    n, m = len(a), len(b)
    t = np.zeros((n + 1, m + 1), dtype=np.int64)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            if a[i - 1] == b[j - 1]:
                t[i, j] = t[i - 1, j - 1] + 1
            else:
                t[i, j] = max(t[i - 1, j], t[i, j - 1])
    return t[n, m]


def gauss_seidel(a, b, x):
    x = x.copy()
    for _ in range(10):
        for i in range(len(b)):
            s = a[i] @ x - a[i, i] * x[i]
            x[i] = (b[i] - s) / a[i, i]
    return x


def kadane(xs):
    best = cur = xs[0]
    for x in xs[1:]:
        cur = max(x, cur + x)
        best = max(best, cur)
    return best


def reversed_list(xs):
    total = 0.0
    for x in reversed(xs):
        total = total / 2 + x
    return total


def heat(u, steps):
    for _ in range(steps):
        inner = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
        u = np.concatenate([u[:1], inner, u[-1:]])
    return u


def pascal(n):
    row = np.zeros(10, np.int64)
    row[0] = 1
    for _ in range(n):
        for j in range(9, 0, -1):
            row[j] = row[j] + row[j - 1]
    return row


def lu(m):
    u = m.copy()
    n = len(u)
    lower = np.eye(n)
    for k in range(n - 1):
        for i in range(k + 1, n):
            f = u[i, k] / u[k, k]
            lower[i, k] = f
            u[i, k:] -= f * u[k, k:]
    return lower, u


def knapsack(w, v, cap):
    best = np.zeros(11, np.int64)
    for wi, vi in zip(w, v, strict=True):
        for c in range(10, -1, -1):
            if wi <= c:
                best[c] = max(best[c], best[c - wi] + vi)
    return best[cap]


def viterbi(obs, trans, emit):
    p = emit[:, obs[0]]
    for o in obs[1:]:
        p = np.max(p[:, None] + trans, axis=0) + emit[:, o]
    return p.argmax(), p.max()


def kmeans_1d(xs, c):
    c = c.copy()
    for _ in range(5):
        d = np.abs(xs[:, None] - c[None, :])
        lab = d.argmin(axis=1)
        for k in range(len(c)):
            m = lab == k
            n = m.sum()
            if n > 0:
                c[k] = np.where(m, xs, 0).sum() / n
    return c


def max_subarray_bounds(xs):
    best = xs[0]
    s = e = start = 0
    cur = 0.0
    for i, x in enumerate(xs):
        if cur < 0:
            cur = x
            start = i
        else:
            cur += x
        if cur > best:
            best, s, e = cur, start, i
    return best, s, e


def two_pointers(xs, t):
    xs = np.cumsum(np.abs(xs))
    i, j = 0, len(xs) - 1
    while i < j:
        s = xs[i] + xs[j]
        if s < t:
            i += 1
        elif s > t:
            j -= 1
        else:
            return i, j
    return i, j


def pagerank(m):
    m = np.abs(m)
    m = m / m.sum(axis=0)
    r = np.ones(len(m)) / len(m)
    for it in range(100):  # noqa: B007 - read after the loop
        new = 0.85 * (m @ r) + 0.15 / len(m)
        err = np.abs(new - r).sum()
        r = new
        if err < 1e-6:
            break
    return r, it


def rough(xs):
    total = 0.0
    for a, b in zip(xs, xs[1:]):  # noqa: B905 - the shorter one ends it
        total += abs(b - a)
    for i, (a, b) in enumerate(zip(xs[2:], [1.0, 2.0])):  # noqa: B905
        total += a * b - i
    return total


def clipped_rows(m, low):
    m = m.copy()
    m[m < low] *= -0.5
    m[m.sum(axis=1) > 0] = 0.0
    m[m[:, 0] < 0, 1] += m[m[:, 0] < 0, 2]
    kept = np.zeros(4)
    kept[m[:, 3] < 0] = m[m[:, 3] < 0, 3]
    return m, kept


def eliminated(m, k):
    m = m.copy()
    for i in range(k, 4):
        m[i, k:] -= m[k, k:] * m[i, k]
        m[i:, k] = m[k, i:] + 1.0
    m[:k] = 0.0
    return m


PROGRAMS = {
    prefix_sums: (array(6, dtype=np.float32),),
    hillis_steele: (array(7),),
    matrix_power: (array(3, 3), whole(0, 9)),
    insertion_sort: (array(5),),
    run_length_max: (digits(9, high=2),),
    run_lengths: (digits(8, high=2),),
    histogram: (digits(9, high=5),),
    aug_ops: (array(6),),
    floyd_warshall: (lambda rng: rng.uniform(0, 9, (3, 3)),),
    lcs: (digits(4, high=3), digits(5, high=3)),
    gauss_seidel: (lambda rng: np.eye(3) * 5 + rng.random((3, 3)), array(3), array(3)),
    kadane: (array(8),),
    reversed_list: (array(5),),
    heat: (array(8), whole(0, 9)),
    pascal: (whole(0, 9),),
    lu: (lambda rng: np.eye(3) * 4 + rng.random((3, 3)),),
    knapsack: (digits(4, high=6), digits(4, high=9), whole(0, 11)),
    viterbi: (digits(6, high=3), array(4, 4), array(4, 3)),
    kmeans_1d: (array(9), array(3)),
    max_subarray_bounds: (array(8),),
    two_pointers: (array(8), real(0, 8)),
    pagerank: (array(4, 4),),
    rough: (array(6),),
    clipped_rows: (array(4, 4), real(-1, 1)),
    eliminated: (array(4, 4), whole(0, 4)),
}
