"""Rules of ATen ops on complex numbers, which become pairs of real tensors.

A rule takes a Use and returns a ComplexRef, the id of a real value, or a tuple of ComplexRefs.
What moves elements or is linear runs once for each part, by the rule for real tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from trireme.converters.torch.use import (
    ComplexRef,
    NumberRef,
    TensorRef,
    Use,
    is_complex,
    part_dtype,
)


def part_by_part(use: Use, rule: Callable[[Use], Any], values: Sequence[str]) -> Any:
    """Apply a rule for real tensors to the real parts of some arguments, then to the others."""
    made = []
    for part in (0, 1):
        args = dict(use.args)
        for name in values:
            given = args.get(name)
            if isinstance(given, list):
                args[name] = [_parts(use, one)[part] for one in given]
            else:
                args[name] = _parts(use, given)[part]
        made.append(rule(replace(use, args=args)))
    if isinstance(made[0], int):
        return ComplexRef(*made)
    return tuple(ComplexRef(*pair) for pair in zip(*made, strict=True))


def _parts(use: Use, given: Any) -> tuple[Any, Any]:
    """Return the parts of an argument as arguments."""
    if isinstance(given, ComplexRef):
        return TensorRef(given.real), TensorRef(given.imag)
    if isinstance(given, (TensorRef, NumberRef)):
        return given, TensorRef(_zeros(use, given.id))
    number = complex(given)
    return number.real, number.imag


def _zeros(use: Use, like: int) -> int:
    """Return zeros in the shape of a value."""
    type = use.type(like)
    if all(isinstance(dim, int) for dim in type.shape):
        return use.fill(type.shape, 0, use.dtype)
    return use.add("expand", use.constant(0, use.dtype), use.add("shape", like))


def _pair(use: Use, name: str) -> tuple[int, int | None]:
    """Return the parts of an argument as values; None for the imaginary part of a real one."""
    given, dtype = use.args[name], use.dtype
    if isinstance(given, ComplexRef):
        return use.cast(given.real, dtype), use.cast(given.imag, dtype)
    if isinstance(given, complex):
        return use.constant(given.real, dtype), use.constant(given.imag, dtype)
    return use.operand(given, dtype), None


def multiply(use: Use) -> ComplexRef:
    """mul of two operands, of which one may be real."""
    return _product(use, _pair(use, "self"), _pair(use, "other"), "mul")


def _product(
    use: Use, first: tuple[int, int | None], second: tuple[int, int | None], op: str, **attrs: Any
) -> ComplexRef:
    (a, b), (c, d) = first, second
    times = partial(use.add, op, **attrs)
    if b is None and d is None:
        real = times(a, c)
        return ComplexRef(real, _zeros(use, real))
    if d is None:
        return ComplexRef(times(a, c), times(b, c))
    if b is None:
        return ComplexRef(times(a, c), times(a, d))
    real = use.add("sub", times(a, c), times(b, d))
    return ComplexRef(real, use.add("add", times(a, d), times(b, c)))


def divide(use: Use) -> ComplexRef:
    """div of two operands: by the conjugate over the squared size, where the divisor is complex."""
    (a, b), (c, d) = _pair(use, "self"), _pair(use, "other")
    if use.args.get("rounding_mode") is not None:
        raise use.error("a rounded quotient of complex numbers has no meaning")
    if d is not None:
        size = use.add("add", use.add("mul", c, c), use.add("mul", d, d))
        above = _product(use, (a, b), (c, use.add("neg", d)), "mul")
        a, b, c = above.real, above.imag, size
    real = use.add("div", a, c)
    return ComplexRef(real, _zeros(use, real) if b is None else use.add("div", b, c))


def reciprocal(use: Use) -> ComplexRef:
    """reciprocal."""
    return divide(replace(use, args={"self": 1.0, "other": use.args["self"]}))


def matrix_product(first: str, second: str) -> Any:
    """Return the rule of a matrix product of two arguments."""
    return lambda use: _product(use, _pair(use, first), _pair(use, second), "matmul")


def einsum(use: Use) -> ComplexRef:
    """einsum of one or two operands."""
    operands = [replace(use, args={"x": one}) for one in use.args["tensors"]]
    equation = use["equation"].replace(" ", "")
    if len(operands) > 2:
        raise use.error("einsum of over two complex tensors is not supported")
    first, *rest = (_pair(one, "x") for one in operands)
    if rest:
        return _product(use, first, rest[0], "einsum", equation=equation)
    return ComplexRef(*(use.add("einsum", part, equation=equation) for part in first))


def power(use: Use) -> ComplexRef:
    """pow with an exponent that is a small whole number."""
    exponent = use.args.get("exponent", 2)
    if not isinstance(exponent, (int, float)) or exponent not in range(1, 9):
        raise use.error(f"a complex number to the power of {exponent} is not supported")
    base = _pair(use, "self")
    made = ComplexRef(base[0], _zeros(use, base[0]) if base[1] is None else base[1])
    for _ in range(int(exponent) - 1):
        made = _product(use, (made.real, made.imag), base, "mul")
    return made


def exponential(use: Use) -> ComplexRef:
    """exp."""
    real, imag = _complex(use)
    return _turned(use, use.add("exp", real), imag)


def polar(use: Use) -> ComplexRef:
    """polar: of a size and an angle."""
    return _turned(use, use["abs"], use["angle"])


def _turned(use: Use, size: int, angle: int) -> ComplexRef:
    """Return the complex numbers of a size and an angle."""
    parts = (use.add(op, angle) for op in ("cos", "sin"))
    return ComplexRef(*(use.add("mul", size, part) for part in parts))


def _complex(use: Use) -> tuple[int, int]:
    """Return the parts of `self`, which is complex."""
    given = use.args["self"]
    return given.real, given.imag


def absolute(use: Use) -> int:
    """abs: the root of the sum of squares."""
    return use.add("sqrt", use.add("add", *(use.add("mul", one, one) for one in _complex(use))))


def angle(use: Use) -> int:
    """angle."""
    real, imag = _complex(use)
    return use.add("atan2", imag, real)


def conjugate(use: Use) -> ComplexRef:
    """conj."""
    real, imag = _complex(use)
    return ComplexRef(real, use.add("neg", imag))


def of_parts(use: Use) -> ComplexRef:
    """complex: of two tensors, which are broadcast."""
    parts = (use["real"], use["imag"])
    shape = use.shape
    if use.shape_of("real") == use.shape_of("imag"):
        return ComplexRef(*parts)
    if not all(isinstance(dim, int) for dim in shape):
        raise use.error("parts of unlike open shapes are not supported")
    return ComplexRef(*(use.add("expand", one, use.ints(*shape)) for one in parts))


def view_as_real(use: Use) -> int:
    """view_as_real: the parts along a new last axis."""
    return _interleaved(use, *_complex(use))


def _interleaved(use: Use, real: int, imag: int) -> int:
    """Return the parts [..] as pairs [..,2]."""
    parts = (use.add("unsqueeze", one, use.ints(use.rank(one))) for one in (real, imag))
    return use.add("concat", *parts, axis=use.rank(real))


def view_as_complex(use: Use) -> ComplexRef:
    """view_as_complex: the parts from the last axis."""
    return _separate(use, use["self"])


def _separate(use: Use, pairs: int) -> ComplexRef:
    """Return pairs [..,2] as parts [..]."""
    axis = use.rank(pairs) - 1
    places = (use.constant(place, "int64") for place in (0, 1))
    return ComplexRef(*(use.add("gather", pairs, place, axis=axis) for place in places))


def to_copy(use: Use) -> ComplexRef | int:
    """_to_copy: between sizes of complex numbers, from real ones, or of the real part."""
    real, imag = _pair(use, "self")
    if not is_complex(use.out):
        return real
    return ComplexRef(real, _zeros(use, real) if imag is None else imag)


def equal(op: str, both: str) -> Any:
    """Return the rule of eq or ne."""

    def rule(use: Use) -> int:
        pairs = (_parts(use, use.args[name]) for name in ("self", "other"))
        kind = use.meta("self") if is_complex(use.meta("self")) else use.meta("other")
        dtype = part_dtype(kind.dtype)
        found = []
        for a, b in zip(*pairs, strict=True):
            found.append(use.add(op, use.operand(a, dtype), use.operand(b, dtype)))
        return use.add(both, *found)

    return rule


def full(use: Use) -> ComplexRef:
    """full, full_like and their kin."""
    number = complex(use.args.get("fill_value", 0))
    shape = use.shape
    if not all(isinstance(dim, int) for dim in shape):
        raise use.error("complex numbers of an open shape are not supported")
    return ComplexRef(*(use.fill(shape, one, use.dtype) for one in (number.real, number.imag)))


def transform_of_real(use: Use) -> ComplexRef:
    """_fft_r2c: along the last of the axes of a real tensor, then along the others."""
    x, axes = use["self"], [int(axis) % use.rank(use["self"]) for axis in use["dim"]]
    pairs = use.add("unsqueeze", x, use.ints(use.rank(x)))
    pairs = _dft(use, pairs, axes[-1], onesided=int(bool(use["onesided"])))
    for axis in axes[:-1]:
        pairs = _dft(use, pairs, axis)
    return _scaled(use, _separate(use, pairs), _lengths(use, axes), inverse=False)


def transform(use: Use) -> ComplexRef:
    """_fft_c2c along some axes."""
    real, imag = _complex(use)
    axes = [int(axis) % use.rank(real) for axis in use["dim"]]
    pairs, inverse = _interleaved(use, real, imag), not use["forward"]
    for axis in axes:
        pairs = _dft(use, pairs, axis, inverse=int(inverse))
    return _scaled(use, _separate(use, pairs), _lengths(use, axes), inverse)


def transform_to_real(use: Use) -> int:
    """_fft_c2r: back to a real tensor, whose last axis has the length that is given."""
    real, imag = _complex(use)
    axes, length = [int(axis) % use.rank(real) for axis in use["dim"]], use["last_dim_size"]
    if not isinstance(length, int):
        raise use.error("a transform to an open length is not supported")
    pairs = _interleaved(use, real, imag)
    for axis in axes[:-1]:
        pairs = _dft(use, pairs, axis, inverse=1)
    one_part = _dft(use, pairs, axes[-1], length, inverse=1, onesided=1)
    made = use.add("squeeze", one_part, use.ints(use.rank(real)))
    lengths = [*_lengths(use, axes[:-1]), length]
    return _scaled(use, ComplexRef(made, made), lengths, inverse=True).real


def _dft(use: Use, pairs: int, axis: int, length: int | None = None, **attrs: int) -> int:
    size = None if length is None else use.constant(length, "int64")
    return use.add("dft", pairs, size, use.constant(axis, "int64"), **attrs)


def _lengths(use: Use, axes: list[int]) -> list[int]:
    lengths = [use.shape_of("self")[axis] for axis in axes]
    if use["normalization"] and not all(isinstance(length, int) for length in lengths):
        raise use.error("a scaled transform along an open axis is not supported")
    return lengths


def _scaled(use: Use, made: ComplexRef, lengths: list[int], inverse: bool) -> ComplexRef:
    """Scale as torch does; the op divides by the length in the inverse and not in the other."""
    mode = use["normalization"]
    if mode == (2 if inverse else 0):
        return made
    if not all(isinstance(length, int) for length in lengths):
        raise use.error("a scaled transform along an open axis is not supported")
    count = math.prod(lengths)
    wanted = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode]
    factor = use.constant(np.float64(wanted * (count if inverse else 1)), use.dtype)
    return ComplexRef(*(use.add("mul", one, factor) for one in (made.real, made.imag)))


COMPLEX: dict[str, Any] = {
    "_conj": conjugate,
    "_conj_physical": conjugate,
    "_fft_c2c": transform,
    "_fft_c2r": transform_to_real,
    "_fft_r2c": transform_of_real,
    "_to_copy": to_copy,
    "abs": absolute,
    "angle": angle,
    "bmm": matrix_product("self", "mat2"),
    "complex": of_parts,
    "div Tensor Scalar": divide,
    "einsum": einsum,
    "eq Tensor Scalar": equal("equal", "and"),
    "exp": exponential,
    "full": full,
    "full_like": full,
    "matmul": matrix_product("self", "other"),
    "mm": matrix_product("self", "mat2"),
    "mul Tensor Scalar": multiply,
    "ne Tensor Scalar": equal("not_equal", "or"),
    "polar": polar,
    "pow Tensor_Scalar": power,
    "reciprocal": reciprocal,
    "square": power,
    "view_as_complex": view_as_complex,
    "view_as_real": view_as_real,
}
"""Rules of their own."""
PART_BY_PART: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "alias",
            "as_strided",
            "clone",
            "cumsum",
            "diagonal",
            "expand",
            "flip",
            "gather",
            "index Tensor",
            "index_select",
            "mean default dim",
            "neg",
            "permute",
            "repeat",
            "select int",
            "slice Tensor",
            "split_with_sizes",
            "squeeze dims",
            "sum dim_IntList",
            "tril",
            "triu",
            "unfold",
            "unsqueeze",
            "view",
        ),
        ("self",),
    ),
    "add Tensor Scalar": ("self", "other"),
    "cat": ("tensors",),
    "constant_pad_nd": ("self", "value"),
    "copy": ("self", "src"),
    "index_put": ("self", "values"),
    "slice_scatter": ("self", "src"),
    "sub Tensor Scalar": ("self", "other"),
    "where self": ("self", "other"),
}
"""Moves and linear ops, with the arguments that may be complex."""
