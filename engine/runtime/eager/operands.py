"""Python's operators on tensors: their operands, and the dtypes and ops that numpy 2 gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

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


class Arithmetic(Operand):
    """A tensor with arithmetic and comparisons.

    `==` compares elements, so a tensor is hashed by identity.
    """

    __array_priority__ = 1000.0
    """Above that of numpy's arrays, so that `array + tensor` is a tensor."""
    __hash__ = object.__hash__

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements."""
        return numpy_dtype(self.type.dtype)

    def _binary(
        self, rule: np.ufunc, op: str, other: Any, swap: bool = False, truth: str = "", **attrs: Any
    ) -> Self:
        """Return an op of two operands, self second if `swap`; NotImplemented for another kind.

        rule: numpy's ufunc, which says the dtypes
        truth: the op of two operands of bool, where `op` takes numbers alone
        """
        made: Any = NotImplemented
        if isinstance(other, (*NUMBER_KINDS, Operand)):
            pair = promoted(rule, *((other, self) if swap else (self, other)))
            is_truth = bool(truth) and dtype_of(pair[0]).kind == "b"
            made = self._apply(truth if is_truth else op, *pair, **attrs)
        result: Self = made
        return result

    def __add__(self, other: Any) -> Self:
        return self._binary(np.add, "add", other, truth="or")

    def __radd__(self, other: Any) -> Self:
        return self._binary(np.add, "add", other, True, truth="or")

    def __sub__(self, other: Any) -> Self:
        return self._binary(np.subtract, "sub", other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary(np.subtract, "sub", other, True)

    def __mul__(self, other: Any) -> Self:
        return self._binary(np.multiply, "mul", other, truth="and")

    def __rmul__(self, other: Any) -> Self:
        return self._binary(np.multiply, "mul", other, True, truth="and")

    def __truediv__(self, other: Any) -> Self:
        return self._binary(np.true_divide, "div", other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._binary(np.true_divide, "div", other, True)

    def __floordiv__(self, other: Any) -> Self:
        return self._binary(np.floor_divide, "floor_div", other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary(np.floor_divide, "floor_div", other, True)

    def __mod__(self, other: Any) -> Self:
        return self._binary(np.remainder, "mod", other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary(np.remainder, "mod", other, True)

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __pow__(self, other: Any) -> Self:
        return self._binary(np.power, "pow", other)

    def __rpow__(self, other: Any) -> Self:
        return self._binary(np.power, "pow", other, True)

    def __matmul__(self, other: Any) -> Self:
        return self._binary(np.matmul, "matmul", other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._binary(np.matmul, "matmul", other, True)

    def __and__(self, other: Any) -> Self:
        return self._binary(np.bitwise_and, "bitwise_and", other, truth="and")

    def __rand__(self, other: Any) -> Self:
        return self._binary(np.bitwise_and, "bitwise_and", other, True, truth="and")

    def __or__(self, other: Any) -> Self:
        return self._binary(np.bitwise_or, "bitwise_or", other, truth="or")

    def __ror__(self, other: Any) -> Self:
        return self._binary(np.bitwise_or, "bitwise_or", other, True, truth="or")

    def __xor__(self, other: Any) -> Self:
        return self._binary(np.bitwise_xor, "bitwise_xor", other, truth="xor")

    def __rxor__(self, other: Any) -> Self:
        return self._binary(np.bitwise_xor, "bitwise_xor", other, True, truth="xor")

    def __lshift__(self, other: Any) -> Self:
        return self._binary(np.left_shift, "bit_shift", other, direction="LEFT")

    def __rlshift__(self, other: Any) -> Self:
        return self._binary(np.left_shift, "bit_shift", other, True, direction="LEFT")

    def __rshift__(self, other: Any) -> Self:
        return self._binary(np.right_shift, "bit_shift", other, direction="RIGHT")

    def __rrshift__(self, other: Any) -> Self:
        return self._binary(np.right_shift, "bit_shift", other, True, direction="RIGHT")

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary(np.equal, "equal", other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._binary(np.not_equal, "not_equal", other)

    def __lt__(self, other: Any) -> Self:
        return self._binary(np.less, "less", other)

    def __le__(self, other: Any) -> Self:
        return self._binary(np.less_equal, "less_or_equal", other)

    def __gt__(self, other: Any) -> Self:
        return self._binary(np.greater, "greater", other)

    def __ge__(self, other: Any) -> Self:
        return self._binary(np.greater_equal, "greater_or_equal", other)

    def _unary(self, op: str, *inputs: Any, **attrs: Any) -> Self:
        without_quant(self, op)
        made: Self = self._apply(op, self, *inputs, **attrs)
        return made

    def __neg__(self) -> Self:
        if self.dtype.kind == "u":  # the negative wraps, as numpy's
            return self._binary(np.subtract, "sub", np.zeros((), self.dtype), True)
        return self._unary("neg")

    def __pos__(self) -> Self:
        if self.dtype.kind == "b":
            raise GraphError(f"positive is not defined for {self.type}")
        return self

    def __abs__(self) -> Self:
        return self if self.dtype.kind == "b" else self._unary("abs")

    def __invert__(self) -> Self:
        return self._unary("not" if self.dtype.kind == "b" else "bitwise_not")
