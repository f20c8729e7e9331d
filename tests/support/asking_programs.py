"""Programs that ask of their arguments what only an array answers, with what may be lost.

Each is called with arrays of several values. Python's answer is the only right one.
"""

import collections.abc
import contextlib
import copy
import functools
import math
import pickle
import sys

import numpy as np

PLAIN = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]])


def type_is(x):
    return x * 2 if type(x) is np.ndarray else x


def type_equals(x):
    return x * 2 if type(x) == np.ndarray else x  # noqa: E721


def type_name(x):
    return x * 2 if type(x).__name__ == "ndarray" else x


def class_of(x):
    return x * 2 if x.__class__ is np.ndarray else x


def type_of_each(x):
    return x * 2 if list(map(type, [x])) == [np.ndarray] else x


def type_as_key(x):
    return {np.ndarray: x * 2}.get(type(x), x)


def type_of_part(x):
    return x * 2 if type(x[0, 0]) is np.float64 else x


def type_of_result(x):
    return x * 2 if type(np.tanh(x)) is np.ndarray else x


def type_in_handler(x):
    try:
        return x * 2 if type(x) is np.ndarray else x
    except Exception:
        return x * 3


def _is_array(value):
    return type(value) is np.ndarray


def type_in_helper(x):
    return x * 2 if _is_array(x) else x


@functools.singledispatch
def _by_class(value):
    return 0


_by_class.register(np.ndarray)(lambda value: 2)
_by_class.register(float)(lambda value: 3)


def dispatched(x):
    return x * _by_class(x) + _by_class(x.sum())


def abstract_class(x):
    return x * 2 if isinstance(x.sum(), (list, collections.abc.Iterable)) else x * 3


def hashable(x):
    return x * 2 if isinstance(x, collections.abc.Hashable) else x * 3


def has_array_attribute(x):
    return x * 2 if hasattr(x, "flags") else x


def has_traced_attribute(x):
    return x * 2 if hasattr(x, "recorder") or hasattr(x, "type") else x


def default_attribute(x):
    return x * 2 if getattr(x, "tobytes", None) is not None else x


def named_attribute(x):
    return [x * 2 if hasattr(x, name) else x for name in ("strides", "shape", "weak")]


def number_has_rows(x):
    return x * 2 if hasattr(x.sum(), "__iter__") else x


def listed_attributes(x):
    return x * 2 if "flags" in dir(x) else x


def caught_attribute(x):
    try:
        return x * len(x.tobytes())
    except AttributeError:
        return x


def caught_op(x):
    try:
        return np.linalg.svd(x)[1]
    except Exception:
        return x[0]


def suppressed_assignment(x):
    y = x * 2
    with contextlib.suppress(Exception):
        y[0] = 1
    return y


def caught_shape(x):
    x = x * 1
    try:
        x.shape = (3, 2)
    except AttributeError:
        return x
    return x * 2


def caught_division(x):
    with np.errstate(all="raise"):
        try:
            return x / (x - x)
        except FloatingPointError:
            return x * 2


def text(x):
    return x * len(str(x)) + len(repr(x[0])) + len(f"{x[1]}") + len("%s" % x[0, 0])  # noqa: UP031


def text_compared(x):
    return x * 2 if f"{x[0, 0]}" == "1.5" else x


def text_of_parts(x):
    return x * len(",".join(map(str, x[0])))


def memory(x):
    return x * 2 if x.flags.c_contiguous and x.base is None and x.strides == (24, 8) else x


def bytes_of(x):
    return x * 2 if sys.getsizeof(x) > 100 else x


def shared(x):
    return x * 2 if np.shares_memory(x, x[0]) and np.may_share_memory(x, x.T) else x


def same_after_asarray(x):
    return x * 2 if np.asarray(x) is x else x


def same_arguments(x, y):
    return x * 2 if x is y else x + y


def numbers_of_arguments(x, y):
    return x * len({id(x), id(y)})


def copied(x):
    y, z = copy.copy(x), copy.deepcopy([x, x * 2])
    y += 1
    z[0] *= 2
    z[1] -= 1
    return x, y, z[0], z[1]


def pickled(x):
    return pickle.loads(pickle.dumps(x)) * 2


def equals_list(x):
    return np.where(x[0] == [1.5, -2.0, 3.0], 1.0, 2.0)


def equals_none(x):
    return np.where(x != None, 1.0, 2.0)  # noqa: E711


def equals_text(x):
    return x * 2 if (x == "abc") is False else x * 3


def contains(x):
    return x * 2 if 1.5 in x else x * 3


def is_scalar(x):
    return x * 2 if np.isscalar(x[0, 0]) and not np.isscalar(x) else x


def sign_of_zero(x):
    return x + math.copysign(1.0, float(x[0, 0]) * 1.0)


def view_changed(x):
    y = x * 2
    row = y[0]
    row += 1
    return y


def other_name_changed(x):
    y = x * 2
    z = y
    z += 1
    return y


def list_grown(xs, x):
    xs.append(x * 2)
    return x * len(xs)


def dict_changed(d, x):
    d["y"] = x * 2
    return x


def list_item_set(xs, x):
    xs[0] = x * 2
    return x


def raised_with_type(x):
    if x.ndim != 2:
        raise TypeError(f"got {type(x)}")
    return x * 2


def type_of_constants(x, n=3):
    return x * 2 if type(n) is int and type(x.shape) is tuple else x


PROGRAMS = [
    one
    for one in list(globals().values())
    if callable(one) and getattr(one, "__module__", "") == __name__ and one.__name__[0] != "_"
]
STAY_GRAPHS = [
    class_of,
    dispatched,
    text_compared,
    copied,
    contains,
    is_scalar,
    same_arguments,
    other_name_changed,
    raised_with_type,
    type_of_constants,
]
"""Programs whose questions a traced value answers."""
