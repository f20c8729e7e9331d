"""A constant of strings may be an output, of graphs with open shapes and without."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.session import Session

WORDS = np.array(["a", "ünï", ""], object)


@pytest.mark.parametrize("rows", [3, "rows"])
def test_a_constant_of_strings_is_an_output(rows):
    b = GraphBuilder("words")
    if rows == "rows":
        b.symbols["rows"] = (1, 9)
    x = b.input("x", TensorType((rows, 4), "float32"))
    names = b.constant("names", WORDS)
    graph = b.finish(b.add("relu", x, names=["y"]), names)
    data = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with Session(graph, threads=1) as session:
        for _ in range(2):
            found = session.run({"x": data})
            np.testing.assert_array_equal(found["y"], np.maximum(data, 0))
            assert found["names"].tolist() == WORDS.tolist()
