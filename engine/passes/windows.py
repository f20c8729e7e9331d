"""Simplify pools whose windows leave the input: a rule of canonicalise.

An exporter may ask for a window larger than the image (with ceil_mode, to get one window). The part
of the window beyond the pads never meets an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trireme.ir.graph import Node
from trireme.ir.op import get_op
from trireme.ir.rewriter import GraphRewriter
from trireme.ops.layouts import spatial
from trireme.ops.pooling import cropped
from trireme.support.errors import ShapeError


def crop_window(g: GraphRewriter, root: Node) -> tuple[int, ...] | None:
    """A pool's window beyond the pads is cropped; ceil_mode goes where it adds no window."""
    x, attrs = g.type(root.used[0]), root.attrs
    if not x.is_static:
        return None
    space = tuple(map(int, spatial(x.dims, attrs["layout"])))
    kernel = cropped(space, attrs["kernel"], attrs["pads"], attrs["dilations"])
    for change in ({"kernel": kernel, "ceil_mode": 0}, {"kernel": kernel}):
        plain = {**attrs, **change}
        if plain == dict(attrs) or not _same_windows(g, root, plain):
            continue
        quants = [g.type(out).quant for out in root.outputs]
        return g.add_many(root.op, root.inputs, plain, [root], quants)
    return None


def _same_windows(g: GraphRewriter, root: Node, attrs: Mapping[str, Any]) -> bool:
    """Whether a pool has as many windows with other attributes."""
    try:
        made = get_op(root.op).infer(g.values[root.used[0]], **attrs)
    except ShapeError:
        return False
    return made[0].shape == g.type(root.outputs[0]).shape
