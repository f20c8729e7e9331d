"""Transposed views: a value seen as the transpose of another, for the layout pass.

A value v made by transpose(u, perm) is a view of u: axis i of v is axis perm[i] of u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trireme.ir.graph import Node, Quant
from trireme.ir.rewriter import GraphRewriter
from trireme.passes.cleanup import perm_of

Perm = tuple[int, ...]


def channels_first(rank: int) -> Perm:
    """Return the perm that makes [N,C,H,W] of [N,H,W,C]."""
    return (0, rank - 1, *range(1, rank - 1))


def inverse(perm: Perm) -> Perm:
    """Return the perm that undoes a perm."""
    return tuple(int(i) for i in np.argsort(perm))


def is_identity(perm: Perm) -> bool:
    """Whether a perm leaves every axis where it is."""
    return perm == tuple(range(len(perm)))


def view_of(g: GraphRewriter, value: int) -> tuple[int, Perm] | None:
    """Return (u, perm) if the value is transpose(u, perm), and that node is free to go."""
    node = g.producer(value)
    if node is None or node.op != "transpose" or node.pin is not None or not g.is_free(node):
        return None
    return node.used[0], perm_of(node, len(g.type(value).shape))


def transposed(g: GraphRewriter, value: int, perm: Perm, of: Node) -> int:
    """Return transpose(value, perm), looking through views and into constants.

    A walk adds each transpose of a value at most once.
    """
    if is_identity(perm):
        return value
    view, data = view_of(g, value), g.data(value)
    if view is not None:
        return transposed(g, view[0], tuple(view[1][i] for i in perm), of)
    key = ("transposed", value, perm)
    made = g.memo.get(key)
    if made is not None and (data is not None or g.producer(made) is not None):
        return int(made)
    quant = untransposed_quant(g.type(value).quant, inverse(perm))
    if data is not None:
        made = g.constant(data.transpose(perm), g.values[value].name, quant)
    else:
        made = g.add("transpose", [value], {"perm": perm}, [replace(of, pin=None)], quant)
    g.memo[key] = made
    return made


def untransposed(g: GraphRewriter, value: int, perm: Perm, of: Node) -> int:
    """Return u such that value = transpose(u, perm)."""
    return transposed(g, value, inverse(perm), of)


def untransposed_quant(quant: Quant | None, perm: Perm) -> Quant | None:
    """Return the quantisation of u, given that of transpose(u, perm)."""
    if quant is None or quant.axis is None:
        return quant
    return replace(quant, axis=perm[quant.axis])


def add_untransposed(
    g: GraphRewriter, node: Node, inputs: Sequence[int | None], attrs: dict[str, object], perm: Perm
) -> tuple[int, ...]:
    """Add the node on untransposed inputs and return its outputs transposed by perm."""
    quants = [untransposed_quant(g.type(out).quant, perm) for out in node.outputs]
    made = g.add_many(node.op, inputs, attrs, [node], quants)
    return tuple(transposed(g, value, perm, node) for value in made)


def nbytes(g: GraphRewriter, value: int) -> int:
    """Return the bytes of a value, unknown dimensions taken as 1."""
    type = g.type(value)
    return replace(type, shape=tuple(d for d in type.shape if isinstance(d, int))).nbytes


def existing_untransposed(g: GraphRewriter, value: int, perm: Perm) -> int | None:
    """Return the untransposed value where that takes no new transpose, else None.

    A constant never takes one: its data is transposed.
    """
    if g.data(value) is not None:
        return value
    made: int | None = g.memo.get(("transposed", value, inverse(perm)))
    return made if made is not None and g.producer(made) is not None else None
