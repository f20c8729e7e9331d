"""Values of an OpenCL region that share bytes, or are copied where they cannot."""

import numpy as np
import pytest

from trireme.builder import GraphBuilder
from trireme.graph import TensorType
from trireme.session import Session


def test_a_reshape_that_leaves_the_region_is_there_for_the_nodes_after_it(devices):
    """Found by random graphs on random devices: relu read the output before it was copied."""
    if "opencl" not in devices:
        pytest.skip("no OpenCL device")
    b = GraphBuilder("reshape")
    x = b.input("x", TensorType((2, 3), "float32"))
    flat = b.add("reshape", x, b.constant("to", np.array([6])), pin="opencl", names=["flat"])
    after = b.add("relu", flat, pin="opencl", names=["after"])
    with Session(b.finish(flat, after), devices=[devices["opencl"]], passes=()) as session:
        for step in (1, 2):
            given = np.full((2, 3), step, np.float32)
            found = session.run({"x": given})
            np.testing.assert_array_equal(found["flat"], given.reshape(-1))
            np.testing.assert_array_equal(found["after"], given.reshape(-1))
