"""Python's operators on tensors: numpy's ufunc gives the dtypes, an op the elements.

Comes in: a class with a `type` and `_apply`. Goes out: the same class with `-x * 2 >= y`.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from trireme.ir.operand import Operand
from trireme.runtime.operands import NUMBER_KINDS, dtype_of, promoted, without_quant
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import GraphError


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
