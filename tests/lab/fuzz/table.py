"""The ops that random graphs are made of, one row each."""

from __future__ import annotations

from lab.fuzz import table_control, table_images, table_moves, table_products, table_quantized
from lab.fuzz.rows import (
    ANY,
    INTS,
    NUMBER,
    REAL,
    Row,
    axes,
    axis,
    filled,
    ints,
    like,
    maybe,
    maybe_axis,
    row,
    scalar,
    uniform,
    value,
)  # fmt: skip

UNARY = (
    "Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Exp", "Log", "Sqrt", "Erf", "Softplus", "Softsign",
    "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh",
    "Asinh", "Acosh", "Atanh",
)  # fmt: skip
EXACT = {"Relu", "Abs", "Neg"}
SHARP = ("Floor", "Ceil", "Round", "Sign")
COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
ROOTS = ("L2", "LogSum", "LogSumExp")
"""Reductions whose result is no integer."""

ROWS: tuple[Row, ...] = (
    *(row(op, value(REAL), rounds=op not in EXACT, weight=0.6) for op in UNARY),
    *(row(op, value(REAL), weight=0.5) for op in SHARP),
    row("Identity", value(ANY), rounds=False),
    row("LeakyRelu", value(REAL), attrs={"alpha": uniform(0, 0.5)}),
    row("Elu", value(REAL), attrs={"alpha": uniform(0.5, 2)}),
    row("Selu", value(REAL), attrs={"alpha": uniform(0.5, 2), "gamma": uniform(0.5, 2)}),
    row("Celu", value(REAL), attrs={"alpha": uniform(0.5, 2)}),
    row("HardSwish", value()),
    row("Mish", value()),
    row("Gelu", value(), attrs={"approximate": ("none", "tanh", None)}),
    row("ThresholdedRelu", value(REAL), attrs={"alpha": uniform(0, 1)}),
    row("HardSigmoid", value(REAL), attrs={"alpha": uniform(0.1, 0.5), "beta": uniform(0, 1)}),
    row("Shrink", value(), attrs={"lambd": uniform(0, 1), "bias": uniform(-1, 1)}),
    row("PRelu", value(REAL), like(one_way=True)),
    row("Clip", value(NUMBER), maybe(scalar(-1, 0)), maybe(scalar(0, 2)), rounds=False, weight=2),
    *(row(op, value(NUMBER), like(), weight=3) for op in ("Add", "Sub", "Mul", "Div")),
    row("Pow", value(("float32", "float32", "int32", "float64")), like()),
    row("Mod", value(NUMBER), like(), attrs={"fmod": lambda d: int(d.x.dtype.startswith("f"))}),
    *(row(op, value(NUMBER), like(), maybe(like(), 0.3), rounds=False) for op in ("Max", "Min")),
    *(row(op, value(REAL), like(), maybe(like(), 0.3), weight=0.5) for op in ("Sum", "Mean")),
    *(row(op, value(ANY), like(), weight=0.6) for op in COMPARISONS),
    *(row(op, value(("bool",)), like(), rounds=False) for op in ("And", "Or", "Xor")),
    row("Not", value(("bool",)), rounds=False),
    *(row(op, value(INTS), like(), rounds=False, weight=0.5)
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    row("BitwiseNot", value(INTS), rounds=False, weight=0.5),
    row("IsNaN", value(REAL), rounds=False, weight=0.3),
    row("IsInf", value(REAL), rounds=False, weight=0.3),
    *(row(f"Reduce{name}", filled(REAL if name in ROOTS else NUMBER), maybe(ints(axes), 0.8),
          attrs={"keepdims": (0, 1, None)}, weight=0.7) for name in REDUCTIONS),
    *(row(op, value(NUMBER, (1, 2, 3, 4, 5)), weight=0.7, attrs={  # no axis is within rank 0
        "axis": maybe_axis, "keepdims": (0, 1, None), "select_last_index": (None, None, 1),
      }) for op in ("ArgMax", "ArgMin")),
    *(row(op, value(REAL), attrs={"axis": maybe_axis}) for op in ("Softmax", "LogSoftmax")),
    row("Hardmax", value(REAL), attrs={"axis": maybe_axis}, weight=0.4),
    row("CumSum", value(NUMBER), ints(axis), attrs={"exclusive": (0, 1, None), "reverse": (0, 1)}),
    *table_moves.ROWS,
    *table_products.ROWS,
    *table_images.ROWS,
    *table_quantized.ROWS,
    *table_control.ROWS,
)  # fmt: skip
"""Each op with how its inputs and attributes are drawn."""
