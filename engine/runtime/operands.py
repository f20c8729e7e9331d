"""What Python's operators work on, and the dtypes that they compute in: those of numpy 2.

Comes in: two operands of an operator, one of them a tensor. Goes out: two operands of the dtypes
that numpy computes in. `operators.py` and `indexing.py` call this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trireme.ir.operand import Operand
from trireme.support.dtypes import FLOATS, dtype_name, numpy_dtype
from trireme.support.errors import GraphError

NUMBER_KINDS = (bool, int, float, complex, np.generic, np.ndarray)
"""What may stand beside a tensor in an operator."""


def promoted(rule: np.ufunc, first: Any, second: Any) -> tuple[Any, Any]:
    """Return two operands cast to the dtypes in which a ufunc of numpy computes them.

    A Python int takes the other operand's dtype. A Python float takes a floating dtype; beside
    integers it is float64. Source: numpy 2 (NEP 50); bfloat16 and other floats that numpy adds to
    float32 keep their dtype beside a Python float.
    Errors: GraphError, if numpy has no such operator, or a number does not fit the dtype
    """
    for each in (first, second):
        if isinstance(each, Operand):
            without_quant(each, rule.__name__)
    dtypes = [_weak(first, second), _weak(second, first)]
    if np.dtype(object) in dtypes:  # texts, which have no arithmetic
        return first, second
    try:
        one, two, _ = rule.resolve_dtypes((*dtypes, None))
        if one != two and rule is not np.power:
            raise GraphError(
                f"{rule.__name__} of {_shown(first)} and {_shown(second)}: no dtype holds both",
                fix="x.astype(dtype)",
            )
        return cast(first, one), cast(second, two)
    except OverflowError as error:
        raise GraphError(f"{rule.__name__}: {error}", fix="x.astype(dtype)") from error
    except TypeError as error:
        shown = f"{_shown(first)} and {_shown(second)}"
        raise GraphError(f"{rule.__name__} is not defined for {shown}") from error


def _weak(operand: Any, other: Any) -> Any:
    """Return an operand for `resolve_dtypes`: its dtype, or the type of a Python number."""
    if not is_number(operand):
        return dtype_of(operand)
    beside = dtype_of(other) if isinstance(other, Operand) else None
    if isinstance(operand, float) and beside is not None and dtype_name(beside) in FLOATS:
        return beside
    return np.dtype(bool) if isinstance(operand, bool) else type(operand)


def is_number(operand: Any) -> bool:
    """Return whether an operand is a number of Python; numpy's have dtypes of their own."""
    return isinstance(operand, (bool, int, float, complex)) and not isinstance(operand, np.generic)


def dtype_of(operand: Any) -> np.dtype[Any]:
    """Return the numpy dtype of an operand."""
    return numpy_dtype(operand.type.dtype if isinstance(operand, Operand) else _name(operand))


def _name(operand: Any) -> str:
    return dtype_name(np.asarray(operand).dtype)


def _shown(operand: Any) -> str:
    if is_number(operand):
        return f"{type(operand).__name__} {operand}"
    return str(operand.type) if isinstance(operand, Operand) else f"an array of {_name(operand)}"


def cast(operand: Any, dtype: np.dtype[Any]) -> Any:
    """Return an operand in a dtype; a number or an array as an array."""
    if not isinstance(operand, Operand):
        return np.asarray(operand, dtype)
    if dtype_of(operand) == dtype:
        return operand
    without_quant(operand, "a cast")
    return operand._apply("cast", operand, to=dtype_name(dtype))


def without_quant(operand: Operand, what: str) -> None:
    """Raise GraphError if an operand is quantised: Python's operators work on numbers."""
    if operand.type.quant is not None:
        raise GraphError(
            f"{what} of {operand.type}, which is quantised",
            fix="dequantize it, or call the op by name with `quants` of the outputs",
        )


def int_vector(like: Operand, numbers: Sequence[Any]) -> Any:
    """Return whole numbers as an int64 vector: an array, or an op's output if some are tensors.

    like: the operand whose `_apply` joins the parts
    """
    if not any(isinstance(number, Operand) for number in numbers):
        return np.array([int(number) for number in numbers], np.int64)
    parts = []
    for number in numbers:
        if isinstance(number, Operand):
            whole = cast(number, np.dtype(np.int64))
            parts.append(like._apply("reshape", whole, np.array([1], np.int64), allowzero=1))
        else:
            parts.append(np.array([int(number)], np.int64))
    return parts[0] if len(parts) == 1 else like._apply("concat", *parts, axis=0)
