"""TensorFlow Lite operators that count, order, scatter or fill; and a few rarer computations."""

from __future__ import annotations

import numpy as np

from trireme.converters.tflite.ops import reduction, same
from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import ModelFileError


def cumsum(use: OperatorUse) -> None:
    """CUMSUM (x, axis)."""
    (axis,) = use.ints(1)
    at = use.builder.constant(f"{use.source}_axis", np.array(axis, np.int64))
    use.done(
        "cum_sum",
        use.value(0),
        at,
        exclusive=int(use.option("Exclusive", False)),
        reverse=int(use.option("Reverse", False)),
    )


def fill(use: OperatorUse) -> None:
    """FILL (shape, value)."""
    use.done("expand", use.value(1), use.sizes(0))


def local_response_normalization(use: OperatorUse) -> None:
    """LOCAL_RESPONSE_NORMALIZATION: ONNX divides alpha by the window's size, this does not."""
    size = 2 * use.option("Radius") + 1
    use.done(
        "lrn",
        use.value(0),
        size=size,
        alpha=use.option("Alpha", 1.0) * size,
        beta=use.option("Beta", 0.5),
        bias=use.option("Bias", 1.0),
        layout="NHWC",
    )


def one_hot(use: OperatorUse) -> None:
    """ONE_HOT (indices, depth, on, off)."""
    (depth,) = use.ints(1)
    values = np.stack([use.constant(3).reshape(()), use.constant(2).reshape(())])
    use.done(
        "one_hot",
        use.value(0),
        use.int_constant([depth]),
        use.builder.constant(f"{use.source}_values", values),
        axis=use.option("Axis", -1),
    )


def reverse_sequence(use: OperatorUse) -> None:
    """REVERSE_SEQUENCE (x, lengths)."""
    lengths = use.add("cast", use.value(1), to="int64")
    time, batch = use.option("SeqDim"), use.option("BatchDim")
    use.done("reverse_sequence", use.value(0), lengths, time_axis=time, batch_axis=batch)


def scatter_nd(use: OperatorUse) -> None:
    """SCATTER_ND (indices, updates, shape): updates added to zeros."""
    shape = use.ints(2)
    if any(dim < 0 for dim in shape) or np.prod(shape, dtype=object) > 1 << 28:
        raise ModelFileError(f"{use.source}: the shape is {list(shape)}")
    zeros = np.zeros(shape, numpy_dtype(use.type(1).dtype))
    into = use.builder.constant(f"{use.source}_zeros", zeros)
    at = use.add("cast", use.value(0), to="int64")
    use.done("scatter_nd", into, at, use.value(1), reduction="add")


def shape_of(use: OperatorUse) -> None:
    """SHAPE as int32 or int64."""
    if use.output().dtype == "int64":
        use.done("shape", use.value(0))
    else:
        use.done("cast", use.add("shape", use.value(0)), to=use.output().dtype)


def rank_of(use: OperatorUse) -> None:
    """RANK: a constant from the type."""
    rank = np.array(len(use.type(0).shape), np.int32)
    use.bind(0, use.builder.constant(use.output().name, rank))


def zeros_like(use: OperatorUse) -> None:
    """ZEROS_LIKE: the stored zero, spread over the shape."""
    zero = use.float_constant(0, use.type(0).dtype)
    use.done("expand", zero, use.add("shape", use.value(0)))


def top_k(use: OperatorUse) -> None:
    """TOPK_V2 (x, k): values, and indices as int32."""
    (k,) = use.ints(1)
    outputs = [use.output(0), use.output(1)]
    names = [use.state.names.get(t.index, t.name) for t in outputs]
    values, places = use.builder.add_node(
        "top_k",
        [use.value(0), use.int_constant([k])],
        {"axis": -1},
        outputs=2,
        names=[names[0], ""],
        quants=[outputs[0].quant],
        source=use.source,
    )
    use.bind(0, values)
    (narrow,) = use.builder.add_node(
        "cast", [places], {"to": outputs[1].dtype}, names=names[1:], source=use.source
    )
    use.bind(1, narrow)


def where(use: OperatorUse) -> None:
    """WHERE (condition): the indices of true elements, a row each."""
    use.done("transpose", use.add("non_zero", use.value(0)), perm=(1, 0))


ORDERERS: dict[str, Converter] = {
    "ADD_N": same("sum"),
    "ATAN2": same("atan2"),
    "BITCAST": lambda use: use.done("bit_cast", use.value(0), to=use.output().dtype),
    "CUMSUM": cumsum,
    "FILL": fill,
    "FLOOR_MOD": same("mod", zero="dividend"),
    "LOCAL_RESPONSE_NORMALIZATION": local_response_normalization,
    "ONE_HOT": one_hot,
    "RANGE": same("range"),
    "RANK": rank_of,
    "REDUCE_ALL": reduction("reduce_all"),
    "REDUCE_ANY": reduction("reduce_any"),
    "REVERSE_SEQUENCE": reverse_sequence,
    "REVERSE_V2": lambda use: use.done("reverse", use.value(0), axes=use.ints(1)),
    "SCATTER_ND": scatter_nd,
    "SHAPE": shape_of,
    "TOPK_V2": top_k,
    "WHERE": where,
    "ZEROS_LIKE": zeros_like,
}
