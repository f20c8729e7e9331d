"""Programs that no graph can hold, each with arguments and what the error must say."""

import contextlib

import numpy as np

FACTOR = 2


def several(x, y):
    try:
        z = x + 1
    except ValueError:
        z = x
    w = y * 2
    if w > 0:
        raise ValueError("no")
    w.count = 3
    return w, z


def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


def inner_recursion(x):
    def again(y):
        return again(y)

    return again(x)


def unset(x):
    if x > 0:
        y = 1
    return y


def two_ranks(x):
    y = x
    if x > 0:
        y = np.zeros(3) + x
    return y


def growing_list(x):
    found = []
    while x > 0:
        if x > 2:
            found.append(x)
        x -= 1
    return found


def endless(x):
    while True:
        x = x + 1
    return x


def no_value(x):
    if x > 0:
        return x
    return None


def argument(xs):
    xs[0] = 1
    return xs


def shared(xs):
    ys = xs.copy()
    zs = ys
    ys[0] = 1
    return zs


def view(xs):
    ys = xs * 2
    part = ys[1:]
    ys[1] = 1
    return part


def unknown_function(m):
    return np.linalg.svd(m)


def random_number(x):
    return x + np.random.rand()


def no_tensor(x):
    return FACTOR


def wide_condition(xs):
    if xs > 0:
        return xs
    return -xs


def maybe_none(xs):
    best = None
    for x in xs:
        if x > 0 and (best is None or x > best):
            best = x
    return best


def maybe_no_turn(n):
    last = None
    for i in range(n):
        last = i
    return last


def growing_read(xs):
    found = []
    for x in xs:
        found.append(x * 2 if found else x)
    return np.array(found)


def other_context(x):
    with contextlib.suppress(ValueError):
        y = x + 1
    return y


def assigned_attribute(x):
    other_context.last = x
    return x


def changed_argument(xs):
    ys = xs
    ys += 1
    return xs * 2


def changed_part(xs):
    ys = xs[1:]
    ys[0] = 7
    return xs


def changed_item(xs):
    pair = [xs * 2, xs]
    ys = pair[0]
    ys += 1
    return pair[0]


def changed_inside(xs):
    def inner(zs):
        zs += 1
        return zs

    ys = xs * 2
    inner(ys)
    return ys


def shared_in_turns(xs):
    ys = xs * 1
    zs = ys
    for _ in range(int(xs.sum())):
        zs += 1
    return ys


def shared_at_the_end(xs):
    h = xs * 1
    last = h * 0
    for _ in range(int(xs.sum())):
        h += 1
        ys = last + h
        last = h
    return ys


def changed_dtype(xs):
    ys = xs.astype(np.int32)
    ys += 0.5
    return ys


def changed_shape(xs):
    ys = xs * 1
    ys += np.ones((2, 3))
    return ys


ONE = (np.float64(1),)
ROW = (np.ones(3),)
BAD = {
    several: (
        ONE * 2,
        [
            "bad_programs.py:11: `try:`: a `try` cannot be captured",
            "bad_programs.py:17: `raise ValueError('no')`: an exception is raised here",
            "bad_programs.py:18: `w.count = 3`: an attribute of an object is assigned",
        ],
    ),
    factorial: ((np.int64(3),), ["factorial is recursive"]),
    inner_recursion: (ONE, ["bad_programs.py:28", "again is recursive"]),
    unset: (ONE, ["y may not be set here"]),
    two_ranks: (ONE, ["float64[3] on one path and float64[] on another"]),
    growing_list: (ONE, ["found is a list of 1 on one path and a list of 0 on another"]),
    endless: (ONE, ["the loop has no end"]),
    no_value: (ONE, ["return is float64[] on one path and None on another"]),
    argument: (ROW, ["xs is an argument, which its caller shares"]),
    shared: (ROW, ["ys shares its elements with zs"]),
    view: (ROW, ["ys shares its elements with part"]),
    changed_argument: (ROW, ["ys is an argument, which its caller shares"]),
    changed_part: (ROW, ["ys is an argument, which its caller shares"]),
    changed_item: (ROW, ["ys shares its elements with pair"]),
    changed_inside: (ROW, ["zs shares its elements with ys"]),
    shared_in_turns: (ROW, ["zs shares its elements with ys"]),
    shared_at_the_end: (ROW, ["h shares its elements with last"]),
    changed_dtype: (ROW, ["ys holds int32, and what it is changed to is float64"]),
    changed_shape: (ROW, ["ys has the shape float64[3], and what it is changed to float64[2,3]"]),
    unknown_function: ((np.ones((2, 2)),), ["svd is called with a tensor"]),
    random_number: (ONE, ["gives another result at every call"]),
    no_tensor: (ONE, ["depends on no tensor"]),
    wide_condition: (ROW, ["more than one element"]),
    other_context: (ONE, ["a `with` of suppress acts outside the graph"]),
    assigned_attribute: (ONE, ["an attribute of an object is assigned"]),
    maybe_none: (ROW, ["best is float64[] on one path and None on another; start with a number"]),
    maybe_no_turn: (
        (np.int64(3),),
        ["last is None before the loop and int64[] after a turn, so it is no tensor; start with a"],
    ),
    growing_read: (ROW, ["not every turn appends an item to found"]),
}
