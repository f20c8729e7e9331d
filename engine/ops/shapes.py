"""Rules that the ops' type inference shares: dimensions, axes, broadcasting, constant inputs.

A dimension is an int, a symbol or "?". A rule returns "?" for a dimension that only a run can
determine. It raises ShapeError only for a certain error. `verify.infer_types` adds the node and its
inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.ir.dims import add, floor_divide, larger, multiply, smaller
from trireme.ir.graph import ANY_RANK, UNKNOWN, Dim, TensorType, Value
from trireme.support.dtypes import Array
from trireme.support.errors import ShapeError

Types = tuple[TensorType, ...]
Shape = tuple[Dim, ...]
Ints = tuple[int, ...]


def same_type(x: Value, *others: Value | None, **attrs: object) -> Types:
    """Infer: the output is of the first input's shape and dtype."""
    return (x.type.without_quant(),)


def one(shape: Sequence[Dim], dtype: str) -> Types:
    """Return the types of an op with one output."""
    return (TensorType(shape if isinstance(shape, tuple) else tuple(shape), dtype),)


def dtype_of_sums(x: Value, bias: Value | None) -> str:
    """Return the dtype of products: float32 where a float bias meets a quantised x, else x's."""
    is_float = bias is not None and bias.quant is None and bias.dtype == "float32"
    return "float32" if x.quant is not None and is_float else x.dtype


def differ(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly not equal."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def fit(a: Dim, b: Dim) -> Dim:
    """Return the more precise of two dimensions that must be equal."""
    if isinstance(a, int) or b == UNKNOWN:
        return a
    return b if isinstance(b, int) or a == UNKNOWN else a


def expect(subject: str, found: Dim, wanted: Dim, why: str = "", fix: str = "") -> Dim:
    """Return the common dimension; raise ShapeError for two that certainly differ."""
    if differ(found, wanted):
        reason = f" ({why})" if why else ""
        raise ShapeError(f"{subject} is {found}, expected {wanted}{reason}", fix=fix)
    return fit(found, wanted)


def expect_rank(subject: str, value: Value, *ranks: int) -> int:
    """Return the rank of a value; raise ShapeError when it is none of the allowed ranks."""
    rank = len(value.shape)
    if rank not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ShapeError(f"{subject} has rank {rank}, expected {wanted}")
    return rank


def expect_dims(subject: str, value: Value | None, *dims: Dim) -> None:
    """Raise ShapeError unless a value that is there has these dimensions."""
    if value is None:
        return
    expect_rank(subject, value, len(dims))
    for axis, (found, wanted) in enumerate(zip(value.shape, dims, strict=True)):
        expect(f"dimension {axis} of {subject}", found, wanted)


def expect_single(subject: str, value: Value) -> None:
    """Raise ShapeError if a value is known not to have exactly one element."""
    if value.type.is_static:
        expect(f"elements of {subject}", value.type.elements, 1)


def expect_spread(subject: str, value: Value, shape: Shape) -> None:
    """Raise ShapeError unless a value broadcasts to a shape without changing the shape."""
    if len(value.shape) > len(shape):
        raise ShapeError(f"{subject} has rank {len(value.shape)}, expected at most {len(shape)}")
    for axis, found in enumerate(reversed(value.shape), 1):
        if found != 1:
            expect(f"dimension {-axis} of {subject}", found, shape[-axis])


def axis_of(axis: int, rank: int, subject: str = "axis") -> int:
    """Return the axis counted from the front; raise ShapeError when there is no such axis."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{subject} {axis} is outside rank {rank}")
    return axis % rank if rank else 0


def axes_of(axes: Sequence[int], rank: int, subject: str = "axis") -> tuple[int, ...]:
    """Return distinct axes counted from the front; raise ShapeError for a bad or repeated one."""
    found = tuple(axis_of(axis, rank, subject) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{subject} list {tuple(axes)} names one axis twice")
    return found


def ints_of(value: Value | None) -> tuple[int, ...] | None:
    """Return a constant input as integers; None when it is left out or not constant."""
    dims = dims_of(value)
    if dims is None or any(isinstance(dim, str) for dim in dims):
        return None
    return tuple(int(dim) for dim in dims)


def dims_of(value: Value | None) -> Shape | None:
    """Return the elements of an input as dimensions; None when it is left out or not known.

    Elements are numbers. While the symbolic contents of a graph are followed (ir/contents.py), some
    are symbols.
    """
    if value is None or value.data is None:
        return None
    if value.data.dtype == object:
        return tuple(value.data.reshape(-1))
    return to_ints(value.data)


def to_ints(data: Array) -> tuple[int, ...]:
    """Return an integer array as Python ints, flattened."""
    return tuple(int(v) for v in data.reshape(-1))


MOST_PARTS = 1 << 16
"""The most dimensions or parts of a type, so that a damaged model cannot ask for billions."""


def known_length(value: Value, subject: str) -> int:
    """Return the number of elements of a 1-d input; raise ShapeError when it is unknown."""
    if len(value.shape) != 1 or not isinstance(value.shape[0], int):
        raise ShapeError(f"{subject} is {value.type}, expected one dimension of known length")
    if value.shape[0] > MOST_PARTS:
        raise ShapeError(f"{subject} is {value.type}, expected at most {MOST_PARTS} elements")
    return value.shape[0]


def dims_as_many_as(value: Value, subject: str, more: int = 0) -> Shape:
    """Return unknown dimensions: as many as a 1-d input has elements, and `more`."""
    if len(value.shape) == 1 and isinstance(value.shape[0], str):
        return ANY_RANK
    return (UNKNOWN,) * (known_length(value, subject) + more)


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape numpy's broadcasting gives.

    Errors: ShapeError, if two dimensions differ and neither is 1
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_broadcast_dim(dims, shapes) for dims in zip(*padded, strict=True))


def _broadcast_dim(dims: Sequence[Dim], shapes: Sequence[Shape]) -> Dim:
    numbers = {dim for dim in dims if isinstance(dim, int) and dim != 1}
    if len(numbers) > 1:
        shown = " and ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        raise ShapeError(f"shapes {shown} do not broadcast")
    if numbers:
        return numbers.pop()
    symbols = {dim for dim in dims if isinstance(dim, str)}
    if len(symbols) == 2:
        return _wider(*sorted(symbols))
    return symbols.pop() if len(symbols) == 1 else UNKNOWN if symbols else 1


def _wider(a: str, b: str) -> Dim:
    """Return what two symbolic dimensions broadcast to.

    d beside min(d, n) can only be d, and so it is beside max(d, 0), since it is not below 0.
    """
    for one, other in ((a, b), (b, a)):
        if other.startswith("min(") and smaller(one, other) == other:
            return one
        if other == larger(one, 0):
            return one
    return UNKNOWN


def product(dims: Sequence[Dim]) -> Dim:
    """Return the product of dimensions."""
    made: Dim = 1
    for dim in dims:
        made = multiply(made, dim)
    return made


def total(dims: Sequence[Dim]) -> Dim:
    """Return the sum of dimensions."""
    made: Dim = 0
    for dim in dims:
        made = add(made, dim)
    return made


def windows(
    size: Dim, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil: bool = False
) -> Dim:
    """Return how many windows of a kernel fit along one axis.

    With `ceil`, a last window that starts inside the input or its leading pad counts too. So one
    window may be larger than the input and its pads.
    Errors: ShapeError, if not even one fits. Source: ONNX MaxPool-22, Conv-22
    """
    reach = dilation * (kernel - 1) + 1
    if isinstance(size, str):
        return _symbolic_windows(size, reach, stride, pads, ceil)
    room = size + sum(pads) - reach
    count = room // stride + 1
    if ceil:
        count = min(-(-room // stride) + 1, (size + pads[0] - 1) // stride + 1)
    if count < 1:
        raise ShapeError(
            f"a window of {reach} does not fit into {size} elements and pads {pads[0]}+{pads[1]}"
        )
    return count


def _symbolic_windows(size: str, reach: int, stride: int, pads: tuple[int, int], ceil: bool) -> Dim:
    room = add(size, sum(pads) - reach)
    if not ceil:
        return add(floor_divide(room, stride), 1)
    starts = add(floor_divide(add(size, pads[0] - 1), stride), 1)
    return smaller(add(floor_divide(add(room, stride - 1), stride), 1), starts)


def may_miss(size: int, kernel: int, pads: tuple[int, int], dilation: int) -> bool:
    """Whether a window may hold pads alone along one axis: beside the input, or around it."""
    reach = dilation * (kernel - 1) + 1
    return max(pads) >= reach or (kernel > 1 and size < dilation)


def cropped_kernel(size: int, kernel: int, pads: tuple[int, int], dilation: int) -> int:
    """Return how many elements of a kernel can meet the input or its pads along one axis.

    Windows start at the leading pad or later, so elements further on meet nothing.
    """
    return max(1, min(kernel, -(-(size + sum(pads)) // dilation)))


def spatial_attrs(rank: int, **lists: tuple[int, ...]) -> None:
    """Raise ShapeError for a stride, dilation, kernel or pad list that does not fit the rank."""
    for name, values in lists.items():
        wanted = 2 * rank if name == "pads" else rank
        if len(values) != wanted:
            raise ShapeError(f"{name} has {len(values)} entries, expected {wanted}")
        least = 0 if name in ("pads", "output_padding") else 1
        if any(value < least for value in values):
            raise ShapeError(f"{name}={values} has an entry below {least}")


def window(
    rank: int, strides: Ints | None, pads: Ints | None, dilations: Ints | None = None
) -> tuple[Ints, Ints, Ints]:
    """Return a window's strides, pads and dilations, with defaults filled in."""
    return strides or (1,) * rank, pads or (0,) * 2 * rank, dilations or (1,) * rank


def known_dims(subject: str, dims: Sequence[Dim]) -> tuple[int, ...]:
    """Return dimensions that must be numbers; raise ShapeError when one is not."""
    if not all(isinstance(dim, int) for dim in dims):
        raise ShapeError(f"{subject} is [{','.join(map(str, dims))}], expected numbers")
    return tuple(int(dim) for dim in dims)
