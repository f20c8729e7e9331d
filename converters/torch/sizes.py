"""Numbers of a torch program: sizes of tensors, what is computed from them, elements of tensors.

torch computes such numbers with Python's operators. A number that is known stays a number here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trireme.converters.torch.use import NumberRef, TensorRef, Use

Rule = Callable[[Use, list[Any]], Any]


def sym_size(use: Use, args: list[Any]) -> Any:
    """A dimension of a tensor."""
    tensor, axis = args
    axis %= max(use.rank(tensor.id), 1)
    dim = use.type(tensor.id).shape[axis]
    return (
        dim
        if isinstance(dim, int)
        else NumberRef(use.add("shape", tensor.id, start=axis, end=axis + 1))
    )


def item(use: Use, args: list[Any]) -> NumberRef:
    """The element of a tensor of one."""
    value = use.reshape(args[0].id, [1])
    is_whole = "int" in use.type(value).dtype
    return NumberRef(use.cast(value, "int64") if is_whole else value)


def number(op: str) -> Rule:
    """Return the rule of an operator on numbers of which a run knows some."""

    def rule(use: Use, args: list[Any]) -> NumberRef:
        dtype = _dtype(use, args)
        values = [_one(use, arg, dtype) for arg in args]
        return NumberRef(use.add(op, *values))

    return rule


def _dtype(use: Use, args: list[Any]) -> str:
    """Return the dtype in which an operator computes."""
    kinds = {
        use.type(arg.id).dtype if isinstance(arg, NumberRef) else type(arg).__name__ for arg in args
    }
    if kinds & {"float32", "float64", "float"}:
        return "float64"
    return "bool" if kinds == {"bool"} else "int64"


def _one(use: Use, given: Any, dtype: str) -> int:
    if isinstance(given, (NumberRef, TensorRef)):
        return use.cast(given.id, dtype)
    return use.constant([given], dtype)


def true_div(use: Use, args: list[Any]) -> NumberRef:
    """A division that gives a float."""
    return NumberRef(use.add("div", *(_one(use, arg, "float64") for arg in args)))


def floor_div(use: Use, args: list[Any]) -> NumberRef:
    """A division rounded down."""
    dtype = "int64" if _dtype(use, args) == "int64" else "float64"
    return NumberRef(use.add("floor_div", *(_one(use, arg, dtype) for arg in args)))


def as_dtype(dtype: str, op: str = "") -> Rule:
    """Return the rule of a conversion of a number, after an op."""

    def rule(use: Use, args: list[Any]) -> NumberRef:
        value = args[0].id
        if op and use.type(value).dtype != "int64":
            value = use.add(op, value)
        return NumberRef(use.cast(value, dtype))

    return rule


def choose(use: Use, args: list[Any]) -> NumberRef:
    """One of two numbers by a condition."""
    dtype = _dtype(use, args[1:])
    return NumberRef(
        use.add("where", _one(use, args[0], "bool"), *(_one(use, a, dtype) for a in args[1:]))
    )


def negated(use: Use, args: list[Any]) -> NumberRef:
    """Not."""
    return NumberRef(use.add("not", _one(use, args[0], "bool")))


NUMBERS: dict[str, Rule] = {
    "add": number("add"),
    "sub": number("sub"),
    "mul": number("mul"),
    "neg": number("neg"),
    "pow": number("pow"),
    "mod": number("mod"),
    "floordiv": floor_div,
    "truediv": true_div,
    "eq": number("equal"),
    "lt": number("less"),
    "le": number("less_or_equal"),
    "gt": number("greater"),
    "ge": number("greater_or_equal"),
    "and_": number("and"),
    "or_": number("or"),
    "sym_max": number("max"),
    "sym_min": number("min"),
    "sym_not": negated,
    "sym_float": as_dtype("float64"),
    "sym_int": as_dtype("int64"),
    "sym_ite": choose,
    "ceil": as_dtype("int64", "ceil"),
    "floor": as_dtype("int64", "floor"),
    "trunc": as_dtype("int64"),
    "round": as_dtype("int64", "round"),
}
"""Python's functions on numbers, by their names. torch.sym_sqrt and its like have no rule."""

ATEN_NUMBERS: dict[str, Rule] = {
    "_local_scalar_dense": item,
    "sym_size int": sym_size,
}
"""ATen ops that give numbers."""
