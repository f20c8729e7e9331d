"""Write 8-bit ops of one input as tables: a GATHER from the 256 results."""

from __future__ import annotations

import numpy as np

from trireme.converters.tflite.write.use import NodeWriter, cast_types
from trireme.ir.graph import Quant, TensorType
from trireme.ir.op import Call
from trireme.ops import integer
from trireme.support.dtypes import Array, dtype_name


def table(use: NodeWriter) -> None:
    """Write an op on one 8-bit value as a GATHER from its 256 results."""
    x, y = use.type(), use.output()
    is_wide = "int16" in (x.dtype, y.dtype)
    if use.op.integer_form != "table" or x.quant is None or y.quant is None or is_wide:
        raise use.error("TensorFlow Lite has no such operator on quantised values")
    inputs = tuple(use.value(position) for position in range(len(use.node.inputs)))
    entries = integer.unary_table(use.node.op, Call(inputs, (y,), use.attrs))
    index, data = _index(use, use.x(), entries)
    use.done("GATHER", [use.array(data, y.quant), index], "GatherOptions", Axis=0)


def looked_up(use: NodeWriter, x: int, entries: Array, quant: Quant | None) -> int:
    """Add the entries of a table at the stored bytes of a tensor."""
    type = use.tensors.type_of(x)
    index, data = _index(use, x, entries)
    to = TensorType(type.shape, dtype_name(entries.dtype), quant)
    return use.add("GATHER", [use.array(data, quant), index], to, "GatherOptions", Axis=0)


def _index(use: NodeWriter, x: int, entries: Array) -> tuple[int, Array]:
    """Return the number of each byte's entry, and the entries in the order of the numbers."""
    type = use.tensors.type_of(x)
    at = TensorType(type.shape, "int32")
    index = use.add("CAST", [x], at, "CastOptions", **cast_types(type, at))
    least = int(np.iinfo(type.dtype).min)
    if not least:
        return index, entries
    shifted = use.add("SUB", [index, use.scalar(least, "int32")], at, "SubOptions")
    return shifted, np.roll(entries, -least)
