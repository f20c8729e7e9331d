"""Where integers differ from LiteRT's reference kernels and what is refused, by operator and dtype.

`test_integer_ops` holds these tables to the truth in both directions, and the how-to to them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """The largest difference from LiteRT's reference kernel over the cases, in steps, and why."""

    most: int
    reason: str


def _both(most: int, reason: str, *codes: str) -> dict[tuple[str, str], Difference]:
    """The same difference of int8 and uint8."""
    dtypes = ("int8", "uint8")
    return {(code, dtype): Difference(most, reason) for code in codes for dtype in dtypes}


DIFFERENCES: dict[tuple[str, str], Difference] = {
    **_both(250, "LiteRT shifts a small quotient by over 31 bits; else one step", "DIV"),
    **_both(5, "LiteRT has fixed-point steps, here float32 is rounded once", "LOG_SOFTMAX"),
    ("NEG", "int8"): Difference(255, "LiteRT negates stored integers, whatever the scales"),
    ("RESIZE_BILINEAR", "uint8"): Difference(1, "LiteRT interpolates in floats"),
    **_both(1, "LiteRT's exponentials and sums have other bits", "SOFTMAX"),
    ("SUM", "int8"): Difference(255, "LiteRT gives -1 everywhere"),
}

_EIGHT, _SIXTEEN = ("int8", "uint8"), ("int16",)
REFUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("BITCAST", "CAST", "UNIQUE"), (*_EIGHT, *_SIXTEEN)),
    "L2_NORMALIZATION": _EIGHT,
    **dict.fromkeys(("FLOOR_DIV", "FLOOR_MOD", "REDUCE_PROD"), ("int8", "int16")),
    **dict.fromkeys(
        (
            "BATCH_MATMUL",
            "CONCATENATION",
            "DIV",
            "EQUAL",
            "EXP",
            "GELU",
            "GREATER",
            "GREATER_EQUAL",
            "LESS",
            "LESS_EQUAL",
            "LOG",
            "NEG",
            "NOT_EQUAL",
            "PRELU",
            "RESIZE_BILINEAR",
            "RSQRT",
            "SUM",
        ),
        _SIXTEEN,
    ),
}
"""The dtypes of an operator that LiteRT's reference kernels run and that are refused here."""

FLOATS_IN_LITERT = (
    "ADD_N",
    "ATAN2",
    "BUCKETIZE",
    "CEIL",
    "CONV_3D",
    "CONV_3D_TRANSPOSE",
    "COS",
    "CUMSUM",
    "ELU",
    "FLOOR",
    "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION",
    "POW",
    "REDUCE_ALL",
    "REDUCE_ANY",
    "ROUND",
    "SEGMENT_SUM",
    "SIGN",
    "SIN",
    "SQUARE",
    "ZEROS_LIKE",
)
"""The operators whose cases LiteRT's reference kernels refuse for each dtype."""

NO_INTEGERS: dict[str, str] = {
    **dict.fromkeys(
        ("CALL", "CALL_ONCE", "IF", "STABLEHLO_COMPOSITE", "WHILE"),
        "control flow: its subgraphs compute",
    ),
    **dict.fromkeys(("ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE"), "a state"),
    **dict.fromkeys(("BROADCAST_ARGS", "RANGE", "RANK", "SHAPE", "ONE_HOT"), "plain integers"),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "WHERE"), "truth values"),
    **dict.fromkeys(("COMPLEX_ABS", "IMAG", "REAL", "RFFT2D"), "complex numbers"),
    **dict.fromkeys(
        (
            "BIDIRECTIONAL_SEQUENCE_LSTM",
            "BIDIRECTIONAL_SEQUENCE_RNN",
            "LSTM",
            "RNN",
            "SVDF",
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            "UNIDIRECTIONAL_SEQUENCE_RNN",
        ),
        "layers with states: test_recurrent",
    ),
    **dict.fromkeys(
        (
            "STABLEHLO_ADD",
            "STABLEHLO_MAXIMUM",
            "STABLEHLO_MINIMUM",
            "STABLEHLO_MULTIPLY",
            "STABLEHLO_SCATTER",
            "UNSORTED_SEGMENT_MAX",
            "UNSORTED_SEGMENT_MIN",
            "UNSORTED_SEGMENT_PROD",
            "UNSORTED_SEGMENT_SUM",
        ),
        "LiteRT's reference kernels have no quantised form",
    ),
    "BITWISE_XOR": "bits",
    "Convolution2DTransposeBias": "floats, and only LiteRT's XNNPACK delegate runs it",
    "DENSIFY": "constants: test_sparse",
    "NON_MAX_SUPPRESSION_V4": "floats",
    "NON_MAX_SUPPRESSION_V5": "floats",
    "TFLite_Detection_PostProcess": "floats: quantised inputs are dequantised first",
}
"""The operators without cases of quantised values, and why."""
