"""Thirty small programs in plain Python, each with random arguments: what capture must understand.

Each runs on numpy's arrays and scalars as it stands. `PROGRAMS` has them with functions from a
random generator to arguments.
"""

import math

import numpy as np

SCALE = 3.0


def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def newton_root(x):
    guess = 1.0
    for _ in range(100):
        new = 0.5 * (guess + x / guess)
        if abs(new - guess) < 1e-9:
            break
        guess = new
    return guess


def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


def bisection(low, high, target):
    for _ in range(60):
        middle = (low + high) / 2
        if middle * middle * middle > target:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def triangle_of_products(n):
    total = 0
    for i in range(n):
        for j in range(i + 1):
            if (i + j) % 3 == 0:
                continue
            total += i * j
    return total


def early_exit_rnn(xs, w, h):
    steps = 0
    for x in xs:
        h = np.tanh(x + h @ w)
        steps += 1
        if np.sum(np.abs(h)) > 2.5:
            break
    return h, steps


def nested_rnn(xs, w, h):
    for x in xs:
        change = 1.0
        turns = 0
        while change > 0.1 and turns < 5:
            new = np.tanh(x + h @ w)
            change = np.max(np.abs(new - h))
            h = new
            turns += 1
    return h


def beam_step(scores, logits):
    best_score, best_beam, best_token = -1e30, -1, -1
    for beam in range(len(scores)):
        for token in range(logits.shape[1]):
            score = scores[beam] + logits[beam, token]
            if score > best_score:
                best_score, best_beam, best_token = score, beam, token
    return best_score, best_beam, best_token


def greedy_decode(table, token, limit):
    length = 0
    while True:
        token = np.argmax(table[token])
        length += 1
        if token == 0 or length >= limit:
            break
    return token, length


def sorting_network(xs):
    values = [xs[i] for i in range(4)]
    for i, j in [(0, 1), (2, 3), (0, 2), (1, 3), (1, 2)]:
        if values[i] > values[j]:
            values[i], values[j] = values[j], values[i]
    return np.stack(values)


def bubble_sort(xs):
    xs = xs.copy()
    n = len(xs)
    for i in range(n):
        for j in range(n - 1 - i):
            if xs[j] > xs[j + 1]:
                xs[j], xs[j + 1] = xs[j + 1], xs[j]
    return xs


def closure(x, n):
    factor = x * 2

    def apply(y):
        return y * factor + SCALE

    total = 0.0
    for i in range(n):
        total = total + apply(i)
    return total


def counter(xs):
    count = 0

    def see(x):
        nonlocal count
        if x > 0:
            count += 1

    for x in xs:
        see(x)
    return count


def tuples(a, b):
    pair = (a, b)
    if a > b:
        pair = (b, a)
    low, high = pair
    (x, y), z = (low + 1, high), low * high
    return x, (y, z)


def guarded_search(xs, wanted):
    i = 0
    while i < len(xs) and xs[i] != wanted:
        i += 1
    return i


def short_circuits(a, b):
    first = a > 0 and b // a > 2
    second = a <= 0 or b % a == 0
    return first, second, not first


def or_of_values(a, b):
    return (a or b) + (a and b)


def chained(x, low, high):
    if low <= x < high:
        return x
    return low if x < low else high


def find_first(xs):
    for i in range(len(xs)):
        if xs[i] < 0:
            return i
    return -1


def for_else(xs):
    found = -1
    for i in range(len(xs)):
        if xs[i] > 2:
            found = i
            break
    else:
        found = 100
    return found


def is_prime(n):
    if n < 2:
        return False
    d = 2
    while d * d <= n:
        if n % d == 0:
            return False
        d += 1
    return True


def power_mod(base, exponent, modulus):
    result = 1
    base = base % modulus
    while exponent > 0:
        if exponent % 2 == 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result


def horner(coefficients, x):
    y = 0.0
    for c in coefficients:
        y = y * x + c
    return y


def clipped_sum(xs):
    total = 0.0
    for x in xs:
        if x < -1:
            continue
        total += x if x < 1 else 1.0
    return total


def matching(xs, ys):
    same = 0
    for x, y in zip(xs, ys, strict=True):
        same += 1 if x == y else 0
    return same


def weighted(xs):
    total = 0.0
    for i, x in enumerate(xs):
        total += i * x
    return total


def mandelbrot(cr, ci):
    zr, zi = 0.0, 0.0
    for i in range(50):
        zr, zi = zr * zr - zi * zi + cr, 2 * zr * zi + ci
        if zr * zr + zi * zi > 4:
            return i
    return 50


def running_extremes(xs):
    low = high = xs[0]
    for x in xs:
        low, high = min(low, x), max(high, x)
    return low, high, high - low


def power_iteration(m, v):
    size = 0.0
    for _ in range(40):
        v = m @ v
        size = math.sqrt(np.sum(v * v))
        v = v / size
    return size, v


def state_machine(xs):
    state = 0
    for x in xs:
        if state == 0:
            if x > 0.5:
                state = 1
        elif state == 1:
            if x < -0.5:
                state = 2
            elif x > 1.5:
                state = 0
        else:
            return state * 10 + 1
    return state


def lambdas(x):
    square, shift = (lambda v: v * v), (lambda v, by=1: v + by)
    for _ in range(3):
        x = shift(square(x), by=-x)
    return shift(x)


def _steps(x, size=0.5, *, turns=4):
    for _ in range(turns):
        x = x - size * x
    return x


def helpers(x):
    if x > 0:
        return _steps(x)
    return _steps(-x, turns=2) + _steps(x, 0.25)


def rnn_outputs(xs, w, h):
    outputs = []
    for x in xs:
        h = np.tanh(x + h @ w)
        outputs.append(h)
    return np.stack(outputs), h


def countdown(n):
    seen = [n * 3]
    while n > 0:
        seen.append(n)
        n -= 2
    return len(seen), seen[-1], sum(seen)


def two_lists(x, n):
    squares, sums = [], []
    for i in range(n):
        squares.append(i * i)
        sums.append(x + i)
    return np.stack(sums, axis=1), sum(squares), np.concatenate(sums)


def average_until(xs, limit):
    total, count = 0.0, 0
    for x in xs:
        total += x
        count += 1
        if total / count > limit:
            break
    if count == 0:
        return 0.0
    return total / count


def _whole(low, high):
    return lambda rng: np.int64(rng.integers(low, high))


def _real(low, high):
    return lambda rng: np.float64(rng.uniform(low, high))


def _array(*shape, dtype=np.float64):
    return lambda rng: rng.standard_normal(shape).astype(dtype)


def _single(*shape):
    return _array(*shape, dtype=np.float32)


def _digits(*shape):
    return lambda rng: rng.integers(0, 4, shape)


PROGRAMS = {
    gcd: (_whole(1, 500), _whole(0, 500)),
    fibonacci: (_whole(0, 60),),
    newton_root: (_real(0.1, 50),),
    collatz: (_whole(1, 60),),
    bisection: (_real(0, 1), _real(3, 5), _real(1, 20)),
    triangle_of_products: (_whole(0, 7),),
    early_exit_rnn: (_array(8, 4), _array(4, 4), _array(4)),
    nested_rnn: (_single(5, 4), _single(4, 4), _single(4)),
    beam_step: (_array(3), _array(3, 5)),
    greedy_decode: (_array(6, 6), _whole(0, 6), _whole(1, 12)),
    sorting_network: (_array(4),),
    bubble_sort: (_array(5),),
    closure: (_real(-2, 2), _whole(0, 6)),
    counter: (_array(9),),
    tuples: (_whole(-9, 9), _whole(-9, 9)),
    guarded_search: (_digits(6), _whole(0, 6)),
    short_circuits: (_whole(-2, 3), _whole(-9, 9)),
    or_of_values: (_whole(0, 2), _whole(0, 3)),
    chained: (_real(-3, 3), _real(-2, 0), _real(0, 2)),
    find_first: (_array(4),),
    for_else: (_array(20),),
    is_prime: (_whole(0, 120),),
    power_mod: (_whole(0, 50), _whole(0, 30), _whole(1, 90)),
    horner: (_single(6), lambda rng: np.float32(rng.uniform(-1, 1))),
    clipped_sum: (_array(12),),
    matching: (_digits(7), _digits(7)),
    weighted: (_array(6),),
    mandelbrot: (_real(-2, 1), _real(-1, 1)),
    running_extremes: (_array(7),),
    power_iteration: (_array(3, 3), _array(3)),
    state_machine: (_array(10),),
    lambdas: (_real(-1, 1),),
    helpers: (_real(-2, 2),),
    rnn_outputs: (_array(6, 3), _array(3, 3), _array(3)),
    countdown: (_whole(-2, 9),),
    two_lists: (_array(2, 3), _whole(1, 5)),
    average_until: (_array(8), _real(0, 1)),
}
