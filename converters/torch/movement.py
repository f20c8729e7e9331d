"""Rules of ATen ops that move elements: reshape, slice, concat, pad, unfold and their like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.converters.torch.use import Extent, NumberRef, TensorRef, Use

_END = (1 << 63) - 1
MOST_PLACES = 1 << 24
"""The most elements that a strided view is made of one by one."""


def view(use: Use) -> int:
    """view and reshape: 0 copies a dimension, -1 takes the rest."""
    given = use.args.get("size", use.args.get("shape"))
    return reshaped(use, use["self"], use.shape_of("self"), use.shape, given)


def reshaped(
    use: Use, x: int, before: Sequence[Extent], after: Sequence[Extent], given: Any
) -> int:
    """Return x in a shape that has symbols; `given` are its dimensions as arguments."""
    if all(isinstance(dim, int) for dim in after):
        return use.add("reshape", x, use.ints(*after), allowzero=int(0 in after))
    target: list[int] = []
    for axis, dim in enumerate(after):
        if isinstance(dim, int):
            target.append(dim)
        else:
            target.append(0 if axis < len(before) and before[axis] == dim else -1)
    if target.count(-1) <= 1 and 0 not in after:
        return use.add("reshape", x, use.ints(*target))
    if given is None:
        raise use.error(f"the shape {after} has several open dimensions")
    return use.add("reshape", x, use.vector(given), allowzero=1)


def expand(use: Use) -> int:
    """expand: -1 keeps a dimension, and dimensions are added in front."""
    before, after, given = use.shape_of("self"), use.shape, use.args["size"]
    skip = len(after) - len(before)
    target = [
        1 if axis >= skip and before[axis - skip] == dim else (dim if isinstance(dim, int) else own)
        for axis, (dim, own) in enumerate(zip(after, given, strict=True))
    ]
    if not skip and all(dim == 1 for dim in target):
        return int(use["self"])
    return use.add("expand", use["self"], use.vector(target))


def permute(use: Use) -> int:
    """permute."""
    rank = use.rank(use["self"])
    return use.transpose(use["self"], *(axis % rank for axis in use["dims"]))


def unsqueeze(use: Use) -> int:
    """unsqueeze."""
    return use.add("unsqueeze", use["self"], use.ints(use.axis("dim", use.rank(use["self"]) + 1)))


def squeeze(use: Use) -> int:
    """squeeze: of the axes given, those of length 1."""
    before = use.shape_of("self")
    given = use.args.get("dim", range(len(before)))
    axes = [given] if isinstance(given, int) else given
    drop = sorted({axis % max(len(before), 1) for axis in axes} & _ones(before))
    return use.add("squeeze", use["self"], use.ints(*drop)) if drop else int(use["self"])


def _ones(shape: Sequence[Extent]) -> set[int]:
    return {axis for axis, dim in enumerate(shape) if dim == 1}


def repeat(use: Use) -> int:
    """repeat: tiles, with dimensions added in front."""
    x, counts = use["self"], use["repeats"]
    missing = len(counts) - use.rank(x)
    if missing:
        x = use.add("unsqueeze", x, use.ints(*range(missing)))
    return use.add("tile", x, use.vector(counts))


def concat(use: Use) -> int:
    """cat; a tensor of shape [0] stands for nothing beside tensors of another rank."""
    parts = [one.id for one in use["tensors"]]
    rank = max(use.rank(part) for part in parts)
    parts = [part for part in parts if use.rank(part) == rank]
    parts = [use.cast(part, use.dtype) for part in parts]
    if len(parts) == 1:
        return int(parts[0])
    return use.add("concat", *parts, axis=use.axis("dim", rank))


def split(use: Use) -> tuple[int, ...]:
    """split_with_sizes and chunks of one size."""
    x = use["self"]
    axis = use.axis("dim", use.rank(x))
    results = use.node.meta["val"]
    sizes = [use.scope.extent(one.shape[axis]) for one in results]
    if not all(isinstance(size, int) for size in sizes):
        sizes = use.args.get("split_sizes", sizes)
    return use.add_node("split", [x, use.vector(sizes)], {"axis": axis}, len(results))


def select(use: Use) -> int:
    """select: one slice along an axis, which goes."""
    x = use["self"]
    return use.add("gather", x, use.scalar(use["index"]), axis=use.axis("dim", use.rank(x)))


def slice_of(use: Use) -> int:
    """slice: start and end as Python counts them."""
    x = use["self"]
    axis, dim = use.axis("dim", use.rank(x)), use.shape_of("self")
    start = 0 if use["start"] is None else use["start"]
    end = _END if use["end"] is None else use["end"]
    is_all = start == 0 and not isinstance(end, NumberRef) and _reaches(end, dim[axis])
    if is_all and use["step"] == 1:
        return int(x)
    return _sliced(use, x, axis, start, end, use["step"])


def _reaches(end: int, dim: Extent) -> bool:
    return end >= (dim if isinstance(dim, int) else _END)


def _sliced(use: Use, x: int, axis: int, start: Any, end: Any, step: int = 1) -> int:
    return use.add(
        "slice", x, use.vector([start]), use.vector([end]), use.ints(axis), use.ints(step)
    )


def slice_scatter(use: Use) -> int:
    """slice_scatter: x with a slice along an axis replaced."""
    x, source = use["self"], use.cast(use["src"], use.dtype)
    axis = use.axis("dim", use.rank(x))
    start = 0 if use["start"] is None else use["start"]
    end = _END if use["end"] is None else use["end"]
    length = use.add("shape", x, start=axis, end=axis + 1)
    limits = (use.constant(0, "int64"), use.scalar(NumberRef(length)), use.constant(1, "int64"))
    size = use.shape_of("self")[axis]
    places = use.ints(*range(size)) if isinstance(size, int) else use.add("range", *limits)
    rows = _sliced(use, places, 0, start, end, use["step"])
    back = [axis, *(i for i in range(use.rank(x)) if i != axis)]
    turned, values = use.transpose(x, *back), use.transpose(source, *back)
    index = use.add("unsqueeze", rows, use.ints(1))
    made = use.add("scatter_nd", turned, index, values)
    return use.transpose(made, *np.argsort(back).tolist())


def flip(use: Use) -> int:
    """flip along axes."""
    rank = use.rank(use["self"])
    axes = tuple(axis % rank for axis in use["dims"])
    return use.add("reverse", use["self"], axes=axes) if axes else int(use["self"])


def constant_pad(use: Use) -> int:
    """constant_pad_nd: pads of the last axis come first; negative ones cut."""
    return padded(use, use["pad"], "constant", use["value"])


def padded(use: Use, pads: list[int], mode: str, value: Any = 0) -> int:
    """Return the input with pads in torch's order."""
    x = use["self"]
    rank, count = use.rank(x), len(pads) // 2
    before, after = [0] * rank, [0] * rank
    for place in range(count):
        before[rank - 1 - place], after[rank - 1 - place] = pads[2 * place], pads[2 * place + 1]
    both = [*before, *after]
    if any(isinstance(pad, (NumberRef, TensorRef)) for pad in both):
        extra = (use.operand(value, use.dtype),) if mode == "constant" else ()
        return use.add("pad", x, use.vector(both), *extra, mode=mode)
    for axis in range(rank):
        if min(before[axis], after[axis]) < 0:
            end = after[axis] if after[axis] < 0 else _END
            x = _sliced(use, x, axis, max(-before[axis], 0), end)
    both = [max(pad, 0) for pad in both]
    if not any(both):
        return int(x)
    extra = (use.operand(value, use.dtype),) if mode == "constant" else ()
    return use.add("pad", x, use.ints(*both), *extra, mode=mode)


def copy(use: Use) -> int:
    """copy: the source, cast and broadcast to the shape of what it replaces."""
    source = use.cast(use["src"], use.dtype)
    if use.shape_of("src") == use.shape:
        return source
    return use.add("expand", source, use.add("shape", use["self"]))


def unfold(use: Use) -> int:
    """unfold: windows along an axis, their elements as a new last axis."""
    x = use["self"]
    rank = use.rank(x)
    axis, size, step = use.axis("dimension", rank), use["size"], use["step"]
    count = use.shape[axis]
    if not isinstance(count, int):
        raise use.error("unfold along an open dimension is not supported")
    places = np.arange(count)[:, None] * step + np.arange(size)
    made = use.add("gather", x, use.constant(places, "int64"), axis=axis)
    order = [i for i in range(rank + 1) if i != axis + 1] + [axis + 1]
    return use.transpose(made, *order)


def as_strided(use: Use) -> int:
    """as_strided of a dense tensor: its elements are gathered by place."""
    before, after = use.shape_of("self"), use.shape
    known = all(isinstance(dim, int) for dim in (*before, *after))
    meta = use.meta("self")
    if not known or not meta.is_contiguous() or meta.storage_offset():
        raise use.error("as_strided of a tensor that is not dense and of known shape")
    if math.prod(after) > MOST_PLACES:
        raise use.error(f"as_strided to over {MOST_PLACES} elements is not supported")
    places = np.array(use["storage_offset"] or 0, np.int64)
    for dim, stride in zip(after, use["stride"], strict=True):
        places = places[..., None] + np.arange(dim) * stride
    if places.size and int(places.max()) >= math.prod(before):
        raise use.error("as_strided reads beyond the tensor")
    return use.add("gather", use.reshape(use["self"], [-1]), use.constant(places, "int64"), axis=0)


def diagonal(use: Use) -> int:
    """diagonal of two axes of known size, as a new last axis."""
    x = use["self"]
    rank, shape = use.rank(x), use.shape_of("self")
    first, second = use.axis("dim1", rank), use.axis("dim2", rank)
    length = use.shape[-1]
    if not all(isinstance(dim, int) for dim in (shape[first], shape[second])):
        raise use.error("the diagonal of open dimensions is not supported")
    rest = [axis for axis in range(rank) if axis not in (first, second)]
    offset = use["offset"]
    rows = np.arange(length) + max(-offset, 0)
    places = np.stack([rows, np.arange(length) + max(offset, 0)], -1)
    made = use.add("gather_nd", use.transpose(x, first, second, *rest), use.constant(places))
    return use.transpose(made, *range(1, rank - 1), 0)


def shuffle(op: str, factor: str) -> Any:
    """Return the rule of pixel_shuffle or its inverse; leading axes are one batch."""

    def rule(use: Use) -> int:
        x, rank = use["self"], use.rank(use["self"])
        shape = use.shape_of("self")
        if rank != 4:
            if not all(isinstance(dim, int) for dim in shape):
                raise use.error(f"{op} of rank {rank} with open dimensions is not supported")
            x = use.reshape(x, [math.prod(shape[:-3]), *shape[-3:]])
        made = use.add(op, x, blocksize=int(use[factor]), mode="CRD", layout="NCHW")
        return made if rank == 4 else use.reshape(made, use.shape)

    return rule


def triangle(upper: int) -> Any:
    """Return the rule of triu or tril."""
    return lambda use: use.add(
        "trilu", use["self"], use.constant(use["diagonal"], "int64"), upper=upper
    )


MOVEMENT: dict[str, Any] = {
    "as_strided": as_strided,
    "cat": concat,
    "constant_pad_nd": constant_pad,
    "copy": copy,
    "diagonal": diagonal,
    "expand": expand,
    "flip": flip,
    "permute": permute,
    "pixel_shuffle": shuffle("depth_to_space", "upscale_factor"),
    "pixel_unshuffle": shuffle("space_to_depth", "downscale_factor"),
    "repeat": repeat,
    "select int": select,
    "slice Tensor": slice_of,
    "slice_scatter": slice_scatter,
    "split_with_sizes": split,
    "squeeze dims": squeeze,
    "tril": triangle(0),
    "triu": triangle(1),
    "unfold": unfold,
    "unsqueeze": unsqueeze,
    "view": view,
}
