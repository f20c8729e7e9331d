"""Textbook statistics as strangers write them, with functions that draw their arguments."""

import numpy as np
from textbook_programs import array, digits, real


def moving_median(xs1):
    out = []
    for i in range(len(xs1) - 2):
        w = sorted(xs1[i : i + 3])
        out.append(w[1])
    return np.array(out)


def moving_median_np(xs1):
    return np.array([np.median(xs1[max(0, i - 2) : i + 3]) for i in range(len(xs1))])


def quantile(xs1, q):
    s = np.sort(xs1)
    pos = q * (len(s) - 1)
    lo = int(pos)
    hi = min(lo + 1, len(s) - 1)
    frac = pos - lo
    return s[lo] * (1 - frac) + s[hi] * frac


def np_quantile(xs1, q):
    return np.quantile(xs1, q), np.median(xs1), np.percentile(xs1, 25)


def histogram(xs1):
    lo, hi = xs1.min(), xs1.max()
    bins = [0] * 5
    for x in xs1:
        k = int((x - lo) / (hi - lo) * 5)
        if k == 5:
            k = 4
        bins[k] += 1
    return bins


def one_hot2(y):
    out = np.zeros((y.size, y.max() + 1))
    out[np.arange(y.size), y] = 1
    return out


def confusion(y, y2):
    cm = np.zeros((4, 4), dtype=int)
    for a, b in zip(y, y2, strict=True):
        cm[a, b] += 1
    acc = np.trace(cm) / cm.sum()
    return cm, acc


def ema(xs1):
    alpha = 0.3
    out = np.empty_like(xs1)
    out[0] = xs1[0]
    for i in range(1, len(xs1)):
        out[i] = alpha * xs1[i] + (1 - alpha) * out[i - 1]
    return out


def heat(xs1):
    u = xs1.copy()
    for _ in range(30):
        new = u.copy()
        for i in range(1, len(u) - 1):
            new[i] = u[i] + 0.1 * (u[i - 1] - 2 * u[i] + u[i + 1])
        u = new
    return u


def aug_rows(img):
    a = img.copy()
    for i in range(1, 6):
        a[i][1:3] += a[i - 1][0:2]
        a[i][-1] *= 2
    return a


def two_d_list(img):
    g = [[0.0] * 3 for _ in range(3)]
    for i in range(3):
        for j in range(3):
            g[i][j] += img[i, j]
            g[j][i] -= 1
    return g[0][1], g[2][2]


PROGRAMS = {
    moving_median: [array(9)],
    moving_median_np: [array(9)],
    quantile: [array(9), real(0, 1)],
    np_quantile: [array(9), real(0, 1)],
    histogram: [array(9)],
    one_hot2: [digits(6)],
    confusion: [digits(8), digits(8)],
    ema: [array(9)],
    heat: [array(7)],
    aug_rows: [array(6, 6)],
    two_d_list: [array(3, 3)],
}
