"""Compare and join types of which dimensions, or the rank, are known only in a run."""

from __future__ import annotations

from collections.abc import Callable

from trireme.ir.graph import ANY_RANK, UNKNOWN, Dim, TensorType


def common_type(a: TensorType, b: TensorType) -> TensorType:
    """Return the type, of the dtype of a, that values of either shape have."""
    if not (a.has_rank and b.has_rank) or len(a.shape) != len(b.shape):
        return TensorType(ANY_RANK, a.dtype, a.quant)
    dims = (x if x == y else UNKNOWN for x, y in zip(a.shape, b.shape, strict=True))
    return TensorType(tuple(dims), a.dtype, a.quant)


def fits(new: TensorType, old: TensorType) -> bool:
    """Whether the new type is the old one, or the same with unknown dimensions made known."""
    return _tells_more(new, old, lambda dim: isinstance(dim, int))


def tells_as_much(new: TensorType, old: TensorType) -> bool:
    """Whether a type is another one, or the same with open dimensions of which more is known."""
    return _tells_more(new, old, lambda dim: dim != UNKNOWN)


def _tells_more(new: TensorType, old: TensorType, may_be: Callable[[Dim], bool]) -> bool:
    """Whether a type differs from another one by what is known alone.

    may_be: whether a dimension may stand in the place of a symbol
    """
    if (new.dtype, new.quant) != (old.dtype, old.quant):
        return False
    if not old.has_rank:
        return True
    if not new.has_rank or len(new.shape) != len(old.shape):
        return False
    pairs = zip(new.shape, old.shape, strict=True)
    return all(a == b or b == UNKNOWN or (isinstance(b, str) and may_be(a)) for a, b in pairs)


def still_known(inferred: TensorType, before: TensorType) -> TensorType:
    """Return an inferred type with the dimensions of before, of which one node alone tells nothing.

    A pass that follows shape tensors (passes/symbolic_shapes.py) knows more than one node tells.
    """
    shape = inferred.shape if inferred.has_rank else before.shape
    if inferred.has_rank and before.has_rank and len(shape) == len(before.shape):
        pairs = zip(shape, before.shape, strict=True)
        shape = tuple(old if dim == UNKNOWN else dim for dim, old in pairs)
    return TensorType(shape, inferred.dtype, before.quant)
