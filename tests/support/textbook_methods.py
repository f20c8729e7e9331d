"""Textbook methods as strangers write them: dynamic programs, small networks, search.

Each with functions that draw its arguments.
"""

import math

import numpy as np
from textbook_programs import array


def kmeans_step(pts, cen):
    n, k = pts.shape[0], cen.shape[0]
    labels = np.zeros(n, dtype=int)
    for i in range(n):
        best, bestd = 0, float("inf")
        for j in range(k):
            d = ((pts[i] - cen[j]) ** 2).sum()
            if d < bestd:
                best, bestd = j, d
        labels[i] = best
    new = np.zeros_like(cen)
    for j in range(k):
        mask = labels == j
        if mask.any():
            new[j] = pts[mask].mean(axis=0)
        else:
            new[j] = cen[j]
    return labels, new


def dtw(a, b):
    n, m = len(a), len(b)
    table = np.full((n + 1, m + 1), np.inf)
    table[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost = abs(a[i - 1] - b[j - 1])
            table[i, j] = cost + min(table[i - 1, j], table[i, j - 1], table[i - 1, j - 1])
    return table[n, m]


def edit_distance(s, t):
    prev = list(range(len(t) + 1))
    for i in range(1, len(s) + 1):
        cur = [i]
        for j in range(1, len(t) + 1):
            cost = 0 if s[i - 1] == t[j - 1] else 1
            cur.append(min(prev[j] + 1, cur[j - 1] + 1, prev[j - 1] + cost))
        prev = cur
    return prev[-1]


def edit_distance_np(s, t):
    m, n = len(s), len(t)
    dp = np.zeros((m + 1, n + 1), dtype=int)
    for i in range(m + 1):
        dp[i][0] = i
    for j in range(n + 1):
        dp[0][j] = j
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            if s[i - 1] == t[j - 1]:
                dp[i][j] = dp[i - 1][j - 1]
            else:
                dp[i][j] = 1 + min(dp[i - 1][j], dp[i][j - 1], dp[i - 1][j - 1])
    return dp[m][n]


def softmax_regression(x, w, b, y):
    z = x @ w + b
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z)
    p /= p.sum(axis=1, keepdims=True)
    n = x.shape[0]
    loss = -np.log(p[np.arange(n), y]).mean()
    g = p.copy()
    g[np.arange(n), y] -= 1
    g /= n
    return loss, w - 0.1 * x.T @ g, b - 0.1 * g.sum(axis=0)


def rnn(xs, wx, wh, h):
    outs = []
    for x in xs:
        h = np.tanh(x @ wx + h @ wh)
        outs.append(h)
    return np.array(outs), h


def lstm_cell(xs, wx, wh, h):
    c = np.zeros_like(h)
    size = h.shape[0]
    w4 = np.concatenate([wx] * 4, axis=1)
    u4 = np.concatenate([wh] * 4, axis=1)
    hs = np.zeros((len(xs), size))
    for t in range(len(xs)):
        z = xs[t] @ w4 + h @ u4
        i, f, o, g = np.split(z, 4)
        i, f, o = [1 / (1 + np.exp(-v)) for v in (i, f, o)]
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        hs[t] = h
    return hs


def beam_search(trans, start):
    k = 2
    beams = [(start[i], [i]) for i in range(len(start))]
    beams = sorted(beams, key=lambda b: b[0], reverse=True)[:k]
    for _ in range(3):
        cand = []
        for score, path in beams:
            for j in range(trans.shape[1]):
                cand.append((score + trans[path[-1], j], path + [j]))
        beams = sorted(cand, key=lambda b: -b[0])[:k]
    return beams[0][0], beams[0][1]


def beam_np(trans, start):
    k = 2
    order = np.argsort(-start)[:k]
    scores = start[order]
    paths = order[:, None]
    for _ in range(3):
        total = scores[:, None] + trans[paths[:, -1]]
        flat = total.ravel()
        top = np.argsort(-flat)[:k]
        scores = flat[top]
        paths = np.concatenate(
            [paths[top // trans.shape[1]], (top % trans.shape[1])[:, None]], axis=1
        )
    return scores, paths


def iou(a, b):
    x1 = max(a[0], b[0])
    y1 = max(a[1], b[1])
    x2 = min(a[2], b[2])
    y2 = min(a[3], b[3])
    inter = max(0.0, x2 - x1) * max(0.0, y2 - y1)
    ua = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter
    return inter / ua if ua > 0 else 0.0


def iou_pair(boxes):
    return iou(boxes[0], boxes[1])


def nms(boxes, scores):
    order = np.argsort(-scores)
    n = len(order)
    keep = np.ones(n, dtype=bool)
    for a in range(n):
        i = order[a]
        if not keep[i]:
            continue
        for b in range(a + 1, n):
            j = order[b]
            if keep[j] and iou(boxes[i], boxes[j]) > 0.3:
                keep[j] = False
    return keep


def conv2d(img, ker):
    size, w = img.shape
    kh, kw = ker.shape
    out = np.zeros((size - kh + 1, w - kw + 1))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = (img[i : i + kh, j : j + kw] * ker).sum()
    return out


def conv1d_pad(xs1, ker1):
    pad = len(ker1) // 2
    p = np.pad(xs1, pad)
    return np.array([np.dot(p[i : i + len(ker1)], ker1) for i in range(len(xs1))])


def cholesky(spd):
    n = spd.shape[0]
    lower = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            s = sum(lower[i, k] * lower[j, k] for k in range(j))
            if i == j:
                lower[i, j] = math.sqrt(spd[i, i] - s)
            else:
                lower[i, j] = (spd[i, j] - s) / lower[j, j]
    return lower


def gauss(m, x):
    rows = m.astype(float).copy()
    b = x[:3].copy()
    n = len(b)
    for k in range(n):
        p = k + np.argmax(np.abs(rows[k:, k]))
        if p != k:
            rows[[k, p]] = rows[[p, k]]
            b[k], b[p] = b[p], b[k]
        for i in range(k + 1, n):
            f = rows[i, k] / rows[k, k]
            rows[i, k:] -= f * rows[k, k:]
            b[i] -= f * b[k]
    y = np.zeros(n)
    for i in range(n - 1, -1, -1):
        y[i] = (b[i] - rows[i, i + 1 :] @ y[i + 1 :]) / rows[i, i]
    return y


def power_iteration(spd):
    v = np.ones(spd.shape[0]) / np.sqrt(spd.shape[0])
    lam = 0.0
    for _ in range(1000):
        w = spd @ v
        v2 = w / np.linalg.norm(w)
        new = v2 @ spd @ v2
        if abs(new - lam) < 1e-10:
            break
        v, lam = v2, new
    return new


def life(board):
    n, m = board.shape
    new = np.zeros_like(board)
    for i in range(n):
        for j in range(m):
            total = 0
            for di in (-1, 0, 1):
                for dj in (-1, 0, 1):
                    if di == 0 and dj == 0:
                        continue
                    total += board[(i + di) % n, (j + dj) % m]
            if board[i, j] == 1 and total in (2, 3) or board[i, j] == 0 and total == 3:
                new[i, j] = 1
    return new


def sudoku_sets(grid):
    for i in range(9):
        seen = np.zeros(10, dtype=bool)
        seen2 = np.zeros(10, dtype=bool)
        seen3 = np.zeros(10, dtype=bool)
        for j in range(9):
            a = grid[i, j]
            b = grid[j, i]
            c = grid[3 * (i // 3) + j // 3, 3 * (i % 3) + j % 3]
            if a and seen[a] or b and seen2[b] or c and seen3[c]:
                return False
            seen[a] = seen2[b] = seen3[c] = True
    return True


def pagerank(adj):
    n = adj.shape[0]
    out = adj.sum(axis=1)
    r = np.ones(n) / n
    for _ in range(100):
        new = np.full(n, 0.15 / n)
        for i in range(n):
            if out[i] == 0:
                new += 0.85 * r[i] / n
            else:
                new += 0.85 * r[i] * adj[i] / out[i]
        if np.abs(new - r).sum() < 1e-9:
            break
        r = new
    return r


def dijkstra(dist):
    n = len(dist)
    d = np.full(n, np.inf)
    d[0] = 0
    done = np.zeros(n, dtype=bool)
    for _ in range(n):
        u = -1
        for v in range(n):
            if not done[v] and (u == -1 or d[v] < d[u]):
                u = v
        done[u] = True
        for v in range(n):
            alt = d[u] + dist[u, v]
            if alt < d[v]:
                d[v] = alt
    return d


def life_gens(board):
    for _ in range(20):
        n = sum(np.roll(board, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - board
        new = np.zeros_like(board)
        new[(board == 1) & ((n == 2) | (n == 3))] = 1
        new[(board == 0) & (n == 3)] = 1
        board = new
    return board


def integers(high, *shape):
    """Draw whole numbers below a bound."""
    return lambda rng: rng.integers(0, high, shape)


def positive(n):
    """Draw a positive definite matrix."""

    def draw(rng):
        root = rng.normal(size=(n, n))
        return root @ root.T + n * np.eye(n)

    return draw


def boxes(count):
    """Draw boxes as x1, y1, x2, y2."""

    def draw(rng):
        corner = rng.uniform(0, 3, (count, 2))
        return np.concatenate([corner, corner + rng.uniform(1, 3, (count, 2))], axis=1)

    return draw


def puzzle(rng):
    """Draw a board with few numbers."""
    return rng.integers(0, 10, (9, 9)) * (rng.random((9, 9)) < 0.05)


PROGRAMS = {
    kmeans_step: [array(6, 2), array(3, 2)],
    dtw: [array(5), array(4)],
    edit_distance: [integers(3, 5), integers(3, 6)],
    edit_distance_np: [integers(3, 6), integers(3, 5)],
    softmax_regression: [array(5, 3), array(3, 4), array(4), integers(4, 5)],
    rnn: [array(4, 3), array(3, 2), array(2, 2), array(2)],
    lstm_cell: [array(4, 3), array(3, 2), array(2, 2), array(2)],
    beam_search: [array(3, 3), array(3)],
    beam_np: [array(3, 3), array(3)],
    iou_pair: [boxes(2)],
    nms: [boxes(5), array(5)],
    conv2d: [array(6, 6), array(3, 3)],
    conv1d_pad: [array(9), array(3)],
    cholesky: [positive(4)],
    gauss: [array(3, 3), array(3)],
    power_iteration: [positive(4)],
    life: [integers(2, 4, 4)],
    sudoku_sets: [puzzle],
    pagerank: [integers(2, 4, 4)],
    dijkstra: [array(4, 4)],
    life_gens: [integers(2, 6, 6)],
}
