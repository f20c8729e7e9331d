"""Textbook programs on numbers and loops in plain Python, as a newcomer writes them.

Each runs on numpy's arrays and scalars as it stands. `PROGRAMS` has them with functions from a
random generator to arguments.
"""

import numpy as np


def extended_gcd(a, b):
    x0, x1, y0, y1 = 1, 0, 0, 1
    while b:
        q, a, b = a // b, b, a % b
        x0, x1 = x1, x0 - q * x1
        y0, y1 = y1, y0 - q * y1
    return a, x0, y0


def newton_poly(coeffs, x, tol=1e-10, most=50):
    for step in range(most):  # noqa: B007 - read after the loop
        value, slope = 0.0, 0.0
        for c in coeffs:
            slope = slope * x + value
            value = value * x + c
        if abs(value) < tol:
            break
        if slope == 0:
            return float("nan"), -1
        x = x - value / slope
    else:
        return x, most
    return x, step


def fib_fast_doubling(n):
    a, b = 0, 1
    for bit in range(6, -1, -1):
        c = a * (2 * b - a)
        d = a * a + b * b
        if (n >> bit) & 1:
            a, b = d, c + d
        else:
            a, b = c, d
    return a


def first_pair(xs, target):
    for i in range(len(xs)):
        for j in range(i + 1, len(xs)):
            if xs[i] + xs[j] == target:
                return i, j
    return -1, -1


def smallest_factor(n):
    for d in range(2, 12):
        if n % d == 0:
            return d
    else:
        return n


def make_adder(x, k):
    def outer(v):
        def inner(w):
            return v + w * x

        return inner

    f = outer(k)
    return f(2) + f(3)


def counter_closure(xs):
    hits = 0
    last = -1

    def visit(i, x, threshold=0.5):
        nonlocal hits, last
        if x > threshold:
            hits += 1
            last = i

    for i, x in enumerate(xs):
        visit(i, x)
    return hits, last


def chained_cmp(a, b, c):
    n = 0
    if a < b < c:
        n += 1
    if a <= b >= c:
        n += 10
    if a != b != c:
        n += 100
    if 0 <= a < b <= c < 10:
        n += 1000
    return n


def walrus_sum(xs):
    total = 0.0
    i = 0
    while i < len(xs) and (x := xs[i]) > -1.0:
        total += x
        i += 1
    return total, i


def negative_range_dyn(n):
    s = 0
    for i in range(n, -n, -3):
        s += i * i
    return s


def generator_sum(xs):
    return sum(x * i for i, x in enumerate(xs))


def any_all(xs):
    return any(x > 1 for x in xs), all(x > -1 for x in xs)


def digits_sum(n):
    s = 0
    while n:
        n, r = divmod(n, 10)
        s += r
    return s


def two_loops_break(m):
    hit = (-1, -1)
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            if m[i, j] > 1.0:
                hit = (i, j)
                break
        else:
            continue
        break
    return hit


def while_else(n):
    k = 2
    while k < n:
        if n % k == 0:
            r = k
            break
        k += 1
    else:
        r = 0
    return r


def star_args(x):
    def f(a, *rest, scale=1, **kw):
        return (a + sum(rest)) * scale + kw.get("bias", 0)

    return f(x, 1, 2, scale=3, bias=4)


def integrate_adaptive(x):
    def simpson(f, a, b):
        return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))

    total = 0.0
    a = 0.0
    while a < x:
        b = min(a + 0.25, x)
        total += simpson(lambda t: t * t + 1, a, b)
        a = b
    return total


def josephus(n, k):
    r = 0
    for i in range(2, n + 1):
        r = (r + k) % i
    return r


def for_else_continue(m):
    total = 0.0
    for row in m:
        for x in row:
            if x > 1.5:
                break
        else:
            total += row.sum()
            continue
        total -= 1
    return total


def while_else_break(n):
    found = 0
    while n > 1:
        d = 2
        while d * d <= n:
            if n % d == 0:
                break
            d += 1
        else:
            found = n
            break
        n //= d
    return found, n


def nested_return_else(m, v):
    for i in range(m.shape[0]):
        for j in range(m.shape[1]):
            if m[i, j] == v:
                return i * 10 + j
        else:
            if m[i].sum() > 6:
                return -2
    else:
        return -1


def for_else_in_static(xs):
    seen = 0
    for k in (1, 2, 3):
        for j in range(k):
            if xs[j] > 1:
                break
        else:
            continue
        seen = k
        break
    return seen


def while_true_two_exits(n, m):
    while True:
        if n > 100:
            return n
        n = n * 2 + m
        if n % 7 == 0:
            break
    return -n


def rk4(y, n):
    def f(t, y):
        return -y * t

    t, h = 0.0, 0.1
    for _ in range(n):
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        y += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        t += h
    return y


def secant(a, b):
    def f(x):
        return x**3 - 2

    fa, fb = f(a), f(b)
    it = 0
    while abs(fb) > 1e-8 and it < 30:
        if fb == fa:
            break
        a, b = b, b - fb * (b - a) / (fb - fa)
        fa, fb = fb, f(b)
        it += 1
    return b, it


def isqrt(n):
    x = n
    y = (x + 1) // 2
    while y < x:
        x = y
        y = (x + n // x) // 2
    return x


def early_nested(m):
    count = 0
    for row in m:
        for x in row:
            if x < -1.5:
                return count
            count += 1
        if row.sum() > 3:
            return -count
    return 1000


def quadratic(a, b, c):
    d = b * b - 4 * a * c
    if d < 0:
        return 0, 0.0, 0.0
    if d == 0:
        return 1, -b / (2 * a), -b / (2 * a)
    r = d**0.5
    return 2, (-b - r) / (2 * a), (-b + r) / (2 * a)


def unpack_star(xs):
    first, *rest, last = xs
    return first - last + sum(rest)


def whole(low, high):
    return lambda rng: np.int64(rng.integers(low, high))


def real(low, high):
    return lambda rng: np.float64(rng.uniform(low, high))


def array(*shape, dtype=np.float64):
    return lambda rng: rng.standard_normal(shape).astype(dtype)


def digits(*shape, high=4):
    return lambda rng: rng.integers(0, high, shape)


PROGRAMS = {
    extended_gcd: (whole(1, 500), whole(0, 500)),
    newton_poly: (array(4), real(-2, 2)),
    fib_fast_doubling: (whole(0, 60),),
    first_pair: (digits(5), whole(0, 8)),
    smallest_factor: (whole(2, 200),),
    make_adder: (real(-2, 2), real(-2, 2)),
    counter_closure: (array(6),),
    chained_cmp: (whole(-2, 12), whole(-2, 12), whole(-2, 12)),
    walrus_sum: (array(6),),
    negative_range_dyn: (whole(-3, 9),),
    generator_sum: (array(5),),
    any_all: (array(5),),
    digits_sum: (whole(0, 99999),),
    two_loops_break: (array(3, 4),),
    while_else: (whole(2, 60),),
    star_args: (real(0, 1),),
    integrate_adaptive: (real(0, 2),),
    josephus: (whole(1, 30), whole(1, 9)),
    for_else_continue: (array(3, 4),),
    while_else_break: (whole(1, 300),),
    nested_return_else: (digits(3, 3), whole(0, 6)),
    for_else_in_static: (array(3),),
    while_true_two_exits: (whole(1, 50), whole(0, 9)),
    rk4: (real(0, 1), whole(0, 9)),
    secant: (real(0, 1), real(1, 2)),
    isqrt: (whole(1, 9999),),
    early_nested: (array(3, 4),),
    quadratic: (real(1, 2), real(-4, 4), real(0, 2)),
    unpack_star: (array(5),),
}
