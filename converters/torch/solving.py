"""Rules that solve linear systems and factor matrices of a small, known size, written out.

Elimination takes some 15 nodes a row, so sizes are bounded. Batches may be open.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trireme.converters.torch.use import Use

MOST_ROWS = 16


def _rows(use: Use, name: str) -> int:
    """Return the number of rows of a square matrix."""
    size = use.shape_of(name)[-1]
    if not isinstance(size, int) or size > MOST_ROWS:
        raise use.error(f"a matrix of {size} rows: those of up to {MOST_ROWS} are solved")
    return size


def _part(use: Use, value: int, axis: int, start: int, end: int) -> int:
    """Return a slice along an axis counted from the end."""
    limits = (use.ints(number) for number in (start, end, axis, 1))
    return use.add("slice", value, *limits)


def _solved(use: Use, matrix: int, right: int, size: int) -> int:
    """Return X of matrix @ X = right. Shapes: [..,n,n], [..,n,m] -> [..,n,m].

    Source: Gauss-Jordan elimination with partial pivoting
    """
    both = use.add("concat", matrix, right, axis=-1)
    width = use.type(both).shape[-1]
    last = width if isinstance(width, int) else np.iinfo(np.int64).max
    numbers = use.constant(np.arange(size)[:, None], "int64")
    for k in range(size):
        below = use.add("abs", _part(use, _part(use, both, -1, k, k + 1), -2, k, size))
        place = use.add("arg_max", below, axis=-2, keepdims=1)
        place = use.add("add", place, use.constant(k, "int64"))
        own = _part(use, both, -2, k, k + 1)
        index = use.add("expand", place, use.add("shape", own))
        best = use.add("gather_elements", both, index, axis=use.rank(both) - 2)
        both = use.add("where", use.add("equal", numbers, place), own, both)
        best = use.add("div", best, _part(use, best, -1, k, k + 1))
        factors = _part(use, both, -1, k, k + 1)
        others = use.add("sub", both, use.add("mul", factors, best))
        is_own = use.constant(np.arange(size)[:, None] == k)
        both = use.add("where", is_own, best, others)
    return _part(use, both, -1, size, last)


def _alone(use: Use, *names: int) -> None:
    """Refuse a node of which more than the first results are read."""
    if any(use.reads(place) for place in names):
        raise use.error("the factors and faults of a solution are not supported as results")


def inverse(use: Use) -> tuple[int, None]:
    """linalg_inv_ex, without its report of singular matrices."""
    _alone(use, 1)
    size = _rows(use, "A")
    ones = use.add("expand", use.constant(np.eye(size), use.dtype), use.add("shape", use["A"]))
    return _solved(use, use["A"], ones, size), None


def solve(use: Use) -> tuple[int | None, ...]:
    """_linalg_solve_ex, of which only the solution is made."""
    _alone(use, 1, 2, 3)
    a, b, size = use["A"], use["B"], _rows(use, "A")
    is_vector = use.rank(b) == 1 or use.shape_of("A")[:-1] == use.shape_of("B")
    if is_vector:
        b = use.add("unsqueeze", b, use.ints(-1))
    elif not use["left"]:
        a, b = _turned(use, a), _turned(use, b)
    made = _solved(use, *_batched(use, a, b), size)
    if is_vector:
        made = use.add("squeeze", made, use.ints(-1))
    elif not use["left"]:
        made = _turned(use, made)
    return made, None, None, None


def _turned(use: Use, value: int) -> int:
    rank = use.rank(value)
    return use.transpose(value, *range(rank - 2), rank - 1, rank - 2)


def _batched(use: Use, a: int, b: int) -> tuple[int, int]:
    """Return matrices broadcast to the same leading axes."""
    if use.type(a).shape[:-2] == use.type(b).shape[:-2]:
        return a, b
    corners = (_part(use, _part(use, one, -1, 0, 1), -2, 0, 1) for one in (a, b))
    zero = use.add("mul", use.add("add", *corners), use.constant(0, use.dtype))
    return use.add("add", a, zero), use.add("add", b, zero)


def solve_triangular(use: Use) -> int:
    """linalg_solve_triangular: what stands on the other side of the diagonal counts as 0."""
    size = _rows(use, "self")
    a = use.add("trilu", use["self"], use.constant(0, "int64"), upper=int(use["upper"]))
    if use["unitriangular"]:
        ones = use.constant(np.eye(size), use.dtype)
        a = use.add("where", use.constant(np.eye(size) > 0), ones, a)
    b = use["B"]
    if not use["left"]:
        a, b = _turned(use, a), _turned(use, b)
    made = _solved(use, *_batched(use, a, b), size)
    return made if use["left"] else _turned(use, made)


def cholesky(use: Use) -> tuple[int, None]:
    """linalg_cholesky_ex, column by column, without its report of matrices without a factor.

    Source: Cholesky-Crout
    """
    _alone(use, 1)
    a, size = use["self"], _rows(use, "self")
    if use["upper"]:
        a = _turned(use, a)
    made = a
    for k in range(size):
        column = _part(use, _part(use, a, -1, k, k + 1), -2, k, size)
        if k:
            rows = _part(use, made, -2, k, size)
            own = _turned(use, _part(use, made, -2, k, k + 1))
            column = use.add("sub", column, use.add("matmul", rows, own))
        column = use.add("div", column, use.add("sqrt", _part(use, column, -2, 0, 1)))
        pads = [0] * 2 * use.rank(a)
        pads[use.rank(a) - 2] = k
        column = use.add("pad", column, use.ints(*pads), use.constant(0, use.dtype))
        made = use.add("concat", made, column, axis=-1) if k else column
    return _turned(use, made) if use["upper"] else made, None


def sign_and_log(use: Use) -> tuple[int | None, ...]:
    """_linalg_slogdet, of which the sign and the logarithm of the determinant's size are made."""
    _alone(use, 2, 3)
    _rows(use, "A")
    value = use.add("det", use["A"])
    return use.add("sign", value), use.add("log", use.add("abs", value)), None, None


SOLVING: dict[str, Any] = {
    "_linalg_solve_ex": solve,
    "_linalg_slogdet": sign_and_log,
    "linalg_cholesky_ex": cholesky,
    "linalg_inv_ex": inverse,
    "linalg_solve_triangular": solve_triangular,
}
