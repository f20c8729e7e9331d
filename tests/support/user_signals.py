"""Programs as users of numpy write them: filters, states, decoding, search.

Each with functions that draw its arguments."""

import math

import numpy as np
from textbook_programs import array, digits, real, whole


def fir(xs, taps):
    out = []
    for i in range(len(xs)):
        acc = 0.0
        for k in range(len(taps)):
            if i - k >= 0:
                acc += taps[k] * xs[i - k]
        out.append(acc)
    return np.array(out)


def dft(xs):
    n = len(xs)
    re, im = np.zeros(n), np.zeros(n)
    for k in range(n):
        for t in range(n):
            angle = 2 * math.pi * k * t / n
            re[k] += xs[t] * math.cos(angle)
            im[k] -= xs[t] * math.sin(angle)
    return np.sqrt(re**2 + im**2)


def kalman(zs, q, r):
    x, p = 0.0, 1.0
    xs = np.zeros_like(zs)
    for k, z in enumerate(zs):
        p = p + q
        gain = p / (p + r)
        x = x + gain * (z - x)
        p = (1 - gain) * p
        xs[k] = x
    return xs, p


def gru(xs, mask, wz, wr, wh, h):
    def sigmoid(v):
        return 1.0 / (1.0 + np.exp(-v))

    outputs = []
    for t in range(xs.shape[0]):
        both = np.concatenate([xs[t], h])
        z = sigmoid(both @ wz)
        r = sigmoid(both @ wr)
        cand = np.tanh(np.concatenate([xs[t], r * h]) @ wh)
        new = (1 - z) * h + z * cand
        h = np.where(mask[t] > 0, new, h)
        outputs.append(h)
    return np.stack(outputs), h


def ctc_greedy(logits, blank=0):
    best = logits.argmax(axis=1)
    out = np.full(len(best), -1)
    n = 0
    prev = blank
    for b in best:
        if b != blank and b != prev:
            out[n] = b
            n += 1
        prev = b
    return out, n


def gram_schmidt(m):
    q = np.zeros_like(m)
    for i in range(m.shape[1]):
        v = m[:, i].copy()
        for j in range(i):
            v -= (q[:, j] @ m[:, i]) * q[:, j]
        q[:, i] = v / np.linalg.norm(v)
    return q


def annealing(x, noise, rolls):
    def energy(v):
        return v * v + 3 * math.sin(5 * v)

    best, best_e = x, energy(x)
    cur, cur_e = best, best_e
    temp = 1.0
    for step, roll in zip(noise, rolls, strict=False):
        cand = cur + step
        e = energy(cand)
        if e < cur_e or roll < math.exp(-(e - cur_e) / temp):
            cur, cur_e = cand, e
            if cur_e < best_e:
                best, best_e = cur, cur_e
        temp *= 0.9
    return best, best_e


def softmax_sampling(logits, u, temperature=0.7):
    z = logits / temperature
    z -= z.max()
    p = np.exp(z)
    p /= p.sum()
    total = 0.0
    for i in range(len(p)):
        total += p[i]
        if u < total:
            return i
    return len(p) - 1


def top_p(logits, u):
    order = np.argsort(-logits)
    p = np.exp(logits - logits.max())
    p = p / p.sum()
    sorted_p = p[order]
    cum = np.cumsum(sorted_p)
    keep = np.searchsorted(cum, 0.8) + 1
    kept = sorted_p * (np.arange(len(p)) < keep)
    kept /= kept.sum()
    pick = np.searchsorted(np.cumsum(kept), u)
    return order[pick]


def bellman_ford(src, dst, w, n=6):
    dist = np.full(n, np.inf)
    dist[0] = 0
    for _ in range(n - 1):
        changed = False
        for u, v, c in zip(src, dst, w, strict=False):
            if dist[u] + c < dist[v]:
                dist[v] = dist[u] + c
                changed = True
        if not changed:
            break
    return dist


def union_intervals(starts, ends):
    order = np.argsort(starts)
    starts, ends = starts[order], ends[order]
    total = 0.0
    cur_s, cur_e = starts[0], ends[0]
    for s, e in zip(starts[1:], ends[1:], strict=False):
        if s > cur_e:
            total += cur_e - cur_s
            cur_s, cur_e = s, e
        else:
            cur_e = max(cur_e, e)
    total += cur_e - cur_s
    return total


def quickselect(xs, k):
    a = xs.copy()
    lo, hi = 0, len(a) - 1
    while lo < hi:
        pivot = a[hi]
        i = lo
        for j in range(lo, hi):
            if a[j] < pivot:
                a[i], a[j] = a[j], a[i]
                i += 1
        a[i], a[hi] = a[hi], a[i]
        if i == k:
            return a[k]
        if i < k:
            lo = i + 1
        else:
            hi = i - 1
    return a[k]


def equalise_bincount(img):
    hist = np.bincount(img.flatten(), minlength=16)
    cdf = np.cumsum(hist) / img.size
    return np.floor(15 * cdf[img]).astype(np.uint8)


def rle(xs):
    values = np.zeros_like(xs)
    counts = np.zeros(len(xs), dtype=int)
    n = 0
    values[0] = xs[0]
    counts[0] = 1
    for x in xs[1:]:
        if x == values[n]:
            counts[n] += 1
        else:
            n += 1
            values[n] = x
            counts[n] = 1
    return values, counts, n + 1


def lower_bound(xs, target):
    xs = np.sort(xs)
    lo, hi = 0, len(xs)
    while lo < hi:
        mid = (lo + hi) // 2
        if xs[mid] < target:
            lo = mid + 1
        else:
            hi = mid
    return lo


def sliding_stats(xs, w=5):
    means, stds = [], []
    for i in range(len(xs) - w + 1):
        window = xs[i : i + w]
        means.append(window.mean())
        stds.append(window.std())
    return np.array(means), np.array(stds)


def hmm_forward(obs, m, e, pi):
    alpha = pi * e[:, obs[0]]
    loglik = 0.0
    for t in range(1, len(obs)):
        alpha = (alpha @ m) * e[:, obs[t]]
        s = alpha.sum()
        alpha /= s
        loglik += np.log(s)
    return alpha, loglik


def baum_backward(obs, m, e):
    n = m.shape[0]
    steps = len(obs)
    beta = np.ones((steps, n))
    for t in range(steps - 2, -1, -1):
        for i in range(n):
            s = 0.0
            for j in range(n):
                s += m[i, j] * e[j, obs[t + 1]] * beta[t + 1, j]
            beta[t, i] = s
        beta[t] /= beta[t].sum()
    return beta


def soft_nms(boxes, scores):
    scores = scores.copy()
    order = []
    for _ in range(len(scores)):
        i = int(np.argmax(scores))
        order.append(i)
        scores[i] = -1
        x1 = np.maximum(boxes[i, 0], boxes[:, 0])
        y1 = np.maximum(boxes[i, 1], boxes[:, 1])
        x2 = np.minimum(boxes[i, 2], boxes[:, 2])
        y2 = np.minimum(boxes[i, 3], boxes[:, 3])
        inter = np.clip(x2 - x1, 0, None) * np.clip(y2 - y1, 0, None)
        scores = np.where(scores > 0, scores * np.exp(-inter), scores)
    return np.array(order)


def coin_change(coins, amount):
    dp = np.full(31, 1 << 20)
    dp[0] = 0
    for a in range(1, 31):
        for c in coins:
            if c <= a and dp[a - c] + 1 < dp[a]:
                dp[a] = dp[a - c] + 1
    return dp[amount] if dp[amount] < (1 << 20) else -1


PROGRAMS = {
    fir: (array(20), array(4)),
    dft: (array(9),),
    kalman: (array(20), real(0.01, 0.1), real(0.1, 1)),
    gru: (array(6, 3), digits(6, high=2), array(7, 4), array(7, 4), array(7, 4), array(4)),
    ctc_greedy: (array(20, 4),),
    gram_schmidt: (array(5, 4),),
    annealing: (real(-2, 2), array(20), lambda rng: rng.random(20)),
    softmax_sampling: (array(20), real(0, 1)),
    top_p: (array(9), real(0, 1)),
    bellman_ford: (digits(20, high=6), digits(20, high=6), lambda rng: rng.random(20) + 0.1),
    union_intervals: (lambda rng: rng.random(20) * 20, lambda rng: 20 + rng.random(20)),
    quickselect: (array(20), whole(0, 20)),
    equalise_bincount: (digits(4, 5, high=16),),
    rle: (digits(20, high=2),),
    lower_bound: (array(20), real(-2, 2)),
    sliding_stats: (array(22),),
    hmm_forward: (digits(20, high=3), array(2, 2), array(2, 3), array(2)),
    baum_backward: (
        digits(20, high=3),
        lambda rng: rng.random((2, 2)),
        lambda rng: rng.random((2, 3)),
    ),
    soft_nms: (lambda rng: np.sort(rng.random((6, 4)) * 4, 1), lambda rng: rng.random(6)),
    coin_change: (lambda rng: rng.integers(1, 9, 3), whole(1, 30)),
}
"""The programs, and what draws each argument from a generator of random numbers."""
