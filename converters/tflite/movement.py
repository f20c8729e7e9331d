"""TensorFlow Lite operators that rearrange or choose elements: shapes, slices, pads, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tflite

from trireme.converters.tflite.ops import same
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ops.shapes import known_length
from trireme.support.errors import ModelFileError

_INT64_MOST = 2**63 - 1


@dataclass(frozen=True)
class _Made:
    """An integer that only a run makes: a value of int64 with one element."""

    value: int


Number = int | _Made
Cut = tuple[Number, Number, int, int]
"""One axis of a slice: (start, end, axis, step)."""


def reshape(use: OperatorUse) -> None:
    """RESHAPE to the shape in input 1, or in the options of older files."""
    if use.has(1) and not use.is_constant(1):
        use.done("reshape", use.value(0), use.sizes(1), allowzero=1)
        return
    shape = use.ints(1) if use.has(1) else use.option_ints("NewShape")
    if any(dim < -1 for dim in shape):
        raise ModelFileError(f"{use.source}: the new shape is {list(shape)}")
    use.done("reshape", use.value(0), use.int_constant(shape), allowzero=1)


def concat(use: OperatorUse) -> None:
    """CONCATENATION of all inputs along an axis."""
    use.done("concat", *use.values(), axis=use.option("Axis"), activation=use.activation())


def pad(use: OperatorUse) -> None:
    """PAD and PADV2: [[before, after], ...] becomes all before, then all after."""
    pairs = _pairs(use, 1)
    value = use.optional(2)
    use.done("pad", use.value(0), use.int_constant(pairs), value, mode="constant")


def mirror_pad(use: OperatorUse) -> None:
    """MIRROR_PAD: SYMMETRIC repeats the edge, REFLECT does not."""
    reflect = use.option("Mode") == tflite.MirrorPadMode.REFLECT
    mode = "reflect" if reflect else "symmetric"
    use.done("pad", use.value(0), use.int_constant(_pairs(use, 1)), mode=mode)


def _pairs(use: OperatorUse, position: int) -> list[int]:
    flat = use.ints(position)
    shape = use.type(0).shape
    if len(flat) != 2 * len(shape):
        raise ModelFileError(f"{use.source}: {len(flat)} pads for shape {list(shape)}")
    return [*flat[0::2], *flat[1::2]]


def transpose(use: OperatorUse) -> None:
    """TRANSPOSE by a constant permutation."""
    use.done("transpose", use.value(0), perm=use.ints(1))


def slice_(use: OperatorUse) -> None:
    """SLICE (x, begin, size), where a size of -1 goes to the end."""
    if not use.is_constant(1, 2):
        first, count = use.sizes(1), use.sizes(2)
        to_end = use.add("less", count, use.int_constant([0]))
        last = use.add("add", first, count)
        chosen = use.add("where", to_end, use.int_constant([_INT64_MOST]), last)
        use.done("slice", use.value(0), first, chosen)
        return
    begin, size = use.ints(1), use.ints(2)
    if len(begin) != len(size):
        raise ModelFileError(f"{use.source}: begin {begin} and size {size} differ in length")
    ends = [_INT64_MOST if n < 0 else b + n for b, n in zip(begin, size, strict=True)]
    use.done("slice", use.value(0), use.int_constant(begin), use.int_constant(ends))


def strided_slice(use: OperatorUse) -> None:
    """STRIDED_SLICE (x, begin, end, strides) with its five masks, as slice, squeeze, unsqueeze."""
    begin, end, steps = _numbers(use, 1), _numbers(use, 2), use.ints(3)
    if not len(begin) == len(end) == len(steps) or 0 in steps:
        raise ModelFileError(f"{use.source}: begin {begin}, end {end}, strides {steps}")
    masks = {k: use.option(f"{k}Mask") for k in ("Begin", "End", "Ellipsis", "NewAxis")}
    shrink = use.option("ShrinkAxisMask")
    if use.option("Offset", False):
        end = tuple(_plus(use, b, e) for b, e in zip(begin, end, strict=True))
    axis, out_axis = 0, 0
    cuts: list[Cut] = []
    new: list[int] = []
    gone: list[int] = []
    skipped = len(use.type(0).shape) - sum(
        not (masks["NewAxis"] | masks["Ellipsis"]) >> i & 1 for i in range(len(begin))
    )
    for i, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        bit = 1 << i
        if masks["Ellipsis"] & bit:
            axis, out_axis = axis + skipped, out_axis + skipped
            continue
        if masks["NewAxis"] & bit:
            new.append(out_axis)
            out_axis += 1
            continue
        if shrink & bit:
            step, last = 1, _after(use, first)
            gone.append(axis)
        else:
            out_axis += 1
            if masks["Begin"] & bit:
                first = 0 if step > 0 else _INT64_MOST
            if masks["End"] & bit:
                last = _INT64_MOST if step > 0 else -_INT64_MOST
        cuts.append((first, last, axis, step))
        axis += 1
    _sliced(use, cuts, gone, new)


def _numbers(use: OperatorUse, position: int) -> tuple[Number, ...]:
    """Return the integers of an input, those that only a run makes as values."""
    if use.is_constant(position):
        return use.ints(position)
    whole = use.sizes(position)
    count = known_length(use.builder.values[whole], f"{use.source}: input {position}")
    parts = [use.add("gather", whole, use.int_constant([k]), axis=0) for k in range(count)]
    known = [use.builder.values[part].data for part in parts]
    return tuple(
        _Made(part) if data is None else int(data[0])
        for part, data in zip(parts, known, strict=True)
    )


def _value_of(use: OperatorUse, numbers: Sequence[Number]) -> int:
    """Return integers as a list of int64."""
    plain = [number for number in numbers if isinstance(number, int)]
    if len(plain) == len(numbers):
        return use.int_constant(plain)
    parts = [n.value if isinstance(n, _Made) else use.int_constant([n]) for n in numbers]
    return use.add("concat", *parts, axis=0)


def _plus(use: OperatorUse, a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return _Made(use.add("add", _value_of(use, [a]), _value_of(use, [b])))


def _after(use: OperatorUse, first: Number) -> Number:
    """Return the end of a slice of one element; the last element has the largest."""
    if isinstance(first, int):
        return first + 1 if first != -1 else _INT64_MOST
    is_last = use.add("equal", first.value, use.int_constant([-1]))
    after = _value_of(use, [_plus(use, first, 1)])
    return _Made(use.add("where", is_last, use.int_constant([_INT64_MOST]), after))


def _sliced(use: OperatorUse, cuts: list[Cut], gone: list[int], new: list[int]) -> None:
    """Emit slice, then squeeze and unsqueeze where axes go or come."""
    quant = use.quant(0)
    ranges: tuple[list[Number], ...] = tuple([cut[part] for cut in cuts] for part in range(4))
    steps: list[tuple[str, tuple[Sequence[Number], ...]]] = [("slice", ranges)]
    steps += [("squeeze", (gone,))] if gone else []
    steps += [("unsqueeze", (new,))] if new else []
    value = use.value(0)
    for position, (op, lists) in enumerate(steps):
        operands = [_value_of(use, numbers) for numbers in lists]
        if position == len(steps) - 1:
            use.done(op, value, *operands)
        else:
            value = use.add(op, value, *operands, quant=quant)


def split(use: OperatorUse) -> None:
    """SPLIT (axis, x) into equal parts."""
    (axis,) = use.ints(0)
    use.done("split", use.value(1), axis=axis, num_outputs=len(use.operator.outputs))


def split_v(use: OperatorUse) -> None:
    """SPLIT_V (x, sizes, axis); a size of -1 takes the rest."""
    sizes, (axis,) = list(use.ints(1)), use.ints(2)
    dims = use.type(0).shape
    if not -len(dims) <= axis < len(dims):
        raise ModelFileError(f"{use.source}: axis {axis} of shape {list(dims)}")
    if -1 in sizes:
        size = dims[axis]
        if not isinstance(size, int):
            raise use.fail(f"the rest of an axis of {size} elements is open")
        sizes[sizes.index(-1)] = size - sum(sizes) - 1
    use.done("split", use.value(0), use.int_constant(sizes), axis=axis)


def gather(use: OperatorUse) -> None:
    """GATHER along an axis."""
    axis, batch = use.option("Axis"), use.option("BatchDims")
    use.done("gather", use.value(0), use.value(1), axis=axis, batch_dims=batch)


def pack(use: OperatorUse) -> None:
    """PACK: a new axis on every input, then a concat."""
    axis = use.option("Axis")
    parts = [
        use.add("unsqueeze", value, use.int_constant([axis]), quant=use.quant(i))
        for i, value in enumerate(use.values())
    ]
    use.done("concat", *parts, axis=axis)


def unpack(use: OperatorUse) -> None:
    """UNPACK: a split into slices of one, each without the axis."""
    axis, count = use.option("Axis"), len(use.operator.outputs)
    quant = use.quant(0)
    parts = use.builder.add_node(
        "split",
        [use.value(0)],
        {"axis": axis, "num_outputs": count},
        outputs=count,
        quants=[quant] * count,
        source=use.source,
    )
    for position, part in enumerate(parts):
        tensor = use.output(position)
        (made,) = use.builder.add_node(
            "squeeze",
            [part, use.int_constant([axis])],
            {},
            names=[use.state.names.get(tensor.index, tensor.name)],
            quants=[tensor.quant],
            source=use.source,
        )
        use.bind(position, made)


def expand_dims(use: OperatorUse) -> None:
    """EXPAND_DIMS (x, axis)."""
    use.done("unsqueeze", use.value(0), use.int_constant(use.ints(1)))


def squeeze(use: OperatorUse) -> None:
    """SQUEEZE of the axes given, or of all that are one."""
    axes = use.option_ints("SqueezeDims") or [i for i, dim in enumerate(use.dims(0)) if dim == 1]
    use.done("squeeze", use.value(0), use.int_constant(axes))


def _block(use: OperatorUse) -> tuple[int, list[int]]:
    """Return the block size and the shape; an open batch is -1, which a reshape infers."""
    block, dims = use.option("BlockSize"), _sizes(use)
    if block < 1 or len(dims) != 4:
        raise ModelFileError(f"{use.source}: block {block} on shape {dims}")
    return block, dims


def _sizes(use: OperatorUse) -> list[int]:
    """Return the shape of input 0, with -1 for an open batch.

    Errors: ConvertError, if another dimension is open
    """
    first, *rest = use.type(0).shape or (1,)
    if not all(isinstance(dim, int) for dim in rest) or 0 in rest:
        use.dims(0)
    return [first if isinstance(first, int) else -1, *map(int, rest)]


def _rearranged(use: OperatorUse, inner: list[int], perm: list[int], outer: list[int]) -> None:
    """Emit reshape, transpose, reshape, the parts of block operators."""
    value = use.add("reshape", use.value(0), use.int_constant(inner), quant=use.quant(0))
    value = use.add("transpose", value, perm=perm, quant=use.quant(0))
    use.done("reshape", value, use.int_constant(outer))


def space_to_depth(use: OperatorUse) -> None:
    """SPACE_TO_DEPTH of NHWC: blocks of b x b pixels become channels."""
    b, (n, h, w, c) = _block(use)
    _rearranged(
        use, [n, h // b, b, w // b, b, c], [0, 1, 3, 2, 4, 5], [n, h // b, w // b, b * b * c]
    )


def depth_to_space(use: OperatorUse) -> None:
    """DEPTH_TO_SPACE of NHWC: channels become blocks of b x b pixels."""
    b, (n, h, w, c) = _block(use)
    d = c // (b * b)
    _rearranged(use, [n, h, w, b, b, d], [0, 1, 3, 2, 4, 5], [n, h * b, w * b, d])


def space_to_batch(use: OperatorUse) -> None:
    """SPACE_TO_BATCH_ND (x, block, paddings): pad, then move blocks to the batch."""
    blocks, pads, dims = _batch_blocks(use)
    rank, rest = len(blocks), len(dims) - len(blocks) - 1
    before = [0, *pads[0::2], *[0] * rest]
    after = [0, *pads[1::2], *[0] * rest]
    padded = [d + b + a for d, b, a in zip(dims, before, after, strict=True)]
    if any(padded[1 + i] % blocks[i] for i in range(rank)):
        raise ModelFileError(f"{use.source}: blocks {blocks} do not divide {padded}")
    value = use.add("pad", use.value(0), use.int_constant([*before, *after]), quant=use.quant(0))
    inner = [padded[0]]
    for i in range(rank):
        inner += [padded[1 + i] // blocks[i], blocks[i]]
    inner += padded[1 + rank :]
    perm = [*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2)]
    perm += range(2 * rank + 1, 2 * rank + 1 + rest)
    value = use.add("reshape", value, use.int_constant(inner), quant=use.quant(0))
    value = use.add("transpose", value, perm=perm, quant=use.quant(0))
    shrunk = [padded[1 + i] // blocks[i] for i in range(rank)]
    batch = -1 if padded[0] < 0 else padded[0] * int(np.prod(blocks))
    outer = [batch, *shrunk, *padded[1 + rank :]]
    use.done("reshape", value, use.int_constant(outer))


def batch_to_space(use: OperatorUse) -> None:
    """BATCH_TO_SPACE_ND (x, block, crops): move the batch to blocks, then crop."""
    blocks, crops, dims = _batch_blocks(use)
    rank, volume = len(blocks), int(np.prod(blocks))
    if dims[0] > 0 and dims[0] % volume:
        raise ModelFileError(f"{use.source}: blocks {blocks} do not divide a batch of {dims[0]}")
    batch, tail = -1 if dims[0] < 0 else dims[0] // volume, list(dims[1 + rank :])
    perm = [rank]
    for i in range(rank):
        perm += [rank + 1 + i, i]
    perm += range(2 * rank + 1, 2 * rank + 1 + len(tail))
    quant = use.quant(0)
    inner = use.int_constant([*blocks, batch, *dims[1:]])
    value = use.add("reshape", use.value(0), inner, quant=quant)
    value = use.add("transpose", value, perm=perm, quant=quant)
    grown = [dims[1 + i] * blocks[i] for i in range(rank)]
    value = use.add("reshape", value, use.int_constant([batch, *grown, *tail]), quant=quant)
    ends = [size - crop for size, crop in zip(grown, crops[1::2], strict=True)]
    axes = use.int_constant(list(range(1, rank + 1)))
    use.done("slice", value, use.int_constant(crops[0::2]), use.int_constant(ends), axes)


def _batch_blocks(use: OperatorUse) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    blocks, pads, dims = use.ints(1), use.ints(2), _sizes(use)
    fits = len(pads) == 2 * len(blocks) and len(dims) > len(blocks) > 0
    if not fits or min(blocks) < 1 or min(pads) < 0:
        raise ModelFileError(f"{use.source}: blocks {blocks}, edges {pads}, shape {dims}")
    return blocks, pads, dims


def broadcast_to(use: OperatorUse) -> None:
    """BROADCAST_TO a shape."""
    use.done("expand", use.value(0), use.sizes(1))


def tile(use: OperatorUse) -> None:
    """TILE by repeats."""
    use.done("tile", use.value(0), use.sizes(1))


MOVERS: dict[str, Converter] = {
    "BATCH_TO_SPACE_ND": batch_to_space,
    "BROADCAST_TO": broadcast_to,
    "CONCATENATION": concat,
    "DEPTH_TO_SPACE": depth_to_space,
    "EMBEDDING_LOOKUP": lambda use: use.done("gather", use.value(1), use.value(0), axis=0),
    "EXPAND_DIMS": expand_dims,
    "GATHER": gather,
    "GATHER_ND": same("gather_nd"),
    "MIRROR_PAD": mirror_pad,
    "PACK": pack,
    "PAD": pad,
    "PADV2": pad,
    "RESHAPE": reshape,
    "SLICE": slice_,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "SPACE_TO_DEPTH": space_to_depth,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SQUEEZE": squeeze,
    "STRIDED_SLICE": strided_slice,
    "TILE": tile,
    "TRANSPOSE": transpose,
    "UNPACK": unpack,
}
