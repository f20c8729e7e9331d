"""Keep state from run to run: a counter in a graph."""

import numpy as np

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


def main() -> None:
    """Add to a total three times, then start again."""
    b = GraphBuilder("counter")
    x = b.input("x", TensorType((), "float32"))
    zero = b.constant("zero", np.zeros((), np.float32))
    total = b.add("add", b.add("variable", zero, state="total"), x)
    b.add("assign", total, state="total")
    with trireme.Session(b.finish(total), devices=["cpu"]) as session:
        for _ in range(3):
            print(session.run({"x": np.float32(2)}))
        session.reset()
        print(session.run({"x": np.float32(2)}))


if __name__ == "__main__":
    main()
