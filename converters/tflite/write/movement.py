"""Write ops that move elements: reshapes, cuts, joins, pads, gathers."""

from __future__ import annotations

import numpy as np
import tflite

from trireme.converters.tflite.write.activations import activate
from trireme.converters.tflite.write.tables import looked_up
from trireme.converters.tflite.write.use import NodeWriter, WriteRule, cast_types, dtype_code
from trireme.ir.graph import TensorType
from trireme.ir.op import Call
from trireme.ops import integer
from trireme.support.dtypes import Array

_MOST_RANK = 5
"""The most axes of SLICE, STRIDED_SLICE and PAD."""
_INT32 = np.iinfo(np.int32)


def reshape(use: NodeWriter) -> None:
    """Write RESHAPE of the output's shape, or of a shape that a run computes."""
    use.check_one_quant(0)
    shape = use.output().shape
    known = sum(not isinstance(dim, int) for dim in shape) <= 1
    if not known and use.node.op != "reshape":
        raise use.error(f"shape {list(shape)} has more than one open dimension")
    sizes = use.sizes(shape) if known else use.whole(1)
    use.done("RESHAPE", [use.x(0), sizes], "ReshapeOptions")


def squeeze(use: NodeWriter) -> None:
    """Write SQUEEZE of the axes given."""
    use.check_one_quant(0)
    rank = len(use.type(0).shape)
    if use.value(1) is None:
        reshape(use)
        return
    axes = sorted(axis % rank for axis in use.numbers(1, "axes"))
    use.done("SQUEEZE", [use.x(0)], "SqueezeOptions", SqueezeDims=axes)


def expand(use: NodeWriter) -> None:
    """Write BROADCAST_TO."""
    use.check_one_quant(0)
    y = use.output()
    use.check_dtype(0, "float32 int32 int64 int16 int8 uint8 bool uint32 qint8 quint8 qint16")
    sizes = use.ints(list(y.dims)) if y.is_static else use.whole(1)
    use.done("BROADCAST_TO", [use.x(0), sizes])


def tile(use: NodeWriter) -> None:
    """Write TILE."""
    use.check_one_quant(0)
    use.check_dtype(0, "float32 int32 int64 uint8 int8 bool qint8 quint8")
    use.done("TILE", [use.x(0), use.whole(1)], "TileOptions")


def transpose(use: NodeWriter) -> None:
    """Write TRANSPOSE."""
    use.check_one_quant(0)
    perm = use.attrs["perm"]
    if perm is None:
        perm = tuple(reversed(range(len(use.type(0).shape))))
    if len(perm) > 6:
        raise use.error("TRANSPOSE takes at most 6 axes")
    use.done("TRANSPOSE", [use.x(0), use.ints(list(perm))], "TransposeOptions")


def concat(use: NodeWriter) -> None:
    """Write CONCATENATION; int8 inputs of other quantisation take a table before it."""
    inputs, y = use.operands(), use.output()
    if y.dtype == "int8" and y.quant is not None:
        given = tuple(use.value(position) for position in range(len(inputs)))
        tables = integer.concat_tables(Call(given, (y,), use.attrs))
        inputs = [_requantised(use, i, entries) for i, entries in enumerate(tables)]
    activation, axis = use.attrs["activation"] or "", use.attrs["axis"]
    if not activation:
        use.done("CONCATENATION", inputs, "ConcatenationOptions", Axis=axis)
        return
    activate(
        use, use.add("CONCATENATION", inputs, None, "ConcatenationOptions", Axis=axis), activation
    )


def _requantised(use: NodeWriter, position: int, entries: Array | None) -> int:
    if entries is None:
        return use.x(position)
    return looked_up(use, use.x(position), entries, use.output().quant)


def split(use: NodeWriter) -> None:
    """Write SPLIT into equal parts, else SPLIT_V."""
    use.check_one_quant(0)
    axis, count = use.attrs["axis"], len(use.node.outputs)
    rank = len(use.type(0).shape)
    sizes = [use.output(i).shape[axis] for i in range(count)]
    at = use.ints(axis % rank)
    if len(set(sizes)) == 1:
        use.done("SPLIT", [at, use.x(0)], "SplitOptions", NumSplits=count)
        return
    whole = use.sizes(sizes)
    use.done("SPLIT_V", [use.x(0), whole, at], "SplitVOptions", NumSplits=count)


def slice_(use: NodeWriter) -> None:
    """Write SLICE where all steps are 1 and sizes are known, else STRIDED_SLICE."""
    use.check_one_quant(0)
    x, y = use.type(0), use.output()
    rank = len(x.shape)
    if rank > _MOST_RANK:
        raise use.error(f"SLICE takes at most {_MOST_RANK} axes")
    starts, ends = use.numbers(1, "starts"), use.numbers(2, "ends")
    axes = use.numbers(3, "axes") if use.value(3) is not None else list(range(len(starts)))
    steps = use.numbers(4, "steps") if use.value(4) is not None else [1] * len(starts)
    cuts = {axis % rank: cut for axis, *cut in zip(axes, starts, ends, steps, strict=True)}
    if x.is_static and all(step == 1 for *_, step in cuts.values()):
        begin = [slice(*cuts.get(i, [None])).indices(n)[0] for i, n in enumerate(x.dims)]
        use.done("SLICE", [use.x(0), use.ints(begin), use.ints(list(y.dims))], "SliceOptions")
        return
    begins, stops, strides, masks = _strided(use, cuts)
    inputs = [use.x(0), use.ints(begins), use.ints(stops), use.ints(strides)]
    use.done("STRIDED_SLICE", inputs, "StridedSliceOptions", BeginMask=masks[0], EndMask=masks[1])


def _strided(
    use: NodeWriter, cuts: dict[int, list[int]]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return begins, ends, strides and the masks of begins and ends for all axes."""
    begins, stops, strides, masks = [], [], [], [0, 0]
    for axis, size in enumerate(use.type(0).shape):
        first, last, step = cuts.get(axis, [0, int(_INT32.max), 1])
        if isinstance(size, int):
            first, last, step = slice(first, last, step).indices(size)
            whole_begin, whole_end = False, last < 0 or (step > 0 and last >= size)
        else:
            if step < 0:
                raise use.error("a negative step over an open size is not written")
            whole_begin, whole_end = False, last >= _INT32.max
        masks[0] |= whole_begin << axis
        masks[1] |= whole_end << axis
        begins.append(first)
        stops.append(0 if whole_end else last)
        strides.append(step)
    return begins, stops, strides, masks


def gather(use: NodeWriter) -> None:
    """Write GATHER; constant indices from the end are counted from the start."""
    use.check_one_quant(0)
    axis, batch = use.attrs["axis"], use.attrs["batch_dims"]
    use.check_dtype(1, "int32 int64")
    indices, data, size = use.x(1), use.data(1), use.type(0).shape[axis]
    if data is not None and (data < 0).any():
        if not isinstance(size, int):
            raise use.error("an index from the end of an open axis is not written")
        indices = use.array(np.where(data < 0, data + size, data).astype(data.dtype))
    use.done("GATHER", [use.x(0), indices], "GatherOptions", Axis=axis, BatchDims=batch)


def gather_nd(use: NodeWriter) -> None:
    """Write GATHER_ND."""
    use.check_one_quant(0)
    if use.attrs["batch_dims"]:
        raise use.error("GATHER_ND has no batch axes")
    use.check_dtype(1, "int32 int64")
    data = use.data(1)
    if data is not None and (data < 0).any():
        raise use.error("GATHER_ND has no indices from the end")
    use.done("GATHER_ND", [use.x(0), use.x(1)], "GatherNdOptions")


def pad(use: NodeWriter) -> None:
    """Write PAD, PADV2 for a border other than 0, or MIRROR_PAD."""
    use.check_one_quant(0)
    x, mode = use.type(0), use.attrs["mode"]
    rank = len(x.shape)
    given = use.numbers(1, "pads")
    axes = use.numbers(3, "axes") if use.value(3) is not None else list(range(rank))
    pairs = [[0, 0] for _ in range(rank)]
    for i, axis in enumerate(axes):
        pairs[axis % rank] = [given[i], given[i + len(axes)]]
    if min(map(min, pairs), default=0) < 0:
        raise use.error("negative pads are not written")
    if rank > _MOST_RANK:
        raise use.error(f"PAD takes at most {_MOST_RANK} axes")
    whole = use.ints(np.array(pairs).reshape(rank, 2).tolist())
    if mode in ("reflect", "symmetric"):
        kind = tflite.MirrorPadMode
        number = kind.REFLECT if mode == "reflect" else kind.SYMMETRIC
        use.done("MIRROR_PAD", [use.x(0), whole], "MirrorPadOptions", Mode=number)
    elif mode != "constant":
        raise use.error(f"pads of mode {mode} have no form in TensorFlow Lite")
    elif _is_zero(use):
        use.done("PAD", [use.x(0), whole], "PadOptions")
    else:
        value = use.given(2)
        border = use.x(2)
        if value.data is not None:
            border = use.array(value.data.reshape(()), x.quant)
        use.done("PADV2", [use.x(0), whole, border], "PadV2Options")


def _is_zero(use: NodeWriter) -> bool:
    """Whether the border is 0; of a quantised value, its zero point."""
    data, quant = use.data(2), use.type(0).quant
    if use.value(2) is None:
        return True
    return data is not None and bool((data == (0 if quant is None else quant.zero_point)).all())


def reverse(use: NodeWriter) -> None:
    """Write REVERSE_V2."""
    use.check_one_quant(0)
    use.check_dtype(0, "float32 int32 int64 int16 int8 uint8 bool qint8 quint8 qint16")
    rank = len(use.type(0).shape)
    axes = sorted(axis % rank for axis in use.attrs["axes"])
    use.done("REVERSE_V2", [use.x(0), use.ints(axes)], "ReverseV2Options")


def blocks(code: str, kind: str) -> WriteRule:
    """Return the rule of depth_to_space or space_to_depth."""

    def rule(use: NodeWriter) -> None:
        use.check_one_quant(0)
        if use.attrs["layout"] != "NHWC" or use.attrs["mode"] != "DCR":
            raise use.error("TensorFlow Lite's order is NHWC with the block before the depth")
        use.done(code, [use.x(0)], kind, BlockSize=use.attrs["blocksize"])

    return rule


def shape(use: NodeWriter) -> None:
    """Write SHAPE, cut to the axes wanted."""
    rank = len(use.type(0).shape)
    first, last, _ = slice(use.attrs["start"], use.attrs["end"]).indices(rank)
    options = {"OutType": dtype_code("int64")}
    if (first, last) == (0, rank):
        use.done("SHAPE", [use.x(0)], "ShapeOptions", **options)
        return
    whole = use.add("SHAPE", [use.x(0)], TensorType((rank,), "int64"), "ShapeOptions", **options)
    inputs = [whole, use.ints([first]), use.ints([max(last - first, 0)])]
    use.done("SLICE", inputs, "SliceOptions")


def resize(use: NodeWriter) -> None:
    """Write RESIZE_BILINEAR or RESIZE_NEAREST_NEIGHBOR of an NHWC image."""
    use.check_one_quant(0)
    use.check_dtype(0, "float32 qint8 quint8")
    attrs, x, y = use.attrs, use.type(0), use.output()
    if len(x.shape) != 4 or x.shape[0] != y.shape[0] or x.shape[3] != y.shape[3]:
        raise use.error("TensorFlow Lite resizes height and width of [N,H,W,C]")
    sizes, space = y.shape[1:3], x.shape[1:3]
    if not all(isinstance(size, int) for size in (*sizes, *space)):
        raise use.error("a resize of an open size is not written")
    _check_scales(use)
    if attrs["antialias"] or attrs["exclude_outside"]:
        raise use.error("antialias and exclude_outside have no form in TensorFlow Lite")
    how = attrs["coordinate_transformation_mode"]
    if how == "pytorch_half_pixel" and all(int(size) > 1 for size in sizes):
        how = "half_pixel"
    if how not in ("align_corners", "half_pixel", "asymmetric"):
        raise use.error(f"coordinates by {how} have no form in TensorFlow Lite")
    options = {"AlignCorners": how == "align_corners", "HalfPixelCenters": how == "half_pixel"}
    inputs = [use.x(0), use.ints([int(size) for size in sizes])]
    if attrs["mode"] == "linear":
        use.done("RESIZE_BILINEAR", inputs, "ResizeBilinearOptions", **options)
    elif attrs["mode"] == "nearest":
        _check_nearest(use, how)
        use.done("RESIZE_NEAREST_NEIGHBOR", inputs, "ResizeNearestNeighborOptions", **options)
    else:
        raise use.error(f"mode {attrs['mode']} has no form in TensorFlow Lite")


def _check_scales(use: NodeWriter) -> None:
    """Refuse scales that are not the ratio of the sizes, which TensorFlow Lite takes."""
    scales = use.data(2)
    if use.value(2) is None or (scales is not None and not scales.size):
        return
    if scales is None:
        raise use.error("scales that a run computes are not written")
    axes = use.attrs["axes"] or range(4)
    for axis, scale in zip(axes, scales.reshape(-1), strict=True):
        if use.output().dims[axis] != use.type(0).dims[axis] * float(scale):
            raise use.error("scales that are not the ratio of the sizes have no form")


def _check_nearest(use: NodeWriter, how: str) -> None:
    """Refuse another rounding than TensorFlow Lite's, where it matters."""
    ours, theirs = (
        use.attrs["nearest_mode"],
        "floor" if how == "asymmetric" else "round_prefer_ceil",
    )
    halves = {"round_prefer_ceil", "round_prefer_floor"}
    if ours == theirs or ({ours, theirs} == halves and how == "half_pixel" and not _ties(use)):
        return
    raise use.error(f"rounding by {ours} has no form in TensorFlow Lite")


def _ties(use: NodeWriter) -> bool:
    """Whether the middle of an output pixel lies on the border of two input pixels."""
    pairs = zip(use.type(0).dims[1:3], use.output().dims[1:3], strict=True)
    return any((2 * i + 1) * n % (2 * out) == 0 for n, out in pairs for i in range(out))


def top_k(use: NodeWriter) -> None:
    """Write TOPK_V2 along the last axis, whose places are int32."""
    x, attrs = use.type(0), use.attrs
    use.check_one_quant(0)
    use.check_dtype(0, "float32 int32 int64 int16 int8 uint8 qint8 quint8")
    if attrs["axis"] % len(x.shape) != len(x.shape) - 1 or not attrs["largest"]:
        raise use.error("TOPK_V2 takes the largest along the last axis")
    (k,) = use.numbers(1, "k")
    y = use.output(0)
    values = use.tensors.of(use.node.outputs[0])
    places = use.tensors.temporary(TensorType(y.shape, "int32"), f"{use.name}_places")
    use.emit("TOPK_V2", [use.x(0), use.ints(k)], [values, places], "TopKV2Options")
    if len(use.node.outputs) > 1:
        to = use.output(1)
        options = cast_types(TensorType(y.shape, "int32"), to)
        use.emit("CAST", [places], [use.tensors.of(use.node.outputs[1])], "CastOptions", **options)


def fill(use: NodeWriter) -> None:
    """Write FILL."""
    value = use.attrs["value"]
    data = np.zeros((), np.float32) if value is None else np.asarray(value).reshape(())
    use.done("FILL", [use.whole(0), use.array(data)], "FillOptions")


def cum_sum(use: NodeWriter) -> None:
    """Write CUMSUM."""
    use.check_dtype(0, "float32 int32 int64")
    (axis,) = use.numbers(1, "the axis")
    options = {key.title(): bool(use.attrs[key]) for key in ("exclusive", "reverse")}
    use.done("CUMSUM", [use.x(0), use.ints(axis)], "CumsumOptions", **options)


def space_to_batch(code: str, kind: str) -> WriteRule:
    """Return the rule of space_to_batch or batch_to_space."""

    def rule(use: NodeWriter) -> None:
        use.check_one_quant(0)
        if len(use.type(0).shape) not in (3, 4):
            raise use.error(f"{code} takes 3 or 4 axes")
        use.done(code, [use.x(0), use.whole(1), use.whole(2)], kind)

    return rule


def reverse_sequence(use: NodeWriter) -> None:
    """Write REVERSE_SEQUENCE."""
    use.check_dtype(0, "float32 int32 int64 int16 uint8")
    options = {"SeqDim": use.attrs["time_axis"], "BatchDim": use.attrs["batch_axis"]}
    use.done("REVERSE_SEQUENCE", [use.x(0), use.x(1)], "ReverseSequenceOptions", **options)


MOVEMENT: dict[str, WriteRule] = {
    "batch_to_space": space_to_batch("BATCH_TO_SPACE_ND", "BatchToSpaceNDOptions"),
    "concat": concat,
    "constant_of_shape": fill,
    "cum_sum": cum_sum,
    "depth_to_space": blocks("DEPTH_TO_SPACE", "DepthToSpaceOptions"),
    "expand": expand,
    "flatten": reshape,
    "gather": gather,
    "gather_nd": gather_nd,
    "pad": pad,
    "range": lambda use: use.done("RANGE", use.operands(), "RangeOptions"),
    "reshape": reshape,
    "resize": resize,
    "reverse": reverse,
    "reverse_sequence": reverse_sequence,
    "shape": shape,
    "slice": slice_,
    "space_to_batch": space_to_batch("SPACE_TO_BATCH_ND", "SpaceToBatchNDOptions"),
    "space_to_depth": blocks("SPACE_TO_DEPTH", "SpaceToDepthOptions"),
    "split": split,
    "squeeze": squeeze,
    "tile": tile,
    "top_k": top_k,
    "transpose": transpose,
    "unsqueeze": reshape,
}
"""The rules of ops that move elements."""
