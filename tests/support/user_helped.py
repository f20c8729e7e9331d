"""Programs of which a Python operator runs one statement, with draws of their arguments."""

import numpy as np
from textbook_programs import array, digits


def autocorrelation(xs):
    n = len(xs)
    x = xs - np.mean(xs)
    result = np.correlate(x, x, mode="full")[n - 1 :]
    return result / result[0]


def kalman_2d(zs):
    move = np.array([[1.0, 1.0], [0.0, 1.0]])
    see = np.array([[1.0, 0.0]])
    drift = np.eye(2) * 0.01
    rest = np.array([[0.5]])
    x = np.zeros((2, 1))
    spread = np.eye(2)
    for z in zs:
        x = move @ x
        spread = move @ spread @ move.T + drift
        y = z - see @ x
        seen = see @ spread @ see.T + rest
        gain = spread @ see.T @ np.linalg.inv(seen)
        x = x + gain @ y
        spread = (np.eye(2) - gain @ see) @ spread
    return x.ravel(), spread


def equalise(img):
    hist = np.zeros(16, dtype=np.int64)
    for v in img.ravel():
        hist[v] += 1
    cdf = hist.cumsum()
    low = cdf[np.nonzero(cdf)[0][0]]
    lut = np.round((cdf - low) / (img.size - low) * 15).astype(np.int64)
    return lut[img]


def sliding_max(xs):
    view = np.lib.stride_tricks.sliding_window_view(xs, 4)
    return view.max(axis=1)


def newton_system(x):
    for it in range(30):  # noqa: B007
        f = np.array([x[0] ** 2 + x[1] ** 2 - 4, x[0] * x[1] - 1])
        slope = np.array([[2 * x[0], 2 * x[1]], [x[1], x[0]]])
        dx = np.linalg.solve(slope, -f)
        x = x + dx
        if np.linalg.norm(dx) < 1e-10:
            break
    return x, it


def jacobi(m, b, x):
    diagonal = np.diag(m)
    rest = m - np.diagflat(diagonal)
    for i in range(50):  # noqa: B007
        new = (b - rest @ x) / diagonal
        if np.allclose(x, new, atol=1e-8):
            break
        x = new
    return x, i


PROGRAMS = {
    autocorrelation: (array(12),),
    kalman_2d: (array(18),),
    equalise: (digits(4, 5, high=16),),
    sliding_max: (array(12),),
    newton_system: (lambda rng: np.array([2.0, 0.4]) + rng.random(2) * 0.1,),
    jacobi: (lambda rng: rng.random((3, 3)) + 4 * np.eye(3), array(3), array(3)),
}
"""The programs, and what draws each argument from a generator of random numbers."""
