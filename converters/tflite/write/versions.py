"""The versions of TensorFlow Lite's operators, and the oldest runtime that has each version.

A runtime refuses a version that it does not know. So each operator gets the least version that has
the dtypes, ranks and options at hand.

Source: TensorFlow Lite, tools/versioning: op_version.cc, runtime_version.cc
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from trireme.converters.tflite.write.records import WrittenOperator, WrittenTensor

Condition = Callable[[WrittenOperator, Sequence[WrittenTensor]], bool]
Rows = tuple[tuple[int, Condition], ...]


def _dtype(*dtypes: str, at: int = 0) -> Condition:
    """Whether an input has one of these dtypes."""
    return lambda op, tensors: tensors[op.inputs[at]].dtype in dtypes


def _sixteen(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    """Whether input 0 is quantised int16."""
    x = tensors[op.inputs[0]]
    return x.dtype == "int16" and x.quant is not None


def _rank(above: int) -> Condition:
    """Whether input 0 has more axes than this."""
    return lambda op, tensors: len(tensors[op.inputs[0]].shape) > above


def _broadcasts(above: int) -> Condition:
    """Whether two inputs of other shapes meet, one of more axes than this."""

    def test(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
        a, b = (tensors[index].shape for index in op.inputs[:2])
        return a != b and max(len(a), len(b)) > above

    return test


def _option(name: str) -> Condition:
    return lambda op, tensors: bool(op.options.get(name))


def _dilated(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    factors = (op.options.get(f"Dilation{axis}Factor", 1) for axis in "HW")
    return any(factor != 1 for factor in factors)


def _grouped(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    x, w = (tensors[index].shape for index in op.inputs[:2])
    return x[-1] != w[-1]


def _hybrid(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    """Whether floats meet int8 weights."""
    x, w = (tensors[index] for index in op.inputs[:2])
    return x.dtype == "float32" and w.dtype == "int8"


def _hybrid_channels(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    """Whether floats meet int8 weights with a scale a channel."""
    quant = tensors[op.inputs[1]].quant
    return _hybrid(op, tensors) and quant is not None and quant.axis is not None


def _inputs(count: int) -> Condition:
    return lambda op, tensors: len([i for i in op.inputs if i >= 0]) == count


def _grows(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    """Whether a product's scale is 1 or more."""
    quants = [tensors[index].quant for index in (*op.inputs[:2], *op.outputs[:1])]
    if any(quant is None for quant in quants):
        return False
    a, b, y = (quant.scale for quant in quants if quant is not None)
    return a * b / y >= 1


def _per_channel(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    quants = (tensors[index].quant for index in (*op.inputs[:1], *op.outputs[:1]))
    return any(quant is not None and quant.axis is not None for quant in quants)


def _to_sixteen(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> bool:
    return tensors[op.outputs[0]].dtype == "int16"


def _cast(*dtypes: str) -> Condition:
    return lambda op, tensors: any(
        tensors[index].dtype in dtypes for index in (op.inputs[0], op.outputs[0])
    )


_8 = (2, _dtype("int8"))
_BYTES = (2, _dtype("int8", "uint8"))
_ONE_MORE = (
    "AVERAGE_POOL_2D",
    "BATCH_MATMUL",
    "DEPTH_TO_SPACE",
    "EXP",
    "GREATER",
    "LESS_EQUAL",
    "LOG",
    "LOGISTIC",
    "LOG_SOFTMAX",
    "MAX_POOL_2D",
    "MEAN",
    "MIRROR_PAD",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_PROD",
    "RELU6",
    "RSQRT",
    "SOFTMAX",
    "SPACE_TO_DEPTH",
    "SPLIT_V",
    "SQRT",
    "SQUARED_DIFFERENCE",
    "SUM",
    "TANH",
    "TOPK_V2",
)
"""Operators whose version 2 brought int8, and that have no other version here."""
_ROWS: dict[str, Rows] = {
    "ABS": ((5, _dtype("int32")), (4, _dtype("int16")), _BYTES),
    "ADD": ((6, _dtype("float16")), (3, _sixteen), (5, _dtype("int16")), (4, _dtype("int64")), _8),
    "ARG_MAX": ((3, _dtype("bool")), _8),
    "ARG_MIN": ((3, _dtype("bool")), _8),
    "BATCH_TO_SPACE_ND": (
        (4, _sixteen),
        (3, lambda op, tensors: len(tensors[op.inputs[0]].shape) != 4),
        _8,
    ),
    "BROADCAST_TO": ((3, _dtype("int8", "int16")), (2, lambda op, tensors: True)),
    "CAST": (
        (5, _cast("float64", "float16")),
        (4, _cast("uint16")),
        (3, _cast("int8")),
        (2, _cast("uint32")),
    ),
    "CONCATENATION": ((4, _dtype("uint32")), (3, _dtype("int16")), _8),
    "CONV_2D": (
        (6, _grouped),
        (4, _sixteen),
        (5, _hybrid_channels),
        (2, _hybrid),
        (3, _dtype("int8")),
    ),
    "DEPTHWISE_CONV_2D": (
        (5, _sixteen),
        (6, _hybrid_channels),
        (4, _hybrid),
        (3, _dtype("int8")),
        (2, _dilated),
    ),
    "DEQUANTIZE": (
        (3, _dtype("float16", "int16")),
        (5, lambda op, t: _8[1](op, t) and _per_channel(op, t)),
        _8,
    ),
    "DIV": ((2, _broadcasts(4)),),
    "EQUAL": ((5, _dtype("int16")), _8),
    "FILL": (
        (4, _dtype("float16", at=1)),
        (3, _dtype("int8", "int16", at=1)),
        (2, _dtype("bool", at=1)),
    ),
    "FLOOR_DIV": ((3, _dtype("int16", "int8")), (2, _dtype("float32"))),
    "FLOOR_MOD": ((2, _dtype("int16", "int8")),),
    "FULLY_CONNECTED": (
        (7, _sixteen),
        (12, _hybrid_channels),
        (9, _option("AsymmetricQuantizeInputs")),
        (6, _inputs(2)),
        (5, _option("KeepNumDims")),
        (3, _hybrid),
        (4, _dtype("int8")),
    ),
    "GATHER": ((5, _option("BatchDims")), (4, _dtype("int16")), (3, _dtype("bool")), _8),
    "GATHER_ND": ((5, _dtype("bool")), (3, _dtype("int16"))),
    "GELU": (_BYTES,),
    "LEAKY_RELU": ((2, _sixteen),),
    "GREATER_EQUAL": ((3, _dtype("int16")), _8),
    "LESS": ((3, _dtype("int16")), _8),
    "MAXIMUM": ((4, _dtype("int16")), (3, _broadcasts(4)), _8),
    "MINIMUM": ((4, _dtype("int16")), (3, _broadcasts(4)), _8),
    "MUL": (
        (8, _dtype("float16")),
        (4, _sixteen),
        (7, _dtype("int16", "uint32")),
        (6, _dtype("complex64")),
        (5, _dtype("int64")),
        (3, _grows),
        _8,
    ),
    "NOT_EQUAL": ((4, _dtype("int16")), _8),
    "PAD": ((5, _dtype("bool")), (4, _rank(4)), (3, _dtype("int16")), _8),
    "PADV2": ((5, _dtype("bool")), (4, _rank(4)), (3, _dtype("int16")), _8),
    "QUANTIZE": ((3, _per_channel), (2, _to_sixteen)),
    "RANGE": ((2, _dtype("int64")),),
    "RELU": ((3, _sixteen), _BYTES),
    "RESIZE_BILINEAR": ((3, _option("HalfPixelCenters")), _8),
    "RESIZE_NEAREST_NEIGHBOR": (
        (3, _option("HalfPixelCenters")),
        (3, _option("AlignCorners")),
        _8,
    ),
    "REVERSE_V2": ((3, _dtype("int8")), (2, _dtype("bool"))),
    "SIGN": ((2, _dtype("int32")),),
    "SLICE": ((6, _dtype("uint32")), (5, _rank(4)), (4, _dtype("int16")), _8),
    "SPACE_TO_BATCH_ND": (
        (4, _sixteen),
        (3, lambda op, tensors: len(tensors[op.inputs[0]].shape) != 4),
        _8,
    ),
    "SPLIT": ((4, _dtype("int16", at=1)), (3, _dtype("int32", at=1)), (2, _dtype("int8", at=1))),
    "STRIDED_SLICE": ((7, _dtype("uint32")), (4, _rank(4)), (3, _dtype("bool")), _8),
    "SUB": ((5, _sixteen), (4, _dtype("int64")), (3, _broadcasts(4)), _8),
    "TILE": ((3, _dtype("int8")),),
    "TRANSPOSE": (
        (8, _rank(6)),
        (6, _rank(5)),
        (5, _dtype("int16")),
        (4, _rank(4)),
        (3, _dtype("bool")),
        _8,
    ),
    "TRANSPOSE_CONV": (
        (4, _option("FusedActivationFunction")),
        (3, _inputs(4)),
        (2, _dtype("int8", at=1)),
    ),
} | dict.fromkeys(_ONE_MORE, ((3, _sixteen), _8))
"""By operator, the versions above 1 with their conditions; the first that holds counts."""

_RUNTIMES: Mapping[str, str] = {
    "ABS": "1.13.0 2.4.0 2.5.0 2.6.0 2.12.0",
    "ADD": "1.5.0 1.14.0 2.4.0 2.6.0 2.13.0 2.23.0",
    "ARG_MAX": "1.9.0 1.14.0 2.9.0",
    "ARG_MIN": "1.9.0 1.14.0 2.9.0",
    "ATAN2": "2.10.0",
    "AVERAGE_POOL_2D": "1.5.0 1.14.0 2.3.0",
    "BATCH_MATMUL": "2.3.0 2.3.0 2.4.0 2.5.0",
    "BATCH_TO_SPACE_ND": "1.6.0 1.14.0 2.3.0 2.12.0",
    "BITWISE_XOR": "2.13.0",
    "BROADCAST_TO": "2.5.0 2.5.0 2.5.0",
    "CAST": "1.5.0 2.7.0 2.8.0 2.9.0 2.12.0",
    "CEIL": "1.14.0",
    "COMPLEX_ABS": "2.5.0",
    "CONCATENATION": "1.5.0 1.14.0 2.3.0 2.14.0",
    "CONV_2D": "1.5.0 1.14.0 1.14.0 2.3.0 2.4.0 2.9.0",
    "CONV_3D": "2.5.0",
    "COS": "1.14.0",
    "CUMSUM": "2.4.0",
    "DEPTHWISE_CONV_2D": "1.5.0 1.12.0 1.14.0 2.2.0 2.3.0 2.3.0",
    "DEPTH_TO_SPACE": "2.1.0 2.5.0",
    "DEQUANTIZE": "1.13.1 1.14.0 1.15.0 2.2.0 2.7.0",
    "DIV": "1.6.0 2.3.0",
    "ELU": "1.14.0",
    "EQUAL": "1.14.0 1.14.0 2.3.0 2.13.0 2.21.0",
    "EXP": "1.7.0 2.12.0",
    "EXPAND_DIMS": "1.10.0",
    "FILL": "1.13.0 2.3.0 2.5.0 2.12.0",
    "FLOOR": "1.9.0",
    "FLOOR_DIV": "1.14.0 1.14.0 2.13.0",
    "FLOOR_MOD": "1.13.0 2.13.0",
    "FULLY_CONNECTED": "1.5.0 1.10.0 1.14.0 1.14.0 2.0.0 2.1.0 2.3.0 2.3.0 2.3.0 2.11.0 2.15.0 "
    "2.17.0",
    "GATHER": "1.6.0 1.14.0 1.15.0 2.4.0 2.5.0",
    "GATHER_ND": "1.14.0 2.3.0 2.5.0 2.13.0 2.16.0",
    "GELU": "2.9.0 2.9.0",
    "GREATER": "1.14.0 1.14.0",
    "GREATER_EQUAL": "1.14.0 1.14.0 2.13.0",
    "HARD_SWISH": "1.15.0",
    "IMAG": "2.5.0",
    "LEAKY_RELU": "1.13.1 2.3.0",
    "LESS": "1.14.0 1.14.0 2.13.0",
    "LESS_EQUAL": "1.14.0 1.14.0",
    "LOCAL_RESPONSE_NORMALIZATION": "1.5.0",
    "LOG": "1.14.0 2.15.0",
    "LOGICAL_AND": "1.11.0",
    "LOGICAL_NOT": "1.11.0",
    "LOGICAL_OR": "1.11.0",
    "LOGISTIC": "1.14.0 1.14.0 2.3.0",
    "LOG_SOFTMAX": "1.14.0 1.14.0",
    "MAXIMUM": "1.14.0 1.14.0 2.3.0 2.3.0",
    "MAX_POOL_2D": "1.5.0 1.14.0 2.3.0",
    "MEAN": "1.6.0 1.14.0 2.4.0",
    "MINIMUM": "1.14.0 1.14.0 2.3.0 2.3.0",
    "MIRROR_PAD": "1.13.1 2.3.0 2.12.0",
    "MUL": "1.5.0 1.14.0 1.15.0 2.3.0 2.6.0 2.11.0 2.13.0 2.23.0",
    "NEG": "1.9.0",
    "NOT_EQUAL": "1.14.0 1.14.0 2.3.0 2.21.0",
    "ONE_HOT": "1.11.0",
    "PAD": "1.5.0 1.14.0 2.4.0 2.6.0 2.20.0",
    "PADV2": "1.9.0 1.14.0 2.4.0 2.6.0 2.20.0",
    "POW": "1.10.0",
    "PRELU": "1.8.0",
    "QUANTIZE": "1.14.0 1.15.0 2.7.0",
    "RANGE": "1.13.0 2.14.0",
    "REAL": "2.5.0",
    "REDUCE_ALL": "2.6.0",
    "REDUCE_ANY": "1.11.0",
    "REDUCE_MAX": "1.11.0 1.14.0 2.5.0",
    "REDUCE_MIN": "1.11.0 1.14.0 2.5.0",
    "REDUCE_PROD": "1.11.0 2.6.0",
    "RELU": "1.5.0 2.1.0 2.5.0",
    "RELU6": "1.5.0 1.14.0 2.5.0",
    "RELU_N1_TO_1": "1.5.0",
    "RESHAPE": "1.5.0",
    "RESIZE_BILINEAR": "1.7.0 1.14.0 2.2.0",
    "RESIZE_NEAREST_NEIGHBOR": "1.13.1 1.14.0 2.3.0",
    "REVERSE_SEQUENCE": "1.14.0",
    "REVERSE_V2": "1.14.0 2.2.0 2.5.0",
    "RFFT2D": "2.5.0",
    "ROUND": "1.14.0",
    "RSQRT": "1.10.0 2.5.0",
    "SELECT_V2": "2.2.0 2.12.0",
    "SHAPE": "1.10.0",
    "SIGN": "2.11.0 2.12.0",
    "SIN": "1.9.0",
    "SLICE": "1.14.0 1.14.0 1.14.0 2.4.0 2.5.0 2.14.0",
    "SOFTMAX": "1.5.0 1.14.0 2.3.0",
    "SPACE_TO_BATCH_ND": "1.6.0 1.14.0 2.3.0 2.12.0",
    "SPACE_TO_DEPTH": "1.5.0 1.14.0",
    "SPLIT": "1.5.0 1.14.0 1.14.0 2.3.0",
    "SPLIT_V": "1.13.1 2.3.0",
    "SQRT": "1.10.0 2.21.0",
    "SQUARE": "1.12.0",
    "SQUARED_DIFFERENCE": "1.13.1 2.5.0",
    "SQUEEZE": "1.6.0 2.5.0",
    "STRIDED_SLICE": "1.6.0 1.14.0 2.1.0 2.2.0 2.5.0 2.6.0 2.14.0",
    "SUB": "1.6.0 1.14.0 2.3.0 2.4.0 2.4.0",
    "SUM": "1.10.0 1.15.0",
    "TANH": "1.14.0 1.14.0 2.3.0",
    "TILE": "1.10.1 2.2.0 2.8.0",
    "TOPK_V2": "1.7.0 1.14.0 2.13.0",
    "TRANSPOSE": "1.6.0 1.14.0 1.15.0 2.3.0 2.4.0 2.12.0 2.14.4 2.22.0",
    "TRANSPOSE_CONV": "1.9.0 2.2.0 2.3.0 2.13.0",
}
"""By operator, the runtimes that brought its versions, from version 1 on."""


def version_of(op: WrittenOperator, tensors: Sequence[WrittenTensor]) -> int:
    """Return the least version of an operator that has its dtypes, ranks and options."""
    rows = _ROWS.get(op.code, ())
    return next((version for version, holds in rows if holds(op, tensors)), 1)


def runtime_version(codes: Iterable[tuple[str, int]]) -> str:
    """Return the oldest runtime that has operators in these versions; "" where none is known."""
    known = (_RUNTIMES.get(code, "").split()[version - 1 :] for code, version in codes)
    return max((one[0] for one in known if one), key=_parts, default="")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
