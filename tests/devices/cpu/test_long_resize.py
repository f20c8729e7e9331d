"""A resize to an axis without bounds is refused at once: its tables would take seconds."""

import time

import numpy as np
import pytest

from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_an_axis_of_too_many_positions_has_no_kernel(mode):
    b = GraphBuilder("long")
    x = b.input("x", TensorType((1, 5, 7, 3), "float32"))
    sizes = b.constant("sizes", np.array([1, 11, 100_663_305, 3]))
    graph = b.finish(b.add("resize", x, None, None, sizes, mode=mode))
    device = open_device("cpu", threads=1)
    began_s = time.process_time()
    note = device.kernel_note(graph, graph.nodes[0])
    assert "an axis of 100663305 positions" in note
    assert time.process_time() - began_s < 1
    device.close()
