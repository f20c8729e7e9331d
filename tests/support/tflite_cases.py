"""Models of one TFLite operator each, by name: float operators, and what all cases share."""

import struct

import numpy as np
from tflite_builder import Op, T, constant, model, one_op

SEED = 11
RNG = np.random.default_rng(SEED)
NHWC = (1, 9, 11, 6)
SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6, TANH = range(5)


def ints(*values):
    return constant(np.array(values, np.int32))


def floats(*shape):
    return constant(RNG.standard_normal(shape).astype(np.float32))


def q8(dtype, shape, scale, zero):
    """A quantised tensor; the zero point is given for int8 and moved for uint8."""
    return T(shape, dtype, (scale,), (zero + (128 if dtype == "uint8" else 0),))


def weights(dtype, shape, channels=0, axis=0):
    """Quantised constant weights: per channel in int8, one scale and a zero point in uint8."""
    info = np.iinfo(dtype)
    data = RNG.integers(info.min, info.max + 1, shape).astype(dtype)
    if dtype == "uint8" or not channels:
        return constant(data, 0.0123, zero=119 if dtype == "uint8" else 0)
    return constant(data, *RNG.uniform(0.005, 0.02, channels).tolist(), axis=axis)


def bias(x, w):
    scales = tuple(x.scales[0] * s for s in w.scales)
    count = w.shape[w.axis] if len(scales) > 1 else None
    return lambda n: constant(RNG.integers(-900, 900, count or n).astype(np.int32), *scales)


CASES = {}


def case(name, data, tolerance=0.0):
    assert name not in CASES
    CASES[name] = (data, tolerance)


def float_case(name, code, inputs, outputs, kind="", tolerance=1e-5, **options):
    case(name, one_op(code, inputs, outputs, kind, **options), tolerance)


def elementwise():
    for code in (
        "ABS",
        "CEIL",
        "COS",
        "ELU",
        "EXP",
        "FLOOR",
        "HARD_SWISH",
        "LOGISTIC",
        "NEG",
        "RELU",
        "RELU6",
        "RELU_N1_TO_1",
        "RELU_0_TO_1",
        "ROUND",
        "SIGN",
        "SIN",
        "SQUARE",
        "TANH",
    ):
        float_case(code, code, [T((3, 7))], [T((3, 7))])
    float_case("LEAKY_RELU", "LEAKY_RELU", [T((3, 7))], [T((3, 7))], "LeakyReluOptions", Alpha=0.2)
    for approximate in (True, False):
        float_case(
            f"GELU {approximate}",
            "GELU",
            [T((3, 7))],
            [T((3, 7))],
            "GeluOptions",
            tolerance=1e-3,
            Approximate=approximate,
        )
    for code in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV"):
        float_case(code, code, [T((2, 3, 7)), T((3, 1))], [T((2, 3, 7))])
    for code, kind in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul"), ("DIV", "Div")):
        for act in (NONE, RELU, RELU6, RELU_N1_TO_1):
            float_case(
                f"{code} {act}",
                code,
                [T((2, 3, 7)), floats(7)],
                [T((2, 3, 7))],
                f"{kind}Options",
                FusedActivationFunction=act,
            )
    for code in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        float_case(code, code, [T((3, 7)), T((3, 7))], [T((3, 7), "bool")])
    float_case("PRELU", "PRELU", [T((2, 3, 4, 5)), floats(1, 1, 5)], [T((2, 3, 4, 5))])
    squares = floats(3, 7)
    squares.data = np.square(squares.data) + np.float32(1)
    for code in ("LOG", "SQRT", "RSQRT"):
        tensors = [T((3, 7)), squares, T((3, 7)), T((3, 7))]
        case(
            code,
            model(tensors, [Op("ADD", [0, 1], [2], "AddOptions"), Op(code, [2], [3])], [0], [3]),
            1e-5,
        )
    float_case("POW", "POW", [T((3, 7)), constant(np.full((3, 7), 2, np.float32))], [T((3, 7))])
    truth = constant(RNG.integers(0, 2, (3, 7)).astype(bool))
    for code in ("LOGICAL_AND", "LOGICAL_OR"):
        tensors = [T((3, 7)), T((3, 7)), T((3, 7), "bool"), truth, T((3, 7), "bool")]
        operators = [Op("LESS", [0, 1], [2]), Op(code, [2, 3], [4]), Op("LOGICAL_NOT", [4], [5])]
        case(f"{code} LOGICAL_NOT", model([*tensors, T((3, 7), "bool")], operators, [0, 1], [5]))
    for code in ("SELECT", "SELECT_V2"):
        float_case(code, code, [truth, T((3, 7)), T((3, 7))], [T((3, 7))])
    float_case("EMBEDDING_LOOKUP", "EMBEDDING_LOOKUP", [ints(4, 0, 4), floats(5, 3)], [T((3, 3))])
    float_case("CAST", "CAST", [T((3, 7))], [T((3, 7), "int32")])
    float_case("SOFTMAX", "SOFTMAX", [T((3, 7))], [T((3, 7))], "SoftmaxOptions", Beta=1.5)
    float_case("LOG_SOFTMAX", "LOG_SOFTMAX", [T((3, 7))], [T((3, 7))])
    float_case("L2_NORMALIZATION", "L2_NORMALIZATION", [T((3, 7))], [T((3, 7))])


def linear_3d():
    for stride, pad, dilation in ((1, SAME, 1), (2, VALID, 1), (1, SAME, 2)):
        space = [-(-d // stride) for d in (5, 6, 7)]
        if pad == VALID:
            space = [(d - k) // stride + 1 for d, k in zip((5, 6, 7), (2, 3, 3), strict=True)]
        options = {f"Stride{axis}": stride for axis in "DHW"}
        options |= {f"Dilation{axis}Factor": dilation for axis in "DHW"}
        float_case(
            f"CONV_3D {stride} {pad} {dilation}",
            "CONV_3D",
            [T((2, 5, 6, 7, 4)), floats(2, 3, 3, 4, 6), floats(6)],
            [T((2, *space, 6))],
            "Conv3DOptions",
            Padding=pad,
            FusedActivationFunction=RELU if stride == 2 else NONE,
            **options,
        )
    for stride, pad, out, bias in (
        (1, SAME, (3, 4, 5), True),
        (2, SAME, (6, 8, 10), False),
        (2, VALID, (6, 9, 11), True),
    ):
        inputs = [ints(2, *out, 6), floats(2, 3, 3, 6, 4), T((2, 3, 4, 5, 4))]
        float_case(
            f"CONV_3D_TRANSPOSE {stride} {pad}",
            "CONV_3D_TRANSPOSE",
            [*inputs, floats(6)] if bias else inputs,
            [T((2, *out, 6))],
            "Conv3DOptions",
            Padding=pad,
            StrideD=stride,
            StrideH=stride,
            StrideW=stride,
        )


def linear():
    x = T(NHWC)
    for stride, pad, dilation, act in (
        (1, SAME, 1, NONE),
        (2, SAME, 1, RELU6),
        (2, VALID, 1, RELU),
        (1, SAME, 2, NONE),
        (3, SAME, 1, TANH),
    ):
        out = [-(-d // stride) for d in NHWC[1:3]]
        if pad == VALID:
            out = [(d - 3) // stride + 1 for d in NHWC[1:3]]
        options = {
            "StrideH": stride,
            "StrideW": stride,
            "Padding": pad,
            "DilationHFactor": dilation,
            "DilationWFactor": dilation,
            "FusedActivationFunction": act,
        }
        if act == TANH:
            continue
        tag = f"{stride} {pad} {dilation}"
        float_case(
            f"CONV_2D {tag}",
            "CONV_2D",
            [x, floats(8, 3, 3, 6), floats(8)],
            [T((1, *out, 8))],
            "Conv2DOptions",
            **options,
        )
        float_case(
            f"DEPTHWISE {tag}",
            "DEPTHWISE_CONV_2D",
            [x, floats(1, 3, 3, 12), floats(12)],
            [T((1, *out, 12))],
            "DepthwiseConv2DOptions",
            DepthMultiplier=2,
            **options,
        )
        for code in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            pool = {k: v for k, v in options.items() if not k.startswith("Dilation")}
            if dilation == 1:
                float_case(
                    f"{code} {tag}",
                    code,
                    [x],
                    [T((1, *out, 6))],
                    "Pool2DOptions",
                    FilterHeight=3,
                    FilterWidth=3,
                    **pool,
                )
    for stride, pad, out in ((2, SAME, (18, 22)), (2, VALID, (19, 23)), (1, SAME, (9, 11))):
        float_case(
            f"TRANSPOSE_CONV {stride} {pad}",
            "TRANSPOSE_CONV",
            [ints(1, *out, 5), floats(5, 3, 3, 6), x],
            [T((1, *out, 5))],
            "TransposeConvOptions",
            StrideH=stride,
            StrideW=stride,
            Padding=pad,
        )
    for stride, pad, window, out in ((2, 1, 2, (18, 22)), (2, 2, 3, (19, 23)), (1, 1, 3, (9, 11))):
        case(
            f"Convolution2DTransposeBias {stride} {window}",
            one_op(
                "Convolution2DTransposeBias",
                [x, floats(5, window, window, 6), floats(5)],
                [T((1, *out, 5))],
                custom=struct.pack("<3i", pad, stride, stride),
            ),
            1e-5,
        )
    float_case(
        "FULLY_CONNECTED",
        "FULLY_CONNECTED",
        [T((2, 3, 4)), floats(5, 12), floats(5)],
        [T((2, 5))],
        "FullyConnectedOptions",
    )
    float_case(
        "FULLY_CONNECTED keep",
        "FULLY_CONNECTED",
        [T((2, 3, 4)), floats(5, 4), floats(5)],
        [T((2, 3, 5))],
        "FullyConnectedOptions",
        KeepNumDims=True,
    )
    float_case(
        "BATCH_MATMUL",
        "BATCH_MATMUL",
        [T((2, 3, 4)), T((2, 5, 4))],
        [T((2, 3, 5))],
        "BatchMatMulOptions",
        AdjY=True,
    )


def reductions():
    for code in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for keep, out in ((True, (2, 1, 4)), (False, (2, 4))):
            float_case(
                f"{code} {keep}",
                code,
                [T((2, 3, 4)), ints(1)],
                [T(out)],
                "ReducerOptions",
                KeepDims=keep,
            )
    for code in ("ARG_MAX", "ARG_MIN"):
        float_case(
            code,
            code,
            [T((3, 7)), ints(-1)],
            [T((3,), "int64")],
            f"{code.title()}Options".replace("_", ""),
            OutputType=4,
        )


def movement():
    x = T((2, 3, 4))
    float_case("RESHAPE", "RESHAPE", [x, ints(4, -1)], [T((4, 6))], "ReshapeOptions")
    float_case("TRANSPOSE", "TRANSPOSE", [x, ints(2, 0, 1)], [T((4, 2, 3))])
    float_case(
        "CONCATENATION",
        "CONCATENATION",
        [x, T((2, 3, 5))],
        [T((2, 3, 9))],
        "ConcatenationOptions",
        Axis=-1,
    )
    float_case(
        "SPLIT", "SPLIT", [ints(2), x], [T((2, 3, 2)), T((2, 3, 2))], "SplitOptions", NumSplits=2
    )
    float_case(
        "SPLIT_V",
        "SPLIT_V",
        [x, ints(1, -1), ints(2)],
        [T((2, 3, 1)), T((2, 3, 3))],
        "SplitVOptions",
        NumSplits=2,
    )
    float_case("PACK", "PACK", [x, x], [T((2, 2, 3, 4))], "PackOptions", Axis=1, ValuesCount=2)
    float_case("UNPACK", "UNPACK", [x], [T((2, 4))] * 3, "UnpackOptions", Axis=1, Num=3)
    float_case("EXPAND_DIMS", "EXPAND_DIMS", [x, ints(-2)], [T((2, 3, 1, 4))])
    float_case("SQUEEZE", "SQUEEZE", [T((1, 3, 1))], [T((3, 1))], "SqueezeOptions", SqueezeDims=[0])
    float_case("GATHER", "GATHER", [x, ints(3, 0)], [T((2, 3, 2))], "GatherOptions", Axis=2)
    float_case(
        "GATHER_ND", "GATHER_ND", [x, constant(np.array([[1, 2], [0, 0]], np.int32))], [T((2, 4))]
    )
    pads = constant(np.array([[0, 1], [2, 0], [1, 1]], np.int32))
    float_case("PAD", "PAD", [x, pads], [T((3, 5, 6))])
    float_case("PADV2", "PADV2", [x, pads, floats()], [T((3, 5, 6))])
    for mode in (0, 1):
        float_case(
            f"MIRROR_PAD {mode}",
            "MIRROR_PAD",
            [x, pads],
            [T((3, 5, 6))],
            "MirrorPadOptions",
            Mode=mode,
        )
    float_case("SLICE", "SLICE", [x, ints(0, 1, 1), ints(-1, 2, 2)], [T((2, 2, 2))])
    for tag, out, options in (
        ("plain", (1, 1, 2), {}),
        ("begin", (2, 1, 2), {"BeginMask": 1, "EndMask": 1}),
        ("shrink", (1, 2), {"ShrinkAxisMask": 2}),
        ("new axis", (1, 1, 1, 4), {"NewAxisMask": 2}),
        ("ellipsis", (1, 3, 2), {"EllipsisMask": 2}),
    ):
        float_case(
            f"STRIDED_SLICE {tag}",
            "STRIDED_SLICE",
            [x, ints(0, 1, 3), ints(1, 2, -6), ints(1, 1, -2)]
            if tag != "new axis"
            else [x, ints(0, 0, 1), ints(1, 0, 2), ints(1, 1, 1)],
            [T(out)],
            "StridedSliceOptions",
            **options,
        )
    float_case("TILE", "TILE", [x, ints(1, 2, 1)], [T((2, 6, 4))])
    float_case("BROADCAST_TO", "BROADCAST_TO", [T((3, 1)), ints(2, 3, 4)], [T((2, 3, 4))])
    float_case(
        "SPACE_TO_DEPTH",
        "SPACE_TO_DEPTH",
        [T((1, 4, 6, 3))],
        [T((1, 2, 3, 12))],
        "SpaceToDepthOptions",
        BlockSize=2,
    )
    float_case(
        "DEPTH_TO_SPACE",
        "DEPTH_TO_SPACE",
        [T((1, 2, 3, 12))],
        [T((1, 4, 6, 3))],
        "DepthToSpaceOptions",
        BlockSize=2,
    )
    edges = constant(np.array([[1, 0], [0, 2]], np.int32))
    float_case(
        "SPACE_TO_BATCH_ND",
        "SPACE_TO_BATCH_ND",
        [T((2, 5, 4, 3)), ints(2, 3), edges],
        [T((12, 3, 2, 3))],
    )
    float_case(
        "BATCH_TO_SPACE_ND",
        "BATCH_TO_SPACE_ND",
        [T((12, 3, 2, 3)), ints(2, 3), edges],
        [T((2, 5, 4, 3))],
    )


def images():
    for how in ({}, {"AlignCorners": True}, {"HalfPixelCenters": True}):
        tag = next(iter(how), "asymmetric")
        for dtype in ("float32", "int8"):
            x, y = T((1, 5, 7, 3), dtype), T((1, 11, 9, 3), dtype)
            if dtype == "int8":
                x, y = q8("int8", x.shape, 0.05, -3), q8("int8", y.shape, 0.05, -3)
            for code, kind in (
                ("RESIZE_BILINEAR", "ResizeBilinear"),
                ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor"),
            ):
                case(
                    f"{code} {tag} {dtype}",
                    one_op(code, [x, ints(11, 9)], [y], f"{kind}Options", **how),
                    1e-5 if dtype == "float32" else 0,
                )


def ordering():
    x = T((2, 3, 4))
    float_case("ADD_N", "ADD_N", [x, x, x], [x])
    float_case("ATAN2", "ATAN2", [x, x], [x])
    for flags in ({}, {"Exclusive": True}, {"Reverse": True}):
        float_case(
            f"CUMSUM {next(iter(flags), 'plain')}",
            "CUMSUM",
            [x, ints(1)],
            [x],
            "CumsumOptions",
            **flags,
        )
    float_case("FILL", "FILL", [ints(2, 3), T(())], [T((2, 3))])
    float_case("FLOOR_MOD", "FLOOR_MOD", [x, T((4,))], [x], tolerance=1e-4)
    float_case(
        "LOCAL_RESPONSE_NORMALIZATION",
        "LOCAL_RESPONSE_NORMALIZATION",
        [T((1, 2, 3, 9))],
        [T((1, 2, 3, 9))],
        "LocalResponseNormalizationOptions",
        Radius=2,
        Alpha=0.3,
        Beta=0.6,
        Bias=1.5,
    )
    tensors = [
        x,
        ints(-1),
        T((2, 3), "int32"),
        constant(np.array(5, np.int32)),
        floats(),
        floats(),
        T((2, 3, 5)),
    ]
    operators = [
        Op("ARG_MAX", [0, 1], [2], "ArgMaxOptions", {"OutputType": 2}),
        Op("ONE_HOT", [2, 3, 4, 5], [6], "OneHotOptions", {"Axis": -1}),
    ]
    case("ONE_HOT", model(tensors, operators, [0], [6]))
    scalars = [constant(np.array(v, np.int32)) for v in (3, 20, 4)]
    tensors = [*scalars, T((5,), "int32"), T((2, 5)), T((5,)), T((2, 5))]
    operators = [
        Op("RANGE", [0, 1, 2], [3], "RangeOptions"),
        Op("CAST", [3], [5]),
        Op("ADD", [4, 5], [6], "AddOptions"),
    ]
    case("RANGE", model(tensors, operators, [4], [6]))
    for code in ("REDUCE_ANY", "REDUCE_ALL"):
        tensors = [x, x, T((2, 3, 4), "bool"), ints(1), T((2, 4), "bool")]
        operators = [Op("LESS", [0, 1], [2]), Op(code, [2, 3], [4], "ReducerOptions")]
        case(code, model(tensors, operators, [0, 1], [4]))
    float_case("REVERSE_V2", "REVERSE_V2", [x, ints(1)], [x])
    float_case(
        "REVERSE_SEQUENCE",
        "REVERSE_SEQUENCE",
        [x, ints(3, 1)],
        [x],
        "ReverseSequenceOptions",
        SeqDim=1,
        BatchDim=0,
    )
    places = constant(np.array([[1], [3], [1]], np.int32))
    float_case("SCATTER_ND", "SCATTER_ND", [places, T((3, 2)), ints(5, 2)], [T((5, 2))])
    float_case("SHAPE", "SHAPE", [x], [T((3,), "int32")], "ShapeOptions", OutType=2)
    float_case("RANK", "RANK", [x], [T((), "int32")])
    float_case(
        "TOPK_V2",
        "TOPK_V2",
        [x, constant(np.array(2, np.int32))],
        [T((2, 3, 2)), T((2, 3, 2), "int32")],
    )
    float_case("ZEROS_LIKE", "ZEROS_LIKE", [x], [x])


elementwise()
ordering()
linear()
reductions()
movement()
images()
linear_3d()
