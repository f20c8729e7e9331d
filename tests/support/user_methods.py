"""Programs as users of numpy write them: fits, searches, sorts, geometry.

Each with functions that draw its arguments."""

import numpy as np
from textbook_programs import array, digits, real, whole


def lis(xs):
    best = [1] * len(xs)
    for i in range(len(xs)):
        for j in range(i):
            if xs[j] < xs[i]:
                best[i] = max(best[i], best[j] + 1)
    return max(best)


def conjugate_gradient(m, b):
    a = m @ m.T + 40 * np.eye(len(b))
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    rs = r @ r
    for _i in range(len(b)):
        ap = a @ p
        alpha = rs / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        new = r @ r
        if np.sqrt(new) < 1e-9:
            break
        p = r + (new / rs) * p
        rs = new
    return x


def linear_regression_gd(x, y):
    w, b = 0.0, 0.0
    n = len(x)
    history = []
    for _epoch in range(25):
        pred = w * x + b
        err = pred - y
        w -= 0.1 * 2 * (err * x).sum() / n
        b -= 0.1 * 2 * err.sum() / n
        history.append((err**2).mean())
    return w, b, np.array(history)


def perceptron(rows, y):
    w = np.zeros(rows.shape[1])
    for _epoch in range(10):
        errors = 0
        for xi, target in zip(rows, y, strict=False):
            pred = 1 if xi @ w >= 0 else -1
            if pred != target * 2 - 1:
                w += 0.1 * (target * 2 - 1) * xi
                errors += 1
        if errors == 0:
            break
    return w, errors


def knn(train, labels, q):
    d = np.sqrt(((train - q) ** 2).sum(axis=1))
    idx = np.argsort(d)[:3]
    votes = np.zeros(4)
    for i in idx:
        votes[labels[i]] += 1
    return votes.argmax()


def decision_path(x):
    if x[0] < 0:
        if x[1] < 0.3:
            label = 0
        elif x[2] > 0:
            label = 1
        else:
            label = 2
    else:
        label = 3 if x[1] * x[2] > 0 else 4
    return label


def attention(q, k, v, causal=True):
    scores = q @ k.T / np.sqrt(q.shape[-1])
    if causal:
        mask = np.triu(np.ones(scores.shape), k=1).astype(bool)
        scores[mask] = -1e9
    w = np.exp(scores - scores.max(axis=-1, keepdims=True))
    w /= w.sum(axis=-1, keepdims=True)
    return w @ v


def positional(x):
    pos = np.arange(x.shape[0])[:, None]
    i = np.arange(x.shape[1])[None, :]
    rates = 1 / np.power(10000, (2 * (i // 2)) / x.shape[1])
    angles = pos * rates
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return x + angles


def peaks_count(xs):
    n = 0
    last = -1
    for i in range(1, len(xs) - 1):
        if xs[i - 1] < xs[i] > xs[i + 1]:
            n += 1
            last = i
    return n, last


def zscore_outliers(xs):
    z = (xs - xs.mean()) / xs.std()
    return xs[np.abs(z) < 1.5]


def polygon_area(p):
    area = 0.0
    for i in range(len(p)):
        x0, y0 = p[i]
        x1, y1 = p[(i + 1) % len(p)]
        area += x0 * y1 - x1 * y0
    return abs(area) / 2


def convex_side(p, q):
    sign = 0
    for a, b in zip(p, np.roll(p, -1, axis=0), strict=False):
        cross = (b[0] - a[0]) * (q[1] - a[1]) - (b[1] - a[1]) * (q[0] - a[0])
        s = 1 if cross > 0 else -1
        if sign == 0:
            sign = s
        elif s != sign:
            return False
    return True


def topological(adj):
    n = adj.shape[0]
    adj = np.triu(adj, 1)
    indeg = adj.sum(axis=0)
    done = np.zeros(n, dtype=bool)
    order = np.zeros(n, dtype=int)
    for step in range(n):
        for v in range(n):
            if not done[v] and indeg[v] == 0:
                done[v] = True
                order[step] = v
                indeg = indeg - adj[v]
                break
    return order


def mandel_row(cs):
    out = np.zeros(len(cs), dtype=int)
    for k, c in enumerate(cs):
        zr, zi, n = 0.0, 0.0, 0
        while zr * zr + zi * zi <= 4 and n < 40:
            zr, zi = zr * zr - zi * zi + c, 2 * zr * zi + 0.3
            n += 1
        out[k] = n
    return out


def luhn(ds):
    total = 0
    for i, d in enumerate(ds[::-1]):
        if i % 2 == 1:
            d = d * 2
            if d > 9:
                d -= 9
        total += d
    return total % 10 == 0


def hamming_weight(n):
    c = 0
    while n:
        n &= n - 1
        c += 1
    return c


def bit_reverse(n):
    r = 0
    for _ in range(8):
        r = (r << 1) | (n & 1)
        n >>= 1
    return r


def median_of_three(a, b, c):
    if (a > b) != (a > c):
        return a
    if (b > a) != (b > c):
        return b
    return c


def shell_sort(xs):
    a = xs.copy()
    gap = len(a) // 2
    while gap > 0:
        for i in range(gap, len(a)):
            tmp = a[i]
            j = i
            while j >= gap and a[j - gap] > tmp:
                a[j] = a[j - gap]
                j -= gap
            a[j] = tmp
        gap //= 2
    return a


def merge(a, b):
    a, b = np.sort(a), np.sort(b)
    out = np.zeros(len(a) + len(b))
    i = j = 0
    for k in range(len(out)):
        if j >= len(b) or (i < len(a) and a[i] <= b[j]):
            out[k] = a[i]
            i += 1
        else:
            out[k] = b[j]
            j += 1
    return out


def counting_sort(xs):
    counts = np.zeros(10, dtype=int)
    for x in xs:
        counts[x] += 1
    out = np.empty(len(xs), dtype=int)
    pos = 0
    for v in range(10):
        for _ in range(counts[v]):
            out[pos] = v
            pos += 1
    return out


PROGRAMS = {
    lis: (array(18),),
    conjugate_gradient: (array(18, 18), array(18)),
    linear_regression_gd: (array(10), array(10)),
    perceptron: (array(8, 3), digits(8, high=2)),
    knn: (array(9, 2), digits(9), array(2)),
    decision_path: (array(3),),
    attention: (array(5, 4), array(5, 4), array(5, 3)),
    positional: (array(6, 4),),
    peaks_count: (array(20),),
    zscore_outliers: (array(20),),
    polygon_area: (array(18, 2),),
    convex_side: (array(5, 2), array(2)),
    topological: (digits(6, 6, high=2),),
    mandel_row: (lambda rng: rng.uniform(-2, 0.5, 6),),
    luhn: (digits(16, high=10),),
    hamming_weight: (whole(0, 9999),),
    bit_reverse: (whole(0, 255),),
    median_of_three: (real(0, 1),) * 3,
    shell_sort: (array(20),),
    merge: (array(9), array(12)),
    counting_sort: (digits(20, high=10),),
}
"""The programs, and what draws each argument from a generator of random numbers."""
