"""Models of the TFLite operators of more than one element: products, windows, reductions, moves.

They add to `MAKERS` of `tflite_integer_cases`.
"""

import itertools

import numpy as np
from tflite_builder import T, constant
from tflite_cases import NONE, RELU6, SAME, VALID, ints
from tflite_integer_cases import DTYPES, SEED, Scaled, case_of, codes, maker, q, quants, spread


def scales_of_products(channels, depth):
    """Yield the scales (x, weights by channel, y) of a product; see `quants`."""
    for zero in (0, 5):
        yield f"halves {zero}", Scaled(0.25, zero), (0.5,), Scaled(0.25, -zero)
    for y in (0.25, 0.3, 1.0):
        yield f"decimals {y}", Scaled(0.05, 3), (0.01,), Scaled(y, -5)
    rng = np.random.default_rng(SEED)
    for number, count in enumerate((1, channels, 1, channels)):
        x, w = float(0.05 * np.exp(rng.normal())), 0.01 * np.exp(rng.normal(0, 0.4, count))
        y = Scaled(float(x * w.max() * 99 * np.sqrt(depth)), int(rng.integers(-60, 60)))
        yield f"random {number}", Scaled(x, int(rng.integers(-99, 99))), tuple(map(float, w)), y


def weights(rng, dtype, shape, scales, axis, halves):
    """Constant weights; for exact halves small ones. uint8 has one scale and a zero point."""
    if dtype == "uint8":
        low, high = (117, 122) if halves else (0, 256)
        return constant(rng.integers(low, high, shape).astype(dtype), scales[0], zero=119)
    low, high = (-2, 3) if halves else (-127, 128)
    return constant(rng.integers(low, high, shape).astype("int8"), *scales, axis=axis)


def bias(rng, dtype, x, w, count):
    """A bias of int32, of int64 beside int16, small beside the sums."""
    data = rng.integers(-2000, 2000, count).astype("int64" if dtype == "int16" else "int32")
    return constant(data, *(x.scales[0] * scale for scale in w.scales))


def product(dtype, code, kind, x_shape, w_shape, y_shape, axis=0, first=(), **options):
    """Yield a product over its scales; `first` are inputs before the weights, which x follows."""
    rng = np.random.default_rng(SEED)
    depth = int(np.prod(w_shape)) // w_shape[axis]
    for name, own, scales, made in scales_of_products(w_shape[axis], depth):
        x, y = q(dtype, x_shape, own), q(dtype, y_shape, made)
        w = weights(rng, dtype, w_shape, scales, axis, name.startswith("halves"))
        operands = [*first, w, x] if first else [x, w]
        array = spread(rng, dtype, x_shape)
        for has_bias in (False, True):
            more = [bias(rng, dtype, x, w, w_shape[axis])] if has_bias else []
            tensors = [*operands, *more], [y]
            tag = f"{name}, {has_bias}, {options.get('FusedActivationFunction', NONE)}"
            yield case_of(tag, code, *tensors, [array], kind, **options)


@maker("CONV_2D")
def conv(dtype):
    for size, stride, act in ((1, 1, NONE), (3, 2, RELU6)):
        out = -(-8 // stride)
        shapes = (2, 8, 8, 5), (7, size, size, 5), (2, out, out, 7)
        options = {"StrideH": stride, "StrideW": stride, "Padding": SAME}
        options["FusedActivationFunction"] = act
        yield from product(dtype, "CONV_2D", "Conv2DOptions", *shapes, **options)


@maker("DEPTHWISE_CONV_2D")
def depthwise(dtype):
    shapes = (2, 8, 8, 5), (1, 3, 3, 10), (2, 6, 6, 10)
    options = {"StrideH": 1, "StrideW": 1, "Padding": VALID, "DepthMultiplier": 2}
    yield from product(dtype, "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", *shapes, 3, **options)


@maker("TRANSPOSE_CONV")
def transpose_conv(dtype):
    shapes = (1, 6, 6, 5), (7, 3, 3, 5), (1, 12, 12, 7)
    options = {"StrideH": 2, "StrideW": 2, "Padding": SAME}
    sizes = (ints(*shapes[2]),)
    yield from product(
        dtype, "TRANSPOSE_CONV", "TransposeConvOptions", *shapes, first=sizes, **options
    )


@maker("FULLY_CONNECTED")
def fully_connected(dtype):
    for act in (NONE, RELU6):
        shapes = (256, 24), (16, 24), (256, 16)
        options = {"FusedActivationFunction": act}
        yield from product(dtype, "FULLY_CONNECTED", "FullyConnectedOptions", *shapes, **options)


@maker("CONV_3D", "CONV_3D_TRANSPOSE")
def conv_3d(code, dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, (1, 3, 4, 5, 2), Scaled(0.05, 3)), q(dtype, (1, 3, 4, 5, 2), Scaled(0.2))
    w = weights(rng, dtype, (1, 1, 1, 2, 2), (0.02,), 0, False)
    operands = [x, w] if code == "CONV_3D" else [ints(*y.shape), w, x]
    options = {"StrideD": 1, "StrideH": 1, "StrideW": 1, "Padding": VALID}
    arrays = [spread(rng, dtype, x.shape)]
    yield case_of("random", code, operands, [y], arrays, "Conv3DOptions", **options)


@maker("BATCH_MATMUL")
def batch_matmul(dtype):
    rng = np.random.default_rng(SEED)
    for (name, (one, other, made)), adjoint in itertools.product(quants(3), (False, True)):
        shape = (2, 7, 19) if adjoint else (2, 19, 7)
        if not name.startswith("halves"):
            made = Scaled(one.scale * other.scale * 300, made.zero)
        a, b, y = q(dtype, (2, 9, 19), one), q(dtype, shape, other), q(dtype, (2, 9, 7), made)
        arrays = [spread(rng, dtype, a.shape), spread(rng, dtype, b.shape)]
        options = {"AdjY": adjoint}
        tensors = [a, b], [y]
        yield case_of(
            f"{name}, {adjoint}", "BATCH_MATMUL", *tensors, arrays, "BatchMatMulOptions", **options
        )


@maker("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
def pool(code, dtype):
    rng = np.random.default_rng(SEED)
    for (high, wide), pad, act in itertools.product(
        ((1, 2), (2, 2), (3, 5)), (SAME, VALID), (NONE, RELU6)
    ):
        out = (9, 11) if pad == SAME else (10 - high, 12 - wide)
        quant = Scaled(0.05, -7)
        x, y = q(dtype, (2, 9, 11, 6), quant), q(dtype, (2, *out, 6), quant)
        options = {"FilterHeight": high, "FilterWidth": wide, "StrideH": 1, "StrideW": 1}
        options |= {"Padding": pad, "FusedActivationFunction": act}
        arrays = [spread(rng, dtype, x.shape)]
        name = f"{high}x{wide}, {pad}, {act}"
        yield case_of(name, code, [x], [y], arrays, "Pool2DOptions", **options)


@maker("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
def reduction(code, dtype):
    rng = np.random.default_rng(SEED)
    for (name, (own, made)), axes in itertools.product(quants(2), ((1,), (1, 2), (2,))):
        made = own if code in ("REDUCE_MAX", "REDUCE_MIN") else made
        shape = tuple(1 if k in axes else size for k, size in enumerate((64, 2, 6, 5)))
        x, y = q(dtype, (64, 2, 6, 5), own), q(dtype, shape, made)
        tensors = [x, ints(*axes)], [y]
        arrays = [spread(rng, dtype, x.shape)]
        options = {"kind": "ReducerOptions", "KeepDims": True}
        yield case_of(f"{name}, {axes}", code, *tensors, arrays, **options)


@maker("ARG_MAX", "ARG_MIN")
def place_of_extremum(code, dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, (64, 9), Scaled(0.05, 3)), T((64,), "int32")
    arrays = [spread(rng, dtype, x.shape)]
    options = {"kind": "ArgMaxOptions" if code == "ARG_MAX" else "ArgMinOptions", "OutputType": 2}
    yield case_of("rows", code, [x, ints(-1)], [y], arrays, **options)


@maker("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(code, dtype):
    rng = np.random.default_rng(SEED)
    kind = f"{code.title().replace('_', '')}Options"
    sizes = (((5, 7), (11, 9)), ((5, 7), (10, 14)), ((8, 8), (3, 5)), ((1, 640), (1, 1000)))
    flags = ({}, {"AlignCorners": True}, {"HalfPixelCenters": True})
    for (before, after), how in itertools.product(sizes, flags):
        quant = Scaled(0.05, -3)
        x, y = q(dtype, (1, *before, 3), quant), q(dtype, (1, *after, 3), quant)
        name = f"{before} to {after}, {next(iter(how), 'asymmetric')}"
        arrays = [spread(rng, dtype, x.shape)]
        yield case_of(name, code, [x, ints(*after)], [y], arrays, kind, **how)


@maker("CONCATENATION")
def concatenation(dtype):
    x = codes(dtype)
    whole = (1, 2 * x.size)
    for name, (one, other, made) in (*quants(3), ("same", [Scaled(0.05, 3)] * 3)):
        tensors = [q(dtype, x.shape, one), q(dtype, x.shape, other)], [q(dtype, whole, made)]
        yield case_of(name, "CONCATENATION", *tensors, [x, x], "ConcatenationOptions", Axis=1)


@maker("CAST", "BITCAST")
def retyped(code, dtype):
    x = codes(dtype)
    targets = ("float32", "int32") if code == "CAST" else DTYPES
    for other in targets:
        y = T(x.shape, other)
        yield case_of(f"to {other}", code, [q(dtype, x.shape, Scaled(0.05, 3))], [y], [x])


@maker("SELECT", "SELECT_V2")
def select(code, dtype):
    rng = np.random.default_rng(SEED)
    x = q(dtype, (9, 19), Scaled(0.05, 3))
    truth = constant(rng.integers(0, 2, x.shape).astype(bool))
    arrays = [spread(rng, dtype, x.shape) for _ in range(2)]
    yield case_of("same scale", code, [truth, x, x], [x], arrays)


_MATRIX, _IMAGE = (4, 6), (1, 4, 6, 4)


def _moves():
    """The operators that move elements: code, x, other inputs, outputs, options, x's place."""
    pads = constant(np.array([[1, 2], [0, 1]], np.int32))
    edges = constant(np.zeros((2, 2), np.int32))
    one = constant(np.array(1, np.int32))
    return {
        "BATCH_TO_SPACE_ND": ((4, 2, 3, 4), [ints(2, 2), edges], [_IMAGE], {}),
        "BROADCAST_TO": ((1, 6), [ints(4, 6)], [_MATRIX], {}),
        "CUMSUM": (_MATRIX, [one], [_MATRIX], {"kind": "CumsumOptions"}),
        "DEPTH_TO_SPACE": (
            _IMAGE,
            [],
            [(1, 8, 12, 1)],
            {"kind": "DepthToSpaceOptions", "BlockSize": 2},
        ),
        "EXPAND_DIMS": (_MATRIX, [ints(0)], [(1, 4, 6)], {}),
        "GATHER": (_MATRIX, [ints(3, 0)], [(2, 6)], {"kind": "GatherOptions"}),
        "GATHER_ND": (_MATRIX, [constant(np.array([[1], [3]], np.int32))], [(2, 6)], {}),
        "LOCAL_RESPONSE_NORMALIZATION": (
            _IMAGE,
            [],
            [_IMAGE],
            {"kind": "LocalResponseNormalizationOptions", "Radius": 1},
        ),
        "MATRIX_DIAG": ((4,), [], [(4, 4)], {}),
        "MIRROR_PAD": (
            _MATRIX,
            [constant(np.array([[1, 2], [0, 1]], np.int32))],
            [(7, 7)],
            {"kind": "MirrorPadOptions", "Mode": 0},
        ),
        "PAD": (_MATRIX, [pads], [(7, 7)], {}),
        "RESHAPE": (_MATRIX, [ints(3, 8)], [(3, 8)], {"kind": "ReshapeOptions"}),
        "REVERSE_SEQUENCE": (
            _MATRIX,
            [ints(3, 1, 4, 6)],
            [_MATRIX],
            {"kind": "ReverseSequenceOptions", "SeqDim": 1},
        ),
        "REVERSE_V2": (_MATRIX, [ints(1)], [_MATRIX], {}),
        "SLICE": (_MATRIX, [ints(1, 2), ints(2, -1)], [(2, 4)], {}),
        "SPACE_TO_BATCH_ND": (_IMAGE, [ints(2, 2), edges], [(4, 2, 3, 4)], {}),
        "SPACE_TO_DEPTH": (
            _IMAGE,
            [],
            [(1, 2, 3, 16)],
            {"kind": "SpaceToDepthOptions", "BlockSize": 2},
        ),
        "SPLIT_V": (
            _MATRIX,
            [ints(2, 4), ints(1)],
            [(4, 2), (4, 4)],
            {"kind": "SplitVOptions", "NumSplits": 2},
        ),
        "SQUEEZE": ((1, 4, 6), [], [_MATRIX], {"kind": "SqueezeOptions", "SqueezeDims": [0]}),
        "STRIDED_SLICE": (
            _MATRIX,
            [ints(0, 5), ints(4, 0), ints(2, -2)],
            [(2, 3)],
            {"kind": "StridedSliceOptions"},
        ),
        "TILE": (_MATRIX, [ints(2, 1)], [(8, 6)], {}),
        "TRANSPOSE": (_MATRIX, [ints(1, 0)], [(6, 4)], {}),
        "UNPACK": (_MATRIX, [], [(4,)] * 6, {"kind": "UnpackOptions", "Axis": 1, "Num": 6}),
        "ZEROS_LIKE": (_MATRIX, [], [_MATRIX], {}),
    }


MOVES = _moves()


@maker(*MOVES)
def move(code, dtype):
    rng = np.random.default_rng(SEED)
    shape, others, made, options = MOVES[code]
    for quant in (Scaled(0.05, 0), Scaled(0.05, 9)):
        outputs = [q(dtype, one, quant) for one in made]
        tensors = [q(dtype, shape, quant), *others], outputs
        yield case_of(f"zero {quant.zero}", code, *tensors, [spread(rng, dtype, shape)], **options)


@maker("PADV2")
def padv2(dtype):
    rng = np.random.default_rng(SEED)
    quant, pads = Scaled(0.05, 9), constant(np.array([[1, 2], [0, 1]], np.int32))
    x, y = q(dtype, _MATRIX, quant), q(dtype, (7, 7), quant)
    fill = constant(np.array([77], dtype), x.scales[0], zero=x.zeros[0])
    yield case_of("77", "PADV2", [x, pads, fill], [y], [spread(rng, dtype, _MATRIX)])


@maker("SPLIT")
def split(dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, _MATRIX, Scaled(0.05, 9)), q(dtype, (4, 3), Scaled(0.05, 9))
    arrays = [spread(rng, dtype, _MATRIX)]
    yield case_of("halves", "SPLIT", [ints(1), x], [y, y], arrays, "SplitOptions", NumSplits=2)


@maker("PACK", "MATRIX_SET_DIAG", "DYNAMIC_UPDATE_SLICE")
def joined(code, dtype):
    rng = np.random.default_rng(SEED)
    quant = Scaled(0.05, 9)
    other = {"PACK": _MATRIX, "MATRIX_SET_DIAG": (4,), "DYNAMIC_UPDATE_SLICE": (2, 3)}[code]
    made = (2, *_MATRIX) if code == "PACK" else _MATRIX
    more = [ints(1, 2)] if code == "DYNAMIC_UPDATE_SLICE" else []
    inputs = [q(dtype, _MATRIX, quant), q(dtype, other, quant), *more]
    arrays = [spread(rng, dtype, _MATRIX), spread(rng, dtype, other)]
    options = {"kind": "PackOptions", "ValuesCount": 2} if code == "PACK" else {}
    yield case_of("rows", code, inputs, [q(dtype, made, quant)], arrays, **options)


@maker("EMBEDDING_LOOKUP")
def embedding_lookup(dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, _MATRIX, Scaled(0.05, 9)), q(dtype, (3, 6), Scaled(0.05, 9))
    yield case_of(
        "rows", "EMBEDDING_LOOKUP", [ints(3, 0, 3), x], [y], [spread(rng, dtype, _MATRIX)]
    )


@maker("FILL")
def fill(dtype):
    x, y = q(dtype, (), Scaled(0.05, 9)), q(dtype, _MATRIX, Scaled(0.05, 9))
    yield case_of("77", "FILL", [ints(4, 6), x], [y], [np.array(77, dtype)])


@maker("SCATTER_ND")
def scatter_nd(dtype):
    rng = np.random.default_rng(SEED)
    places = constant(np.array([[1], [3]], np.int32))
    x, y = q(dtype, (2, 6), Scaled(0.05, 9)), q(dtype, (5, 6), Scaled(0.05, 9))
    yield case_of("rows", "SCATTER_ND", [places, x, ints(5, 6)], [y], [spread(rng, dtype, (2, 6))])


@maker("SPARSE_TO_DENSE")
def sparse_to_dense(dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, (2,), Scaled(0.05, 9)), q(dtype, (5,), Scaled(0.05, 9))
    rest = constant(np.array(7, dtype), x.scales[0], zero=x.zeros[0])
    inputs = [ints(1, 3), ints(5), x, rest]
    yield case_of("places", "SPARSE_TO_DENSE", inputs, [y], [spread(rng, dtype, (2,))])


@maker("TOPK_V2")
def top_k(dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, (9, 19), Scaled(0.05, 9)), q(dtype, (9, 4), Scaled(0.05, 9))
    inputs = [x, constant(np.array(4, np.int32))]
    yield case_of("rows", "TOPK_V2", inputs, [y, T((9, 4), "int32")], [spread(rng, dtype, x.shape)])


@maker("SEGMENT_SUM")
def segment_sum(dtype):
    rng = np.random.default_rng(SEED)
    x, y = q(dtype, _MATRIX, Scaled(0.05, 9)), q(dtype, (2, 6), Scaled(0.05, 9))
    yield case_of("rows", "SEGMENT_SUM", [x, ints(0, 0, 1, 1)], [y], [spread(rng, dtype, _MATRIX)])


@maker("BUCKETIZE")
def bucketize(dtype):
    x = codes(dtype)
    tensors = [q(dtype, x.shape, Scaled(0.05, 9))], [T(x.shape, "int32")]
    options = {"kind": "BucketizeOptions", "Boundaries": [-1.0, 0.3, 2.0]}
    yield case_of("three", "BUCKETIZE", *tensors, [x], **options)


@maker("UNIQUE")
def unique(dtype):
    x, y = q(dtype, (9,), Scaled(0.05, 9)), q(dtype, (3,), Scaled(0.05, 9))
    array = np.array([1, 1, 5, 1, 5, 5, 7, 7, 1], dtype)
    options = {"kind": "UniqueOptions", "IdxOutType": 2}
    yield case_of("three", "UNIQUE", [x], [y, T((9,), "int32")], [array], **options)
