"""Write ops that work element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trireme.converters.tflite.write.activations import (
    celu,
    fused,
    hard_sigmoid,
    mish,
    reciprocal,
    selu,
    softplus,
    softsign,
    swish,
)
from trireme.converters.tflite.write.tables import table
from trireme.converters.tflite.write.use import NodeWriter, WriteRule, cast_types
from trireme.ir.graph import TensorType


def straight(code: str, dtypes: str, kind: str = "", **options: object) -> WriteRule:
    """Return the rule of an operator with the same inputs; `dtypes` are those of input 0."""

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, dtypes)
        use.done(code, use.operands(), kind, **options)

    return rule


def unary(code: str, dtypes: str, kind: str = "") -> WriteRule:
    """Return the rule of an operator of one input; other 8-bit values go through a table."""

    def rule(use: NodeWriter) -> None:
        quant = use.type().quant
        if quant is not None and f"q{use.type().dtype}" not in dtypes.split():
            table(use)
        else:
            use.check_dtype(0, dtypes)
            use.done(code, [use.x()], kind)

    return rule


def by_table(write: Callable[[NodeWriter, int], None]) -> WriteRule:
    """Return the rule of an op made of several float operators; 8-bit values take a table."""

    def rule(use: NodeWriter) -> None:
        if use.is_quantised:
            table(use)
        else:
            use.check_dtype(0, "float32")
            write(use, use.x())

    return rule


def binary(code: str, kind: str, dtypes: str) -> WriteRule:
    """Return the rule of an operator of two inputs with a fused activation.

    Sums of int16 say that their scales are no powers of two, for which LiteRT has another kernel.
    """
    shifts = {} if code == "MUL" else {"PotScaleInt16": False}

    def rule(use: NodeWriter) -> None:
        use.check_dtype(0, dtypes)
        use.check_dtype(1, dtypes)
        if use.output().dtype != "float32" and not use.is_quantised and use.attrs["activation"]:
            raise use.error("an activation of plain integers is not written")
        options = shifts if use.output().dtype == "int16" else {}
        fused(use, code, [use.x(0), use.x(1)], kind, **options)

    return rule


def folded(code: str, kind: str, dtypes: str, *, keeps: bool = False) -> WriteRule:
    """Return the rule of an op of many inputs, written as a chain of an operator of two.

    keeps: whether quantised inputs must have the output's quantisation
    """

    def rule(use: NodeWriter) -> None:
        inputs = use.operands()
        for position in range(len(inputs)):
            use.check_dtype(position, dtypes)
        if keeps:
            use.check_one_quant(*range(len(inputs)))
        if len(inputs) == 1:
            use.same(inputs[0])
            return
        x = inputs[0]
        shape = use.type(0).shape
        for position in range(1, len(inputs) - 1):
            shape = _broadcast(use, shape, use.type(position).shape)
            to = TensorType(shape, use.output().dtype, use.output().quant)
            x = use.add(code, [x, inputs[position]], to, kind)
        use.done(code, [x, inputs[-1]], kind)

    return rule


def _broadcast(use: NodeWriter, a: tuple[object, ...], b: tuple[object, ...]) -> tuple[int, ...]:
    if not all(isinstance(dim, int) for dim in (*a, *b)):
        raise use.error("more than two inputs of open shape are not written")
    return np.broadcast_shapes(a, b)  # type: ignore[arg-type]


def mean(use: NodeWriter) -> None:
    """Write the mean of many inputs."""
    use.check_dtype(0, "float32")
    x = use.x(0)
    for position in range(1, len(use.node.inputs)):
        x = use.add("ADD", [x, use.x(position)], None, "AddOptions")
    use.done("MUL", [x, use.scalar(1 / len(use.node.inputs))], "MulOptions")


def compare(code: str, kind: str, dtypes: str) -> WriteRule:
    """Return the rule of a comparison."""
    return straight(code, dtypes, kind)


def atan2(use: NodeWriter) -> None:
    """Write ATAN2, whose inputs have one shape."""
    use.check_dtype(0, "float32")
    if use.type(0).shape != use.type(1).shape:
        raise use.error("ATAN2 takes inputs of one shape")
    use.done("ATAN2", [use.x(0), use.x(1)])


def power(use: NodeWriter) -> None:
    """Write POW, whose inputs have one dtype."""
    use.check_dtype(0, "float32 int32")
    use.check_dtype(1, use.type(0).dtype)
    use.done("POW", [use.x(0), use.x(1)], "PowOptions")


def fixed(code: str, scale: float, points: dict[str, int]) -> WriteRule:
    """Return the rule of LOGISTIC or TANH, whose quantised result has one scale.

    points: the zero point by dtype; int16 has the scale 1/32768. Results of another quantisation
        take a table
    """

    def rule(use: NodeWriter) -> None:
        quant, y = use.output().quant, use.output()
        use.check_dtype(0, "float32 qint8 quint8 qint16")
        known = (2.0**-15, 0) if y.dtype == "int16" else (scale, points.get(y.dtype))
        if quant is not None and (quant.scale, quant.zero_point) != known:
            table(use)
        else:
            use.done(code, [use.x()])

    return rule


def xor(use: NodeWriter) -> None:
    """Write the exclusive or of bools as NOT_EQUAL."""
    use.done("NOT_EQUAL", [use.x(0), use.x(1)], "NotEqualOptions")


def floor_mod(use: NodeWriter) -> None:
    """Write the remainder with the divisor's sign."""
    if use.attrs["fmod"]:
        raise use.error("a remainder with the dividend's sign has no form in TensorFlow Lite")
    use.check_dtype(0, "float32 int32 int64 int16")
    use.done("FLOOR_MOD", [use.x(0), use.x(1)], "FloorModOptions")


def leaky_relu(use: NodeWriter) -> None:
    """Write LEAKY_RELU with its slope."""
    use.check_dtype(0, f"float32 {_Q16}")
    use.done("LEAKY_RELU", [use.x()], "LeakyReluOptions", Alpha=use.attrs["alpha"])


def elu(use: NodeWriter) -> None:
    """Write ELU, whose alpha is 1."""
    if use.is_quantised:
        table(use)
    elif use.attrs["alpha"] == 1:
        use.done("ELU", [use.x()])
    else:
        x = use.x()
        low = use.add("ELU", [use.add("MINIMUM", [x, use.scalar(0)])])
        scaled = use.add("MUL", [low, use.scalar(use.attrs["alpha"])], None, "MulOptions")
        use.done("ADD", [use.add("RELU", [x]), scaled], "AddOptions")


def gelu(use: NodeWriter) -> None:
    """Write GELU, exact or by tanh."""
    use.check_dtype(0, "float32 qint8 quint8")
    use.done("GELU", [use.x()], "GeluOptions", Approximate=use.attrs["approximate"] == "tanh")


def clip(use: NodeWriter) -> None:
    """Write the limits as MAXIMUM and MINIMUM; 8-bit values take a table."""
    if use.is_quantised:
        table(use)
        return
    use.check_dtype(0, "float32 int32 int64 int16 int8 uint8")
    x, (low, high) = use.x(), (use.value(1), use.value(2))
    if low is None and high is None:
        use.same(x)
    elif high is None:
        use.done("MAXIMUM", [x, use.x(1)], "MaximumMinimumOptions")
    else:
        if low is not None:
            x = use.add("MAXIMUM", [x, use.x(1)], None, "MaximumMinimumOptions")
        use.done("MINIMUM", [x, use.x(2)], "MaximumMinimumOptions")


def cast(use: NodeWriter) -> None:
    """Write CAST; numbers become bools by a comparison with 0."""
    dtypes = "float32 float16 int64 int32 int16 int8 uint8 bool uint32"
    use.check_dtype(0, dtypes)
    x, y = use.type(), use.output()
    if y.dtype not in dtypes.split():
        raise use.error(f"TensorFlow Lite has no kernel of this operator to {y.dtype}")
    if x.dtype == y.dtype:
        use.same(use.x())
    else:
        use.done("CAST", [use.x()], "CastOptions", **cast_types(x, y))


def quantize(use: NodeWriter) -> None:
    """Write QUANTIZE, of floats or of another quantisation."""
    use.check_dtype(0, f"float32 {_Q16}")
    use.done("QUANTIZE", [use.x()], "QuantizeOptions")


def prelu(use: NodeWriter) -> None:
    """Write PRELU, whose slope must be constant for quantised values."""
    use.check_dtype(0, "float32 qint8 quint8")
    use.check_dtype(1, "float32 qint8 quint8")
    use.done("PRELU", [use.x(0), use.x(1)])


def where(use: NodeWriter) -> None:
    """Write SELECT_V2."""
    use.check_one_quant(1, 2)
    use.check_dtype(1, "float32 int32 int64 int16 int8 uint8 bool uint32 qint8 quint8")
    use.done("SELECT_V2", use.operands(), "SelectV2Options")


def thresholded_relu(use: NodeWriter) -> None:
    """Write x where it is above alpha, else 0."""
    use.check_dtype(0, "float32")
    flags = TensorType(use.output().shape, "bool")
    above = use.add("GREATER", [use.x(), use.scalar(use.attrs["alpha"])], flags, "GreaterOptions")
    use.done("SELECT_V2", [above, use.x(), use.scalar(0)], "SelectV2Options")


def is_nan(use: NodeWriter) -> None:
    """Write x != x."""
    use.check_dtype(0, "float32")
    use.done("NOT_EQUAL", [use.x(), use.x()], "NotEqualOptions")


def tan(use: NodeWriter) -> None:
    """Write sin / cos."""
    use.check_dtype(0, "float32")
    use.done("DIV", [use.add("SIN", [use.x()]), use.add("COS", [use.x()])], "DivOptions")


_Q, _Q16 = "qint8 quint8", "qint8 quint8 qint16"
_INTS = "int32 int64"
ELEMENTWISE: dict[str, WriteRule] = {
    "abs": unary("ABS", "float32 int32 qint8", "AbsOptions"),
    "add": binary("ADD", "AddOptions", f"float32 {_INTS} {_Q16}"),
    "and": straight("LOGICAL_AND", "bool", "LogicalAndOptions"),
    "atan2": atan2,
    "bitwise_xor": straight("BITWISE_XOR", "int8 uint8 int16 int32 uint32"),
    "cast": cast,
    "ceil": unary("CEIL", "float32"),
    "celu": by_table(celu),
    "clip": clip,
    "complex_abs": straight("COMPLEX_ABS", "complex64"),
    "complex_imag": straight("IMAG", "complex64"),
    "complex_real": straight("REAL", "complex64"),
    "copy": lambda use: use.same(use.x()),
    "cos": unary("COS", "float32", "CosOptions"),
    "dequantize": straight("DEQUANTIZE", _Q16, "DequantizeOptions"),
    "div": binary("DIV", "DivOptions", "float32"),
    "elu": elu,
    "equal": compare("EQUAL", "EqualOptions", f"bool float32 {_INTS} {_Q}"),
    "exp": unary("EXP", "float32 qint8", "ExpOptions"),
    "floor": unary("FLOOR", "float32"),
    "floor_div": straight("FLOOR_DIV", f"float32 {_INTS}", "FloorDivOptions"),
    "gelu": gelu,
    "greater": compare("GREATER", "GreaterOptions", f"float32 {_INTS} {_Q}"),
    "greater_or_equal": compare("GREATER_EQUAL", "GreaterEqualOptions", f"float32 {_INTS} {_Q}"),
    "hard_sigmoid": by_table(hard_sigmoid),
    "hard_swish": unary("HARD_SWISH", f"float32 {_Q}", "HardSwishOptions"),
    "identity": lambda use: use.same(use.x()),
    "is_nan": is_nan,
    "leaky_relu": leaky_relu,
    "less": compare("LESS", "LessOptions", f"float32 {_INTS} {_Q}"),
    "less_or_equal": compare("LESS_EQUAL", "LessEqualOptions", f"float32 {_INTS} {_Q}"),
    "log": unary("LOG", "float32"),
    "max": folded("MAXIMUM", "MaximumMinimumOptions", f"float32 {_INTS} {_Q16}", keeps=True),
    "mean": mean,
    "min": folded("MINIMUM", "MaximumMinimumOptions", f"float32 {_INTS} {_Q16}", keeps=True),
    "mish": by_table(mish),
    "mod": floor_mod,
    "mul": binary("MUL", "MulOptions", f"float32 {_INTS} {_Q16}"),
    "neg": unary("NEG", f"float32 {_INTS}", "NegOptions"),
    "not": straight("LOGICAL_NOT", "bool", "LogicalNotOptions"),
    "not_equal": compare("NOT_EQUAL", "NotEqualOptions", f"bool float32 {_INTS} {_Q}"),
    "or": straight("LOGICAL_OR", "bool", "LogicalOrOptions"),
    "pow": power,
    "prelu": prelu,
    "quantize": quantize,
    "reciprocal": by_table(reciprocal),
    "relu": unary("RELU", f"float32 {_Q16}"),
    "relu6": unary("RELU6", f"float32 {_Q16}"),
    "relu_n1_to_1": unary("RELU_N1_TO_1", f"float32 {_Q}"),
    "round": unary("ROUND", "float32"),
    "rsqrt": unary("RSQRT", "float32"),
    "selu": by_table(selu),
    "sigmoid": fixed("LOGISTIC", 1 / 256, {"int8": -128, "uint8": 0}),
    "sign": unary("SIGN", "float32"),
    "sin": unary("SIN", "float32"),
    "softplus": by_table(softplus),
    "softsign": by_table(softsign),
    "sqrt": unary("SQRT", "float32"),
    "square": unary("SQUARE", "float32", "SquareOptions"),
    "squared_difference": straight(
        "SQUARED_DIFFERENCE", "float32 int32", "SquaredDifferenceOptions"
    ),
    "sub": binary("SUB", "SubOptions", f"float32 {_INTS} {_Q16}"),
    "sum": folded("ADD", "AddOptions", f"float32 {_INTS}"),
    "swish": by_table(swish),
    "tan": tan,
    "tanh": fixed("TANH", 1 / 128, {"int8": 0, "uint8": 128}),
    "thresholded_relu": thresholded_relu,
    "where": where,
    "xor": xor,
}
"""The rules of ops that work element by element."""
