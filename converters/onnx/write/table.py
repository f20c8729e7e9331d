"""How each op is written as ONNX: as the operator of the same meaning, else by a rule.

By default the operator is the one that the reader's table of names gives, with the same inputs and
attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx

from trireme.converters.onnx.microsoft import MICROSOFT
from trireme.converters.onnx.table import our_name
from trireme.converters.onnx.write.division import floor_div, modulo
from trireme.converters.onnx.write.use import WrittenNode, onnx_dtype
from trireme.ir.graph import Quant, Value
from trireme.ir.op import all_ops, get_op
from trireme.support.dtypes import Array, numpy_dtype

OPSET = 23
"""The opset of every file that is written."""
WriteRule = Callable[[WrittenNode], Sequence[str]]

_GELU = {"approximate": "tanh"}
_ACTIVATIONS: dict[str, Callable[[WrittenNode, str], str]] = {
    "": lambda use, x: x,
    "relu": lambda use, x: use.one("Relu", x),
    "relu6": lambda use, x: use.one("Clip", x, use.scalar(0), use.scalar(6)),
    "relu_n1_to_1": lambda use, x: use.one("Clip", x, use.scalar(-1), use.scalar(1)),
    "tanh": lambda use, x: use.one("Tanh", x),
    "sigmoid": lambda use, x: use.one("Sigmoid", x),
    "hard_sigmoid": lambda use, x: use.one("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    "hard_swish": lambda use, x: use.one("HardSwish", x),
    "swish": lambda use, x: use.one("Mul", x, use.one("Sigmoid", x)),
    "gelu": lambda use, x: use.one("Gelu", x),
    "gelu_tanh": lambda use, x: use.one("Gelu", x, **_GELU),
}
"""How a fused activation is written."""


@cache
def operators() -> dict[str, Any]:
    """Return the schema of ONNX's operator by the name of our op."""
    found = {}
    for name in {one.name for one in onnx.defs.get_all_schemas() if not one.domain}:
        try:
            schema = onnx.defs.get_schema(name, OPSET, "")
        except onnx.defs.SchemaError:  # newer than OPSET
            continue
        if not schema.deprecated:
            found[our_name(name)] = schema
    return found


def rule_of(op: str) -> WriteRule | None:
    """Return how an op is written; None for an op without a form in ONNX."""
    if op in RULES:
        return RULES[op]
    known = get_op(op)
    if op not in operators() or known.has_body or known.effect or known.calls_python:
        return None
    return straight


def written_ops() -> list[str]:
    """Return the names of the ops that can be written."""
    return [op.name for op in all_ops() if rule_of(op.name) is not None]


def straight(use: WrittenNode) -> Sequence[str]:
    """Write an op as the operator of its name, its activation after it."""
    schema = operators()[use.node.op]
    use.check_dtypes(schema)
    attrs = use.attributes(schema)
    made = use.emit(schema.name, use.operands(), len(use.node.outputs), **attrs)
    return [activated(use, made[0]), *made[1:]]


def activated(use: WrittenNode, x: str) -> str:
    """Return x after the fused activation of a node."""
    return _ACTIVATIONS[use.attrs.get("activation") or ""](use, x)


def conv(use: WrittenNode) -> Sequence[str]:
    """Write a convolution; a residual is added before the activation."""
    schema = operators()["conv"]
    use.check_dtypes(schema, 2)
    inputs = [use.operand(0), use.operand(1), _bias(use, schema)]
    y = use.one("Conv", *inputs, **use.attributes(schema))
    return [activated(use, _with_residual(use, y))]


def _bias(use: WrittenNode, schema: Any) -> str:
    """Return the real bias; that of a quantised product has the scales of x times w."""
    x, w, bias = use.value(0), use.value(1), use.value(2)
    is_real = bias is None or bias.quant is not None or bias.dtype == "float32"
    if is_real or bias is None or x is None or w is None or x.quant is None:
        use.check_dtypes(schema, 3)
        return use.operand(2)
    if w.quant is None or bias.dtype != "int32":
        raise use.error(f"a bias of {bias.type} beside quantised inputs has no form in ONNX")
    scales = np.float32(x.quant.scale) * np.array(w.quant.scales, np.float32)
    axis = {"axis": 0} if scales.size > 1 else {}
    scale = use.constant(scales if scales.size > 1 else scales.reshape(()))
    return use.one("DequantizeLinear", use.names.stored(bias.id), scale, **axis)


def _with_residual(use: WrittenNode, y: str) -> str:
    residual = use.operand(3)
    return use.one("Add", y, residual) if residual else y


def fully_connected(use: WrittenNode) -> Sequence[str]:
    """Write x times the transpose of w as Gemm, or as MatMul where x is no matrix."""
    use.check_dtypes(operators()["gemm"], 2)
    x, w = use.value(0), use.value(1)
    if x is None or w is None:
        raise use.error("an input is missing")
    bias = _bias(use, operators()["gemm"])
    if len(x.shape) == 2:
        y = use.one("Gemm", use.operand(0), use.operand(1), bias, transB=1)
    elif x.quant is not None and bias and x.type.is_static:
        y = _rows_by_gemm(use, x, x.quant, bias)
    else:
        y = use.one("MatMul", use.operand(0), use.one("Transpose", use.operand(1), perm=[1, 0]))
        y = use.one("Add", y, bias) if bias else y
    return [activated(use, _with_residual(use, y))]


def _rows_by_gemm(use: WrittenNode, x: Value, quant: Quant, bias: str) -> str:
    """Write the product of the rows of x as Gemm; the stored integers are reshaped.

    ONNX Runtime 1.32 makes a Gemm of MatMul and Add itself. Its reshape of floats then gets a
    QuantizeLinear of int8 with a zero point of uint8, which it refuses.
    """
    *lead, depth = x.type.dims
    rows = use.one("Reshape", use.names.stored(x.id), use.constant(np.array([-1, depth])))
    zero = np.array(quant.zero_point, numpy_dtype(x.dtype))
    scale = use.constant(np.array(quant.scale, np.float32))
    rows = use.one("DequantizeLinear", rows, scale, use.constant(zero))
    y = use.one("Gemm", rows, use.operand(1), bias, transB=1)
    return use.one("Reshape", y, use.constant(np.array([*lead, -1])))


def batch_normalization(use: WrittenNode) -> Sequence[str]:
    """Write batch_normalization; ONNX's has statistics as outputs in training only."""
    if len(use.node.outputs) > 1 and not use.attrs["training_mode"]:
        raise use.error("ONNX's BatchNormalization has one output outside training")
    return straight(use)


def softmax(use: WrittenNode) -> Sequence[str]:
    """Write softmax; ONNX's has no beta, so x is multiplied."""
    schema = operators()["softmax"]
    use.check_dtypes(schema)
    x, beta = use.operand(0), use.attrs["beta"]
    if beta != 1:
        x = use.one("Mul", x, use.scalar(beta))
    return [use.one("Softmax", x, axis=use.attrs["axis"])]


def fused(activation: str) -> WriteRule:
    """Return the rule of an op that is a fused activation elsewhere."""
    return lambda use: [_ACTIVATIONS[activation](use, use.operand(0))]


def swish(use: WrittenNode) -> Sequence[str]:
    """Write x sigmoid(alpha x)."""
    x, alpha = use.operand(0), use.attrs["alpha"]
    inner = x if alpha == 1 else use.one("Mul", x, use.scalar(alpha))
    return [use.one("Mul", x, use.one("Sigmoid", inner))]


def identity(use: WrittenNode) -> Sequence[str]:
    """Write an op that changes no number."""
    return [use.one("Identity", use.operand(0))]


def squared_difference(use: WrittenNode) -> Sequence[str]:
    """Write (a - b) (a - b)."""
    difference = use.one("Sub", use.operand(0), use.operand(1))
    return [use.one("Mul", difference, difference)]


def reverse(use: WrittenNode) -> Sequence[str]:
    """Write a reversal as a Slice of step -1."""
    axes = np.array(use.attrs["axes"], np.int64)
    bounds = [np.full_like(axes, -1), np.full_like(axes, np.iinfo(np.int64).min), axes]
    parts = [use.constant(part) for part in (*bounds, np.full_like(axes, -1))]
    return [use.one("Slice", use.operand(0), *parts)]


def matmul_nbits(use: WrittenNode) -> Sequence[str]:
    """Write matmul_nbits as ONNX Runtime's MatMulNBits; zero points are packed like codes."""
    (a, codes, *_), zeros = use.values(), use.value(3)
    if any(value.quant is not None for value in use.values()):
        raise use.error("quantised values have no form in MatMulNBits")
    columns, blocks, _ = codes.shape
    bits, block = use.attrs["bits"], use.attrs["block_size"]
    depth = a.shape[-1]
    if isinstance(depth, str):
        raise use.error("MatMulNBits has a known depth, and the depth of this node is open")
    inputs = [use.operand(0), use.operand(1), use.operand(2), "", "", use.operand(4)]
    if zeros is not None and zeros.dtype == "uint8":
        if zeros.data is None:
            raise use.error("MatMulNBits has packed zero points, and these are no constant")
        inputs[3] = use.constant(_packed(zeros.data, bits))
    elif zeros is not None:
        inputs[3] = use.operand(3)
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    level = use.attrs["accuracy_level"]
    return [use.one("MatMulNBits", *inputs, domain=MICROSOFT, accuracy_level=level, **attrs)]


def _packed(zeros: Array, bits: int) -> Array:
    """Return zero points [N, blocks] as bytes of several, low bits first, row by row."""
    count = 8 // bits
    rows = np.pad(zeros, [(0, 0), (0, -zeros.shape[1] % count)])
    parts = rows.reshape(len(rows), -1, count)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts << shifts, axis=-1), np.uint8)


def reduce_bool(reduction: str) -> WriteRule:
    """Return the rule of reduce_all or reduce_any: a reduction of int32."""

    def rule(use: WrittenNode) -> Sequence[str]:
        whole = use.one("Cast", use.operand(0), to=onnx_dtype("int32"))
        inputs = [whole, *(use.operand(i) for i in range(1, len(use.node.inputs)))]
        keys = ("keepdims", "noop_with_empty_axes")
        y = use.one(reduction, *inputs, **{key: use.attrs[key] for key in keys})
        return [use.one("Cast", y, to=onnx_dtype("bool"))]

    return rule


RULES: dict[str, WriteRule] = {
    "batch_normalization": batch_normalization,
    "conv": conv,
    "copy": identity,
    "dequantize": identity,
    "floor_div": floor_div,
    "fully_connected": fully_connected,
    "matmul_nbits": matmul_nbits,
    "mod": modulo,
    "not_equal": lambda use: [use.one("Not", use.one("Equal", use.operand(0), use.operand(1)))],
    "quantize": identity,
    "reduce_all": reduce_bool("ReduceMin"),
    "reduce_any": reduce_bool("ReduceMax"),
    "relu6": fused("relu6"),
    "relu_n1_to_1": fused("relu_n1_to_1"),
    "reverse": reverse,
    "rsqrt": lambda use: [use.one("Reciprocal", use.one("Sqrt", use.operand(0)))],
    "softmax": softmax,
    "square": lambda use: [use.one("Mul", use.operand(0), use.operand(0))],
    "squared_difference": squared_difference,
    "swish": swish,
}
"""The ops that are not written as the operator of their name."""
