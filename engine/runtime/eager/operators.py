"""Python's operators, indexing and array methods on tensors, each as ops of the registry.

Comes in: a class with a `type` and `_apply`, which runs an op (`eager.Tensor`) or records one (a
trace). Goes out: the same class with `x * 2 + y[:, 1:]`, `x.mean(axis=-1)` and the like. Meaning
and dtypes are numpy 2's (`operands.promoted`), which the tests compare with.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from trireme.ir.graph import Quant
from trireme.runtime.eager.indexing import index
from trireme.runtime.eager.operands import Arithmetic, cast, int_vector
from trireme.support.dtypes import NAMES, Array, dtype_name, numpy_dtype
from trireme.support.errors import GraphError, ShapeError

Axis = int | Sequence[int] | None


class Operators(Arithmetic):
    """A tensor that reads like an array: arithmetic, comparisons, indexing, reductions.

    `==` compares elements, so a tensor is hashed by identity. A subclass gives `type` and `_apply`.
    One with elements gives `_concrete` too; then bool(), int(), float() and iteration work.
    """

    def _recorded(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Mapping[str, Any],
        device: Any,
        outputs: int | None,
        quants: Sequence[Quant | None],
    ) -> Any:
        """Record a call of `trireme.eager` that has this value of a trace among its inputs."""
        raise GraphError(f"{type(self).__name__} records no ops")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements; raises GraphError where a dimension is a symbol."""
        self._expect_static("size")
        return self.type.elements

    @property
    def T(self) -> Self:  # noqa: N802 - numpy's name
        """The tensor with its axes reversed."""
        return self.transpose()

    def _expect_static(self, what: str) -> None:
        if not self.type.is_static:
            raise GraphError(f"{what} of {self.type}: a dimension is not known before a run")

    # Elements: of what has them before a run.

    def __getitem__(self, key: Any) -> Self:
        found: Self = index(self, key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        raise GraphError(
            f"elements of {self.type} are assigned; a tensor does not change",
            fix="np.where makes another tensor; trireme.capture reads such assignments",
        )

    def __len__(self) -> int:
        if not self.shape:
            raise GraphError(f"{self.type} has no axes, so no length")
        self._expect_static("the length")
        return self.type.dims[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.item(), digits)

    def __trunc__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def tolist(self) -> Any:
        """Return the elements as Python numbers in nested lists."""
        return self._elements("a list").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._elements("an array"), dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        try:
            return self._elements("a DLPack capsule").__dlpack__(**options)
        except BufferError as error:
            raise GraphError(f"DLPack cannot hold {self.type}: {error}") from error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._elements("a DLPack device").__dlpack_device__()

    # Methods of numpy's arrays.

    def astype(self, dtype: Any) -> Self:
        """Return the elements in another dtype: a name of it, a numpy dtype, or a Python type."""
        made: Self = cast(self, _dtype_called(dtype))
        return made

    def copy(self) -> Self:
        """Return the tensor itself: a tensor does not change."""
        return self

    def dot(self, other: Any) -> Any:
        """Return the product with a vector or a matrix.

        Errors: ShapeError, if an operand has no axes or more than two
        """
        axes = len(other.shape if isinstance(other, Operators) else np.shape(other))
        if not 1 <= self.ndim <= 2 or not 1 <= axes <= 2:
            raise ShapeError(f"dot of {self.ndim} and {axes} axes", fix="x @ y")
        return self @ other

    def reshape(self, *shape: Any) -> Self:
        """Return the elements in order in another shape, given as ints or as one tuple; -1 is the
        rest."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        rest = any(isinstance(dim, (int, np.integer)) and dim == -1 for dim in wanted)
        return self._unary("reshape", int_vector(self, wanted), allowzero=int(not rest))

    def ravel(self) -> Self:
        """Return the elements as a vector."""
        return self.reshape(-1)

    def flatten(self) -> Self:
        """Return the elements as a vector."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Self:
        """Return the tensor with its axes in another order; reversed when none is given."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return self._unary("transpose", perm=tuple(order) or None)

    def swapaxes(self, first: int, second: int) -> Self:
        """Return the tensor with two axes exchanged."""
        order = list(range(self.ndim))
        first, second = self._axis(first), self._axis(second)
        order[first], order[second] = second, first
        return self.transpose(*order)

    def squeeze(self, axis: Axis = None) -> Self:
        """Return the tensor without axes of length 1: those given, or all."""
        if axis is None:
            axis = [i for i, dim in enumerate(self.shape) if dim == 1]
        return self._unary("squeeze", _axes(axis)) if axis != [] else self

    def take(self, indices: Any, axis: int | None = None) -> Self:
        """Return the elements at indices along an axis, or of the vector of all elements."""
        if axis is None:
            return self.ravel()[indices]
        return self[(slice(None),) * self._axis(axis) + (indices,)]

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """Return the elements moved into min to max."""
        low = self if min is None else self._binary(np.maximum, "max", min)
        return low if max is None else low._binary(np.minimum, "min", max)

    def round(self, decimals: int = 0) -> Self:
        """Return the nearest numbers with some decimals, halves to even.

        Errors: GraphError, if whole numbers lose digits
        Source: numpy, which scales by a power of ten, rounds and scales back
        """
        if self.dtype.kind in "biu":
            if decimals < 0:
                raise GraphError(f"{self.type} is rounded to {-decimals} digits less")
            return self
        if not decimals:
            return self._unary("round")
        scale = np.array(10.0 ** abs(decimals), self.dtype)
        up, down = (operator.mul, operator.truediv)[:: 1 if decimals > 0 else -1]
        made: Self = down(up(self, scale)._unary("round"), scale)
        return made

    def _axis(self, axis: int) -> int:
        """Return an axis counted from the first; raise ShapeError where there is none."""
        if not -self.ndim <= axis < self.ndim:
            raise ShapeError(f"axis {axis} of {self.type}, which has {self.ndim}")
        return axis % self.ndim

    def _reduced(self, op: str, axis: Axis, keepdims: bool) -> Self:
        if axis is None:
            return self._unary(op, keepdims=int(keepdims))
        options = {"keepdims": int(keepdims), "noop_with_empty_axes": 1}
        return self._unary(op, _axes(axis), **options)

    def _widened(self) -> Self:
        """Return the operand of a sum: bool and narrow integers as 64-bit ones, as numpy does."""
        wide = {"b": np.int64, "i": np.int64, "u": np.uint64}.get(self.dtype.kind)
        return self if wide is None else self.astype(np.dtype(wide))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the sum along axes, all when None; of integers in 64 bits."""
        return self._widened()._reduced("reduce_sum", axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the product along axes, all when None; of integers in 64 bits."""
        return self._widened()._reduced("reduce_prod", axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the mean along axes, all when None; of integers in float64."""
        whole = self.dtype.kind in "biu"
        x = self.astype(np.float64) if whole else self
        return x._reduced("reduce_mean", axis, keepdims)

    def var(self, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Self:
        """Return the variance along axes, all when None; the sum of squares over n - ddof."""
        away = self - self.mean(axis, keepdims=True)
        found = (away * away).mean(axis, keepdims)
        if ddof:
            self._expect_static("a variance with ddof")
            count = self.size // found.size
            found *= count / (count - ddof) if count > ddof else np.inf
        return found

    def std(self, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Self:
        """Return the standard deviation along axes: the square root of the variance."""
        return self.var(axis, ddof, keepdims)._unary("sqrt")

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the greatest element along axes, all when None; NaN wins."""
        return self._reduced("reduce_max", axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return the least element along axes, all when None; NaN wins."""
        return self._reduced("reduce_min", axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether an element along axes is not 0."""
        return self.astype(bool)._reduced("reduce_any", axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return whether no element along axes is 0."""
        return self.astype(bool)._reduced("reduce_all", axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the greatest element along an axis, or among all; the first."""
        return self._found("arg_max", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """Return the index of the least element along an axis, or among all; the first."""
        return self._found("arg_min", axis, keepdims)

    def _found(self, op: str, axis: int | None, keepdims: bool) -> Self:
        x = self.ravel() if axis is None else self
        found = x._unary(op, axis=0 if axis is None else axis, keepdims=int(keepdims))
        return found.reshape((1,) * self.ndim) if axis is None and keepdims else found

    def cumsum(self, axis: int | None = None) -> Self:
        """Return the running sums along an axis, or of the vector of all elements."""
        x = self.ravel() if axis is None else self
        return x._widened()._unary("cum_sum", np.array(axis or 0, np.int64))


def _dtype_called(dtype: Any) -> np.dtype[Any]:
    """Return a dtype by its name in a graph, or by a name or type that numpy knows, as "f4"."""
    if isinstance(dtype, str) and dtype in NAMES:
        return numpy_dtype(dtype)
    try:
        return numpy_dtype(dtype_name(dtype))
    except TypeError:  # numpy knows no such name
        return numpy_dtype(str(dtype))


def _axes(axis: Axis) -> Array:
    """Return axes as the op's input."""
    return np.array([axis] if isinstance(axis, (int, np.integer)) else axis, np.int64)
