"""Quantised arithmetic, in one place: every reference and device takes its integers from here.

A function `..._params(call)` lowers one quantised node to plain integers (multipliers, shifts, zero
points, clamp limits). They are a frozen dataclass whose docstring is the whole formula. Unary ops
on 8-bit types become tables of 256 entries. Implementations of the formulas agree bit for bit, and
agree with LiteRT's reference kernels wherever those work on integers.

A node that cannot be lowered is a GraphError with a sentence that a device can pass on.
"""

from trireme.ops.integer.arithmetic import (
    divide_rounding,
    multiply_by_quantized,
    multiply_rounding_once,
    quantize_multiplier,
    quantize_multipliers,
    requantize,
    round_half_away,
    rounding_divide_by_power_of_two,
    rounding_doubling_high_multiply,
)
from trireme.ops.integer.linear import (
    AddParams,
    FloatSumParams,
    LinearParams,
    MulParams,
    PreluParams,
    ReduceParams,
    add_params,
    conv_params,
    float_sum_params,
    fully_connected_params,
    makes_floats,
    matmul_params,
    mul_params,
    prelu_params,
    reduce_mean_params,
    reduce_sum_params,
    sub_params,
)
from trireme.ops.integer.select import (
    PoolParams,
    ResizeAxis,
    pad_value,
    pool_params,
    resize_axis,
    resize_reason,
    same_quant,
)
from trireme.ops.integer.tables import (
    SoftmaxParams,
    concat_tables,
    lookup,
    softmax_params,
    unary_table,
)
from trireme.ops.integer.types import clamp_limits, dequantized, dtype_limits, quant_of, quantized

__all__ = [
    "AddParams",
    "FloatSumParams",
    "LinearParams",
    "MulParams",
    "PoolParams",
    "PreluParams",
    "ReduceParams",
    "ResizeAxis",
    "SoftmaxParams",
    "add_params",
    "clamp_limits",
    "concat_tables",
    "conv_params",
    "dequantized",
    "divide_rounding",
    "dtype_limits",
    "float_sum_params",
    "fully_connected_params",
    "lookup",
    "makes_floats",
    "matmul_params",
    "mul_params",
    "multiply_by_quantized",
    "multiply_rounding_once",
    "pad_value",
    "pool_params",
    "prelu_params",
    "quant_of",
    "quantize_multiplier",
    "quantize_multipliers",
    "quantized",
    "reduce_mean_params",
    "reduce_sum_params",
    "requantize",
    "resize_axis",
    "resize_reason",
    "round_half_away",
    "rounding_divide_by_power_of_two",
    "rounding_doubling_high_multiply",
    "same_quant",
    "softmax_params",
    "sub_params",
    "unary_table",
]
