"""STABLEHLO_SCATTER, as PyTorch's converter writes it: whole windows put at places of some axes."""

from __future__ import annotations

from trireme.converters.tflite.ops import same
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ir.graph import Dim
from trireme.support.errors import ModelFileError

_REDUCTIONS = {
    "ADD": "add",
    "STABLEHLO_ADD": "add",
    "MUL": "mul",
    "STABLEHLO_MULTIPLY": "mul",
    "MAXIMUM": "max",
    "STABLEHLO_MAXIMUM": "max",
    "MINIMUM": "min",
    "STABLEHLO_MINIMUM": "min",
}


def stablehlo_scatter(use: OperatorUse) -> None:
    """STABLEHLO_SCATTER (x, indices, updates), whose windows have the whole of the other axes.

    An update whose place is not in x is left out.

    Errors: ConvertError, for windows inside x and for another computation
    """
    x, places, updates = (use.type(position).shape for position in range(3))
    axes = list(use.option_ints("ScatterDimsToOperandDims"))
    inserted = use.option_ints("InsertedWindowDims")
    windows = list(use.option_ints("UpdateWindowDims"))
    others = [axis for axis in range(len(x)) if axis not in axes]
    if not all(0 <= axis < len(x) for axis in axes) or len(set(axes)) != len(axes):
        raise ModelFileError(f"{use.source}: axes {axes} of {use.type(0)}")
    if not all(0 <= axis < len(updates) for axis in windows):
        raise ModelFileError(f"{use.source}: windows {windows} of {use.type(2)}")
    whole: list[Dim] = [updates[axis] for axis in windows]
    if not axes or sorted(inserted) != sorted(axes) or whole != [x[axis] for axis in others]:
        raise use.fail("a window that is not the whole of its axes is not supported")
    if use.option("IndexVectorDim") != len(places) - 1 or places[-1] != len(axes):
        raise use.fail("indices whose last axis is not a place are not supported")
    if use.quant(0) != use.quant(2):
        raise use.fail("x and the updates have different quantisation")
    quant = use.quant(0)
    rows = [axis for axis in range(len(updates)) if axis not in windows]
    to_front = [*axes, *others]
    front = use.add("transpose", use.value(0), perm=to_front, quant=quant)
    new = use.add("transpose", use.value(2), perm=[*rows, *windows], quant=quant)
    # what lies outside of x goes to one more place of each axis, which is cut off again
    first = use.int_constant(range(len(axes)))
    ends = use.int_constant([0] * len(axes) + [1] * len(axes))
    into = use.add("pad", front, ends, None, first, mode="constant", quant=quant)
    sizes = use.add("gather", use.add("shape", use.value(0)), use.int_constant(axes), axis=0)
    put = use.add(
        "scatter_nd", into, _inside(use, sizes), new, reduction=_reduction(use), quant=quant
    )
    starts = use.int_constant([0] * len(axes))
    kept = use.add("slice", put, starts, sizes, first, quant=quant)
    use.done("transpose", kept, perm=[to_front.index(axis) for axis in range(len(x))])


def _inside(use: OperatorUse, sizes: int) -> int:
    """Return the indices; those of a place outside of x are the sizes."""
    indices, zero = use.add("cast", use.value(1), to="int64"), use.int_constant([0])
    low, high = use.add("less", indices, zero), use.add("greater_or_equal", indices, sizes)
    out = use.add("reduce_any", use.add("or", low, high), use.int_constant([-1]), keepdims=1)
    return use.add("where", out, sizes, indices)


def _reduction(use: OperatorUse) -> str:
    """Return how an update meets what is there: the subgraph takes (there, update)."""
    (index,) = use.operator.subgraphs
    graph = use.state.scope.model.graphs[index]
    if not graph.operators and graph.outputs == graph.inputs[1:2]:
        return "none"
    codes = [operator.code for operator in graph.operators]
    if len(codes) != 1 or codes[0] not in _REDUCTIONS:
        raise use.fail(f"a scatter that computes {', '.join(codes) or 'nothing'} is not supported")
    return _REDUCTIONS[codes[0]]


SCATTERS: dict[str, Converter] = {
    "STABLEHLO_ADD": same("add"),
    "STABLEHLO_MAXIMUM": same("max"),
    "STABLEHLO_MINIMUM": same("min"),
    "STABLEHLO_MULTIPLY": same("mul"),
    "STABLEHLO_SCATTER": stablehlo_scatter,
}
