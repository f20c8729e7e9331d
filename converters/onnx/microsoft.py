"""The com.microsoft ops in quantised models from ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.converters.onnx import quantized
from trireme.converters.onnx.scope import NodeUse
from trireme.converters.onnx.table import OpEntry, straight

MICROSOFT = "com.microsoft"


def fused_matmul(use: NodeUse) -> Sequence[int]:
    """FusedMatMul: alpha times the product; each side's last two axes may be transposed."""
    sides = [_side(use, position, f"trans{name}") for position, name in ((0, "A"), (1, "B"))]
    if any(use.attrs.get(f"transBatch{name}") for name in "AB"):
        raise use.error("transBatchA and transBatchB are not supported")
    y, alpha = use.add("matmul", *sides), use.attrs.get("alpha", 1.0)
    return (y if alpha == 1 else use.add("mul", y, use.constant(alpha, use.type().dtype)),)


def _side(use: NodeUse, position: int, flag: str) -> int:
    rank = len(use.type(position).shape)
    if not use.attrs.get(flag) or rank < 2:
        return use.need(position)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return use.add("transpose", use.need(position), perm=perm)


def bias_gelu(use: NodeUse) -> Sequence[int]:
    """BiasGelu and FastGelu: GELU of x plus an optional bias."""
    x = use.need(0) if use.input(1) is None else use.add("add", use.need(0), use.need(1))
    approximate = "tanh" if use.op == "FastGelu" else "none"
    return (use.add("gelu", x, approximate=approximate),)


MICROSOFT_TABLE: dict[str, OpEntry] = {
    "BiasGelu": OpEntry("gelu", bias_gelu),
    "DequantizeLinear": straight("dequantize_linear"),
    "FastGelu": OpEntry("gelu", bias_gelu),
    "FusedMatMul": OpEntry("matmul", fused_matmul),
    "Gelu": straight("gelu"),
    "QGemm": OpEntry("gemm", quantized.qgemm),
    "QLinearAdd": OpEntry("add", quantized.on_real("add", 2)),
    "QLinearConcat": OpEntry("concat", quantized.qlinear_concat),
    "QLinearGlobalAveragePool": OpEntry("reduce_mean", quantized.qlinear_global_pool),
    "QLinearLeakyRelu": OpEntry("leaky_relu", quantized.on_real("leaky_relu", 1, alpha=0.01)),
    "QLinearMul": OpEntry("mul", quantized.on_real("mul", 2)),
    "QLinearSigmoid": OpEntry("sigmoid", quantized.on_real("sigmoid", 1)),
    "QuantizeLinear": straight("quantize_linear"),
}
