"""Functions of the user as nodes: `python`. The host calls them (`devices/host`)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trireme.ir.graph import Value
from trireme.ir.op import Attr, Call, Sample, define, output_elements
from trireme.ir.python_op import OP, PythonOp, python_op
from trireme.ops.shapes import Types
from trireme.support.dtypes import ANY, Array


def _infer(*xs: Value | None, operator: PythonOp, arguments: str) -> Types:
    return operator.types([None if x is None else x.type for x in xs], arguments)


def _reference(*xs: Array | None, operator: PythonOp, arguments: str) -> tuple[Array, ...]:
    return operator.run(xs, arguments)


def _flops(call: Call) -> int:
    operator: PythonOp = call.attrs["operator"]
    found = operator.flops(call.inputs, call.attrs["arguments"])
    return output_elements(call) if found is None else found


def _sort_part(x: Array, k: int) -> tuple[Array, Array]:
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(x, order, axis=-1), order.astype(np.int64)


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 7)).astype(np.float32)
    double = python_op(lambda x: x + x, name="double")
    yield Sample((x,), double.attrs(), note="the first input's type")
    largest = python_op(
        _sort_part,
        inputs=["float32"],
        outputs=["float32", "int64"],
        shape=lambda x, k: [(*x[:-1], k), (*x[:-1], k)],
        name="largest",
    )
    yield Sample((x,), largest.attrs(k=3), note="two outputs, an argument")


define(
    OP,
    "xs*",
    "ys = the function `operator` of the inputs, and of the JSON `arguments` by name. The function "
    "declares its types; a file holds its name alone",
    _infer,
    _reference,
    outputs="y ys*",
    attrs={"operator": Attr("operator"), "arguments": Attr("str", "{}")},
    flops=_flops,
    samples=_samples,
    family="python",
    bounded=False,
    dtypes=(ANY,),
)
