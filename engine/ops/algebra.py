"""Tensor algebra: einsum and det."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import numpy as np

from trireme.ir.dtype_rules import Like
from trireme.ir.graph import Dim, Value
from trireme.ir.op import Attr, Call, Sample, define
from trireme.ops.movement import draw
from trireme.ops.shapes import Shape, Types, broadcast, expect, one
from trireme.support.dtypes import FLOATING, NUMBERS, Array
from trireme.support.errors import ShapeError


def _terms(equation: str, count: int) -> tuple[list[str], str]:
    """Return the letters of each input and of the output; "..." stays as it is.

    Errors: ShapeError, if the equation is not one for `count` inputs
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise ShapeError(f"equation {equation!r} has {len(terms)} terms, {count} inputs are given")
    if not all(re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term) for term in (*terms, right)):
        raise ShapeError(f"equation {equation!r} is not understood")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    return terms, right


def _expect_diagonals(letters: str, dims: Shape) -> None:
    """Raise ShapeError where a letter that a term has twice stands for two lengths."""
    own: dict[str, Dim] = {}
    for letter, dim in zip(letters, dims, strict=True):
        own[letter] = expect(letter, dim, own.get(letter, dim), "as before in the term")


def _infer_einsum(*xs: Value, equation: str) -> Types:
    terms, right = _terms(equation, len(xs))
    dims: dict[str, Dim] = {}
    rest: list[Shape] = []
    for term, x in zip(terms, xs, strict=True):
        before, dots, after = term.partition("...")
        spare = len(x.shape) - len(before) - len(after)
        if spare < 0 or (spare and not dots):
            raise ShapeError(f"term {term!r} of {equation!r} does not fit rank {len(x.shape)}")
        middle = len(before) + spare
        rest.append(x.shape[len(before) : middle])
        outer = x.shape[: len(before)] + x.shape[middle:]
        _expect_diagonals(before + after, outer)
        for letter, dim in zip(before + after, outer, strict=True):
            known = dims.get(letter, dim)
            dims[letter] = known if dim == 1 else dim if known == 1 else expect(letter, dim, known)
    missing = sorted(set(right) - set(dims) - {"."})
    if missing:
        raise ShapeError(f"equation {equation!r}: {missing[0]!r} is in no input")
    before, dots, after = right.partition("...")
    middle_dims = broadcast(*rest) if dots else ()
    shape = (*(dims[c] for c in before), *middle_dims, *(dims[c] for c in after))
    return one(shape, xs[0].dtype)


def _einsum(*xs: Array, equation: str) -> Array:
    wide = [x.astype(np.float64) if x.dtype.kind not in "iuc" else x for x in xs]
    y = np.einsum(equation.replace(" ", ""), *wide, optimize=len(xs) > 2)
    return np.asarray(y).astype(xs[0].dtype)


def _einsum_flops(call: Call) -> int:
    terms, _ = _terms(call.attrs["equation"], len(call.inputs))
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        sizes |= dict(zip(term.partition("...")[0], call.type(i).dims, strict=False))
    return 2 * max(math.prod(sizes.values()), call.outputs[0].elements)


def _einsum_samples(rng: np.random.Generator) -> Iterable[Sample]:
    def sample(equation: str, *shapes: tuple[int, ...]) -> Sample:
        return Sample(tuple(draw(rng, *s) for s in shapes), {"equation": equation}, note=equation)

    yield sample("bij, bjk -> bik", (2, 3, 4), (2, 4, 5))
    yield sample("...ii ->...i", (3, 5, 5))
    yield sample("ij->ji", (3, 4))
    yield sample("i,i", (5,), (5,))
    yield sample("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5))


define(
    "einsum",
    "x xs*",
    "y = sums of products as `equation` says, Einstein's convention. Source: ONNX Einsum-12",
    _infer_einsum,
    _einsum,
    attrs={"equation": Attr("str")},
    flops=_einsum_flops,
    samples=_einsum_samples,
    family="matmul",
    rtol=1e-5,
    dtypes=(NUMBERS, Like("x")),
)


def _infer_det(x: Value) -> Types:
    if len(x.shape) < 2:
        raise ShapeError(f"x has rank {len(x.shape)}, expected 2 or more")
    expect("the column count", x.shape[-1], x.shape[-2], "rows of a square matrix")
    return one(x.shape[:-2], x.dtype)


define(
    "det",
    "x",
    "y = the determinant of each matrix. Shapes: x [..,M,M] -> y [..]. Source: ONNX Det-22",
    _infer_det,
    lambda x: np.asarray(np.linalg.det(x.astype(np.float64))).astype(x.dtype),
    flops=lambda call: call.type(0).elements * call.type(0).dims[-1],
    family="other",
    samples=lambda rng: [Sample((draw(rng, 3, 4, 4),)), Sample((draw(rng, 5, 5),))],
    rtol=1e-5,
    dtypes=(FLOATING,),
)
