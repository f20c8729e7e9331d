"""Check the operators of a file of int16 activations and int8 weights (TensorFlow Lite's "16x8").

`walk` asks before it converts. The operators named here have the bits of LiteRT's reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trireme.converters.tflite.file import NO_TENSOR, FileGraph, FileOperator, FileTensor

_Tensors = Sequence[FileTensor | None]
"""The inputs of an operator, then its outputs."""
_UNIT = 2.0**-15


def sixteen_reason(graph: FileGraph, operator: FileOperator) -> str | None:
    """Return why an operator on quantised int16 cannot be converted, None where it can."""
    indexes = (*operator.inputs, *operator.outputs)
    tensors = [None if i == NO_TENSOR else graph.tensors[i] for i in indexes]
    sixteen = [t for t in tensors if t is not None and _is_sixteen(t)]
    if not sixteen:
        return None
    if operator.code not in SIXTEEN_BIT:
        return "the operator has no form on int16"
    quants = [tensor.quant for tensor in sixteen if tensor.quant is not None]
    if any(quant.axis is not None or any(quant.zero_points) for quant in quants):
        return "int16 must have one scale and zero point 0"
    return SIXTEEN_BIT[operator.code](tensors)


def _is_sixteen(tensor: FileTensor) -> bool:
    return tensor.dtype == "int16" and tensor.quant is not None


def _any(tensors: _Tensors) -> str | None:
    return None


def _same(tensors: _Tensors) -> str | None:
    quants = {tensor.quant for tensor in tensors if tensor and _is_sixteen(tensor)}
    return None if len(quants) == 1 else "inputs and output must have the same scale"


def _arithmetic(tensors: _Tensors) -> str | None:
    wrong = [tensor for tensor in tensors if tensor and not _is_sixteen(tensor)]
    return f"{wrong[0].dtype} beside int16 is not supported" if wrong else None


def _product(x: int) -> Callable[[_Tensors], str | None]:
    """Return the check of a product: `x` is its input beside the weights, which are input 1."""

    def reason(tensors: _Tensors) -> str | None:
        at = max(x, 1) + 1
        w, bias = tensors[1], tensors[at] if len(tensors) > at + 1 else None
        ends = (tensors[x], tensors[-1])
        if any(tensor is None or not _is_sixteen(tensor) for tensor in ends):
            return "input and output must both be int16"
        if w is None or w.dtype != "int8" or w.quant is None:
            return f"weights of {w.dtype if w else 'no dtype'} beside int16, expected int8"
        if bias is not None and bias.dtype != "int64":
            return f"a bias of {bias.dtype} beside int16, expected int64"
        return None

    return reason


def _to_unit(tensors: _Tensors) -> str | None:
    y = tensors[-1]
    if y is None or not _is_sixteen(y) or y.quant is None or y.quant.scale != _UNIT:
        return "the output must be int16 of scale 1/32768"
    return None


SIXTEEN_BIT: dict[str, Callable[[_Tensors], str | None]] = {
    "ABS": _arithmetic,
    "ADD": _arithmetic,
    "AVERAGE_POOL_2D": _same,
    "BATCH_TO_SPACE_ND": _same,
    "BROADCAST_TO": _same,
    "CONCATENATION": _same,
    "CONV_2D": _product(0),
    "DEPTHWISE_CONV_2D": _product(0),
    "DEQUANTIZE": _any,
    "DYNAMIC_UPDATE_SLICE": _same,
    "EMBEDDING_LOOKUP": _same,
    "EXPAND_DIMS": _same,
    "FILL": _same,
    "FULLY_CONNECTED": _product(0),
    "GATHER": _same,
    "GATHER_ND": _same,
    "LEAKY_RELU": _arithmetic,
    "LOGISTIC": _to_unit,
    "MATRIX_DIAG": _same,
    "MATRIX_SET_DIAG": _same,
    "MAXIMUM": _same,
    "MAX_POOL_2D": _same,
    "MEAN": _any,
    "MINIMUM": _same,
    "MIRROR_PAD": _same,
    "MUL": _arithmetic,
    "PACK": _same,
    "PAD": _same,
    "PADV2": _same,
    "QUANTIZE": _any,
    "REDUCE_MAX": _same,
    "REDUCE_MIN": _same,
    "RELU": _arithmetic,
    "RELU6": _arithmetic,
    "RESHAPE": _same,
    "RESIZE_NEAREST_NEIGHBOR": _same,
    "REVERSE_SEQUENCE": _same,
    "REVERSE_V2": _same,
    "SELECT": _same,
    "SELECT_V2": _same,
    "SHAPE": _any,
    "SLICE": _same,
    "SOFTMAX": _to_unit,
    "SPACE_TO_BATCH_ND": _same,
    "SPLIT": _same,
    "SPLIT_V": _same,
    "SQRT": _arithmetic,
    "SQUEEZE": _same,
    "STRIDED_SLICE": _same,
    "SUB": _arithmetic,
    "TANH": _to_unit,
    "TILE": _same,
    "TOPK_V2": _same,
    "TRANSPOSE": _same,
    "TRANSPOSE_CONV": _product(2),
    "UNPACK": _same,
}
"""The operators on int16, and what says why one of them is refused."""
