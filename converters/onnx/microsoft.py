"""The com.microsoft ops that ONNX Runtime's optimisers and quantisers write."""

from __future__ import annotations

from trireme.converters.onnx import microsoft_fused as fused
from trireme.converters.onnx import microsoft_quantized as integer
from trireme.converters.onnx import quantized
from trireme.converters.onnx.gather_blocks import gather_block_quantized
from trireme.converters.onnx.microsoft_attention import (
    attention,
    multi_head_attention,
    qattention,
)
from trireme.converters.onnx.microsoft_grouped import group_query_attention, rotary_embedding
from trireme.converters.onnx.microsoft_recurrent import dynamic_quantize_lstm
from trireme.converters.onnx.table import OpEntry, straight

MICROSOFT = "com.microsoft"
BLOCKED = "com.microsoft.nchwc"
"""The domain of ops on channels in blocks, whose size depends on the CPU that saved the file."""

MICROSOFT_TABLE: dict[str, OpEntry] = {
    "Attention": OpEntry("softmax", attention),
    "BiasGelu": OpEntry("gelu", fused.bias_gelu),
    "DequantizeLinear": straight("dequantize_linear"),
    "DynamicQuantizeLSTM": OpEntry("dynamic_range_lstm", dynamic_quantize_lstm),
    "DynamicQuantizeMatMul": OpEntry("matmul", integer.dynamic_quantize_matmul),
    "EmbedLayerNormalization": OpEntry("layer_normalization", fused.embed_layer_normalization),
    "FastGelu": OpEntry("gelu", fused.bias_gelu),
    "FusedConv": OpEntry("conv", fused.fused_conv),
    "FusedGemm": OpEntry("gemm", fused.fused_gemm),
    "FusedMatMul": OpEntry("matmul", fused.fused_matmul),
    "GatherBlockQuantized": OpEntry("gather", gather_block_quantized),
    "Gelu": straight("gelu"),
    "GroupQueryAttention": OpEntry("softmax", group_query_attention),
    "MatMulIntegerToFloat": OpEntry("matmul", integer.matmul_integer_to_float),
    "MatMulNBits": OpEntry("matmul_nbits", integer.matmul_nbits),
    "MultiHeadAttention": OpEntry("softmax", multi_head_attention),
    "NhwcMaxPool": OpEntry("max_pool", integer.nhwc_max_pool),
    "QAttention": OpEntry("softmax", qattention),
    "QGemm": OpEntry("gemm", quantized.qgemm),
    "QLinearAdd": OpEntry("add", quantized.on_real("add", 2)),
    "QLinearAveragePool": OpEntry("average_pool", integer.qlinear_average_pool),
    "QLinearConcat": OpEntry("concat", quantized.qlinear_concat),
    "QLinearConv": OpEntry("conv", integer.qlinear_conv),
    "QLinearGlobalAveragePool": OpEntry("reduce_mean", quantized.qlinear_global_pool),
    "QLinearLeakyRelu": OpEntry("leaky_relu", quantized.on_real("leaky_relu", 1, alpha=0.01)),
    "QLinearMul": OpEntry("mul", quantized.on_real("mul", 2)),
    "QLinearReduceMean": OpEntry("reduce_mean", integer.qlinear_reduce_mean),
    "QLinearSigmoid": OpEntry("sigmoid", quantized.on_real("sigmoid", 1)),
    "QLinearSoftmax": OpEntry("softmax", integer.qlinear_softmax),
    "QLinearWhere": OpEntry("where", integer.qlinear_where),
    "QuantizeLinear": straight("quantize_linear"),
    "QuickGelu": OpEntry("swish", fused.quick_gelu),
    "RotaryEmbedding": OpEntry("concat", rotary_embedding),
    "SkipLayerNormalization": OpEntry("layer_normalization", fused.skip_layer_normalization),
    "SkipSimplifiedLayerNormalization": OpEntry("rms_normalization", fused.skip_rms_normalization),
}
