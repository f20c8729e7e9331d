"""Rules of ATen's elementwise ops. torch's own type of the result says what they compute in."""

from __future__ import annotations

import math
from typing import Any

from trireme.converters.torch.special import erfc, hypot, round_decimals, sign
from trireme.converters.torch.use import NumberRef, TensorRef, Use, dtype_name, op_dtype
from trireme.support.dtypes import FLOATS


def same(use: Use) -> int:
    """The input itself, for ops that copy or that only training needs."""
    return int(use["self"])


def unary(op: str, **attrs: Any) -> Any:
    """Return the rule of an op on one tensor, in the result's dtype."""
    return lambda use: use.add(op, use.cast(use["self"], use.dtype), **attrs)


def with_attrs(op: str, **names: str) -> Any:
    """Return the rule of an op on one tensor; `names` are torch's of our attributes."""

    def rule(use: Use) -> int:
        attrs = {ours: float(use[theirs]) for ours, theirs in names.items()}
        return use.add(op, use.cast(use["self"], use.dtype), **attrs)

    return rule


def binary(op: str, on_bool: str = "") -> Any:
    """Return the rule of an op on two operands that are cast to the result's dtype."""

    def rule(use: Use) -> int:
        dtype = use.dtype
        a, b = (use.operand(use.args[name], dtype) for name in ("self", "other"))
        alpha = use.args.get("alpha", 1)
        if isinstance(alpha, (NumberRef, TensorRef)) or alpha != 1:
            b = use.add("mul", b, use.operand(alpha, dtype))
        return use.add(on_bool if on_bool and dtype == "bool" else op, a, b)

    return rule


def compare(op: str) -> Any:
    """Return the rule of a comparison, in the dtype that both operands are promoted to."""

    def rule(use: Use) -> int:
        dtype = common_dtype(use, "self", "other")
        a, b = (use.operand(use.args[name], dtype) for name in ("self", "other"))
        if dtype == "bool":  # an order of false and true
            a, b = use.cast(a, "int32"), use.cast(b, "int32")
        return use.add(op, a, b)

    return rule


def common_dtype(use: Use, *names: str) -> str:
    """Return the dtype that torch promotes two arguments to."""
    import torch

    kinds = []
    for name in names:
        given = use.meta(name)
        plain = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
        kinds.append(plain.get(type(given), given))
    return dtype_name(torch.result_type(*kinds))


def logical(op: str) -> Any:
    """Return the rule of a logical op, whose operands are true where they are not 0."""
    return lambda use: use.add(op, *(truth(use, use[n]) for n in ("self", "other")))


def truth(use: Use, value: int) -> int:
    """Return where a value is not 0, as bool."""
    return use.cast(value, "bool")


def logical_not(use: Use) -> int:
    """logical_not: where a value is 0."""
    return use.add("not", truth(use, use["self"]))


def bitwise(op: str, on_bool: str) -> Any:
    """Return the rule of a bitwise op; of bool it is a logical one."""
    return binary(op, on_bool)


def bitwise_not(use: Use) -> int:
    """bitwise_not: of bool it is not."""
    return use.add("not" if use.dtype == "bool" else "bitwise_not", use["self"])


def divide(use: Use) -> int:
    """div with a rounding mode: none, toward zero or down."""
    dtype, mode = use.dtype, use.args.get("rounding_mode")
    if not isinstance(use.args["other"], TensorRef):  # ATen does not round a number to 16 bits
        dtype = op_dtype(dtype)
    a, b = (use.operand(use.args[name], dtype) for name in ("self", "other"))
    quotient = use.add("floor_div" if mode == "floor" else "div", a, b)
    if mode == "trunc" and dtype in FLOATS:
        quotient = truncated(use, quotient)
    return use.cast(quotient, use.dtype)


def truncated(use: Use, value: int) -> int:
    """Return a float value rounded toward zero."""
    below = use.add("less", value, use.constant(0, use.type(value).dtype))
    return use.add("where", below, use.add("ceil", value), use.add("floor", value))


def negative(use: Use) -> int:
    """neg; unsigned numbers wrap."""
    if use.dtype.startswith("uint"):
        return use.add("sub", use.constant(0, use.dtype), use["self"])
    return use.add("neg", use["self"])


def trunc(use: Use) -> int:
    """trunc."""
    return truncated(use, use["self"]) if use.dtype in FLOATS else int(use["self"])


def whole(op: str) -> Any:
    """Return the rule of a rounding op, which leaves integers as they are."""
    return lambda use: use.add(op, use["self"]) if use.dtype in FLOATS else int(use["self"])


def remainder(use: Use) -> int:
    """remainder, of the divisor's sign; a zero of the dividend's."""
    a, b = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
    return use.add("mod", a, b, zero="dividend")


def fmod(use: Use) -> int:
    """fmod, of the dividend's sign."""
    a, b = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
    return use.add("mod", a, b, fmod=1)


def power(use: Use) -> int:
    """pow of tensors and numbers; a negative power of the integer 0 is 0."""
    dtype, given = use.dtype, use.args["exponent"]
    base = use.operand(use.args["self"], dtype)
    if dtype == "bool":
        return base if given else use.add("or", base, use.constant(True))
    if given == 2:
        return use.add("mul", base, base)
    exponent = use.operand(given, dtype)
    found = use.add("pow", base, exponent)
    if dtype in FLOATS or not isinstance(given, TensorRef):
        return found
    zero = use.constant(0, dtype)
    no_power = use.add("and", use.add("equal", base, zero), use.add("less", exponent, zero))
    return use.add("where", no_power, zero, found)


def clamp(use: Use) -> int:
    """clamp between numbers or tensors."""
    dtype, value = use.dtype, use.cast(use["self"], use.dtype)
    low, high = use.args["min"], use.args["max"]
    if isinstance(low, (TensorRef, NumberRef)) or isinstance(high, (TensorRef, NumberRef)):
        for op, limit in (("max", low), ("min", high)):
            if limit is not None:
                value = use.add(op, value, use.operand(limit, dtype))
        return value
    limits = [None if one is None else use.operand(one, dtype) for one in (low, high)]
    return use.add("clip", value, *limits)


def where(use: Use) -> int:
    """where."""
    return use.add(
        "where",
        truth(use, use["condition"]),
        *(use.operand(use.args[name], use.dtype) for name in ("self", "other")),
    )


def log_of(base: float) -> Any:
    """Return the rule of a logarithm to another base."""

    def rule(use: Use) -> int:
        value = use.add("log", use.cast(use["self"], use.dtype))
        return use.add("mul", value, use.constant(1 / math.log(base), use.dtype))

    return rule


def exp2(use: Use) -> int:
    """exp2."""
    return use.add("pow", use.constant(2, use.dtype), use.cast(use["self"], use.dtype))


def expm1(use: Use) -> int:
    """expm1, as tanh(x/2) (e^x + 1), which keeps small x exact."""
    x = use.cast(use["self"], use.dtype)
    half = use.add("tanh", use.add("mul", x, use.constant(0.5, use.dtype)))
    made = use.add("mul", half, use.add("add", use.add("exp", x), use.constant(1, use.dtype)))
    large = use.add("greater", x, use.constant(1, use.dtype))
    plain = use.add("sub", use.add("exp", x), use.constant(1, use.dtype))
    return use.add("where", large, plain, made)


def log1p(use: Use) -> int:
    """log1p, as 2 atanh(x / (2 + x)), which keeps small x exact."""
    x, dtype = use.cast(use["self"], use.dtype), use.dtype
    one, two = use.constant(1, dtype), use.constant(2, dtype)
    small = use.add("mul", two, use.add("atanh", use.add("div", x, use.add("add", x, two))))
    near = use.add("less", use.add("abs", x), use.constant(0.5, dtype))
    return use.add("where", near, small, use.add("log", use.add("add", x, one)))


def is_odd(op: str) -> Any:
    """Return the rule of isinf or isnan, which no integer is."""

    def rule(use: Use) -> int:
        x = use["self"]
        if use.type(x).dtype in FLOATS:
            return use.add(op, x)
        return use.add("not", use.add("equal", x, x))

    return rule


def shift(direction: str) -> Any:
    """Return the rule of a shift of integers by bits; one to the right keeps the sign."""

    def rule(use: Use) -> int:
        a, b = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
        return use.add("bit_shift", a, b, direction=direction)

    return rule


def copysign(use: Use) -> int:
    """copysign: the first's size with the second's sign, which -0 has too."""
    size, sign = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
    size, zero, one = use.add("abs", size), use.constant(0, use.dtype), use.constant(1, use.dtype)
    below = (use.add("less", value, zero) for value in (sign, use.add("div", one, sign)))
    return use.add("where", use.add("or", *below), use.add("neg", size), size)


def without_nan(op: str, on_bool: str) -> Any:
    """Return the rule of fmax or fmin, which give the other operand for a NaN."""

    def rule(use: Use) -> int:
        if use.dtype not in FLOATS:
            return int(binary(op, on_bool)(use))
        a, b = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
        better = use.add("where", use.add("is_nan", b), a, use.add(op, a, b))
        return use.add("where", use.add("is_nan", a), b, better)

    return rule


def ldexp(use: Use) -> int:
    """ldexp: the first times 2 to the power of the second."""
    value, power = (use.operand(use.args[name], use.dtype) for name in ("self", "other"))
    return use.add("mul", value, use.add("pow", use.constant(2, use.dtype), power))


def to_copy(use: Use) -> int:
    """_to_copy: a cast; devices and memory formats are of no meaning here."""
    return use.cast(use["self"], use.dtype)


_UNARY = (
    "abs acos acosh asin asinh atan atanh cos cosh erf exp log reciprocal relu rsqrt "
    "sigmoid silu sin sinh sqrt tan tanh square mish"
)

ELEMENTWISE: dict[str, Any] = {
    **{name: unary({"silu": "swish"}.get(name, name)) for name in _UNARY.split()},
    "__lshift__ Scalar Tensor": shift("LEFT"),
    "__rshift__ Scalar Tensor": shift("RIGHT"),
    "_to_copy": to_copy,
    "add Tensor Scalar": binary("add", "or"),
    "alias": same,
    "atan2": binary("atan2"),
    "bitwise_left_shift Tensor Tensor_Scalar": shift("LEFT"),
    "bitwise_right_shift Tensor Tensor_Scalar": shift("RIGHT"),
    "bitwise_and Tensor Scalar": bitwise("bitwise_and", "and"),
    "bitwise_not": bitwise_not,
    "bitwise_or Tensor Scalar": bitwise("bitwise_or", "or"),
    "bitwise_xor Tensor Scalar": bitwise("bitwise_xor", "xor"),
    "ceil": whole("ceil"),
    "clamp default Tensor": clamp,
    "clone": same,
    "copysign Tensor Scalar": copysign,
    "div Tensor Scalar Tensor_mode Scalar_mode": divide,
    "eq Tensor Scalar": compare("equal"),
    "erfc": erfc,
    "exp2": exp2,
    "expm1": expm1,
    "floor": whole("floor"),
    "fmax": without_nan("max", "or"),
    "fmin": without_nan("min", "and"),
    "fmod Tensor Scalar": fmod,
    "ge Tensor Scalar": compare("greater_or_equal"),
    "gt Tensor Scalar": compare("greater"),
    "hypot": hypot,
    "isinf": is_odd("is_inf"),
    "isnan": is_odd("is_nan"),
    "ldexp Tensor": ldexp,
    "le Tensor Scalar": compare("less_or_equal"),
    "log10": log_of(10),
    "log1p": log1p,
    "log2": log_of(2),
    "logical_and": logical("and"),
    "logical_not": logical_not,
    "logical_or": logical("or"),
    "logical_xor": logical("xor"),
    "lt Tensor Scalar": compare("less"),
    "maximum": binary("max", "or"),
    "minimum": binary("min", "and"),
    "mul Tensor Scalar": binary("mul", "and"),
    "neg": negative,
    "ne Tensor Scalar": compare("not_equal"),
    "pow Tensor_Scalar Tensor_Tensor Scalar": power,
    "remainder Tensor Scalar Scalar_Tensor": remainder,
    "round": whole("round"),
    "round decimals": round_decimals,
    "sign": sign,
    "sub Tensor Scalar": binary("sub"),
    "trunc": trunc,
    "where self": where,
}
