"""A new op: one OpDef, and it runs in sessions, in eager mode and on the references."""

from collections.abc import Iterable

import numpy as np

import trireme
from trireme import eager
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.op import Call, Sample, define
from trireme.ops.shapes import same_type
from trireme.support.dtypes import FLOATING, Array


def squareplus(x: Array) -> Array:
    """Compute in float64 and round once: this is the meaning of the op."""
    wide = x.astype(np.float64)
    return ((wide + np.sqrt(wide * wide + 4)) / 2).astype(x.dtype)


def flops(call: Call) -> int:
    """Return the operations of a call, which placement prices."""
    return 4 * call.outputs[0].elements


def samples(rng: np.random.Generator) -> Iterable[Sample]:
    """Yield inputs that every device with a kernel must get right."""
    yield Sample((rng.standard_normal((2, 5)).astype(np.float32),))


def main() -> None:
    """Define the op, call it, and run a graph with it."""
    define(
        "squareplus",
        "x",
        "y = (x + sqrt(x^2 + 4)) / 2. Source: Barron 2021, arXiv:2112.11687",
        same_type,
        squareplus,
        flops=flops,
        samples=samples,
        rtol=2e-6,
        dtypes=(FLOATING,),
        elementwise=True,
    )
    x = np.array([-1, 0, 1], np.float32)
    print(eager.run("squareplus", x))
    b = GraphBuilder("example")
    graph = b.finish(b.add("squareplus", b.input("x", TensorType(x.shape, "float32"))))
    with trireme.Session(graph, devices=["cpu"]) as session:
        print(session.run({"x": x}))
        print(trireme.explain(session.placement))


if __name__ == "__main__":
    main()
