"""Inputs: random ones, and the errors of inputs that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any, NoReturn

import numpy as np

from trireme.ir.graph import Dim, Value
from trireme.support.dtypes import Array, dtype_name
from trireme.support.errors import FeedError, RunError

_IMAGES = (0, 3, 1, 2), (0, 2, 3, 1)
"""Channels moved first, and last."""
_MOST_RANK = 4


def refuse_names(feeds: Any, wanted: Sequence[Value]) -> NoReturn:
    """Raise FeedError naming the inputs that are missing and those that are none."""
    facts = [f"the model takes {value.name} {value.type}" for value in wanted]
    if not isinstance(feeds, Mapping):
        kind = type(feeds).__name__
        raise RunError(f"the inputs are a {kind}, expected arrays by name", facts=facts)
    names = [value.name for value in wanted]
    missing = [name for name in names if name not in feeds]
    unknown = [str(name) for name in feeds if name not in names]
    parts = [f"missing: {', '.join(missing)}"] if missing else []
    parts += [f"not an input: {', '.join(unknown)}"] if unknown else []
    fix = f"leave out {', '.join(unknown)}" if unknown else f"feed {', '.join(missing)} too"
    if len(missing) == len(unknown) == 1:
        fix = f"feed {unknown[0]!r} as {missing[0]!r}"
    summary = f"the inputs do not fit: {'; '.join(parts)}"
    raise FeedError(summary, unknown=unknown, facts=facts, fix=fix)


def as_array(value: Value, given: Any) -> Array:
    """Return the feed of an input as an array whose bytes are in the machine's order.

    Errors: RunError, if it is no array of numbers or texts
    """
    try:
        array = np.asarray(given)
    except ValueError as error:  # rows of several lengths
        facts = [f"expected {value.type}"]
        raise RunError(f"input '{value.name}' is no array: {error}", facts=facts) from error
    if array.dtype == object and value.dtype != "string":
        kinds = sorted({type(one).__name__ for one in array.reshape(-1)[:100]})
        what = f"an array of Python objects ({', '.join(kinds)})" if array.ndim else kinds[0]
        raise RunError(f"input '{value.name}' is {what}, expected {value.type}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def misfit(value: Value, array: Array) -> RunError:
    """Return the error of a feed whose shape or dtype is not its input's."""
    found = f"{dtype_name(array.dtype)}[{','.join(map(str, array.shape))}]"
    what = f"input '{value.name}' is {found}, expected {value.type}"
    return RunError(what, fix=_feed_fix(value, array))


def check_targets(
    out: Any, names: Sequence[str], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]
) -> None:
    """See that arrays to write outputs into fit; names, shapes, dtypes: of the outputs, in order.

    Errors: RunError, if one is no array that can be written, does not fit, or is of no output
    """
    if not isinstance(out, Mapping):
        raise RunError(f"out is a {type(out).__name__}, expected a mapping of names to arrays")
    for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
        if out.get(name) is not None:
            check_target(name, out[name], shape, dtype)
    if set(out) - set(names) or any(array is None for array in out.values()):
        refuse_targets(out, names)


def check_target(name: str, target: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """See that an array to write an output into fits.

    Errors: RunError
    """
    if not isinstance(target, np.ndarray) or not target.flags.writeable:
        kind = type(target).__name__
        what = "read-only" if isinstance(target, np.ndarray) else f"a {kind}"
        raise RunError(f"out['{name}'] is {what}, expected an array to write into")
    if target.shape != shape or target.dtype != dtype:
        raise RunError(
            f"out['{name}'] is {target.dtype}{list(target.shape)}, expected {dtype}{list(shape)}"
        )


def refuse_targets(out: Mapping[str, Any], names: Sequence[str]) -> NoReturn:
    """Raise RunError naming what is given for no output, and what is no array."""
    unknown = [str(name) for name in out if name not in names]
    if not unknown:
        empty = ", ".join(f"out['{name}']" for name in out if out[name] is None)
        raise RunError(f"{empty} is None, expected an array to write into")
    raise RunError(
        f"no output is called {', '.join(unknown)}", facts=[f"known: {', '.join(names)}"]
    )


def random_array(value: Value, rng: np.random.Generator) -> Array:
    """Return random numbers that suit an input: normal floats, all values of 8-bit integers.

    Errors: RunError, if a dimension is open
    """
    if not value.type.is_static:
        from trireme.ir.bind_shapes import shape_advice

        raise RunError(
            f"input '{value.name}' {value.type} has open dimensions, so it cannot be made up",
            fix=shape_advice([value]),
        )
    dims, dtype = value.type.dims, value.type.dtype
    if dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, dims).astype(dtype)
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, 100, dims).astype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, dims).astype(bool)
    return rng.standard_normal(dims).astype(dtype)


def random_feeds(values: Iterable[Value], seed: int = 0) -> dict[str, Array]:
    """Return `random_array` of each input, by name; the same for a seed."""
    rng = np.random.default_rng(seed)
    return {value.name: random_array(value, rng) for value in values}


def _feed_fix(value: Value, array: Array) -> str:
    """Return the fix of an array `x` that does not fit an input; "" where no change is obvious."""
    shape, wanted = array.shape, value.type.shape
    moved = _moved(shape, wanted)
    if moved is None:
        if shape[1:] and wanted[:1] == (1,) and _fits(shape[1:], wanted[1:]):
            return f"open the session with batch={shape[0]}, or run one of the {shape[0]} at a time"
        return ""
    cast = "" if dtype_name(array.dtype) == value.dtype else f".astype({value.dtype!r})"
    return f"x{moved}{cast}" if moved or cast else ""


def _fits(shape: Sequence[int], wanted: Sequence[Dim]) -> bool:
    return len(shape) == len(wanted) and all(
        not isinstance(dim, int) or dim == size for size, dim in zip(shape, wanted, strict=True)
    )


def _moved(shape: tuple[int, ...], wanted: tuple[Dim, ...]) -> str | None:
    """Return what gives an array the shape, as Python behind its name; None where it is unclear."""
    if _fits(shape, wanted):
        return ""
    if _fits((1, *shape), wanted):
        return "[None]"
    if shape[:1] == (1,) and _fits(shape[1:], wanted):
        return "[0]"
    if len(shape) == len(wanted) <= _MOST_RANK:
        orders = [one for one in permutations(range(len(shape))) if _fits(_in(shape, one), wanted)]
        orders = [one for one in _IMAGES if one in orders] or orders
        if len(orders) == 1:
            return f".transpose{orders[0]}"
    fixed = [dim for dim in wanted if isinstance(dim, int)]
    if len(fixed) == len(wanted) and prod(fixed) == prod(shape):
        return f".reshape({', '.join(map(str, fixed))})"
    return None


def _in(shape: tuple[int, ...], order: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in order)
