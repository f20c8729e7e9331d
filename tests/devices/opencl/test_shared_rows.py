"""Rows of a softmax, a norm or a reduction that the items of a GPU's work-group share."""

import numpy as np
import opencl
import pytest

from trireme.backend.registry import open_device
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import interpret


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    opencl.need_opencl()
    made = open_device(
        "opencl", tuning="desktop_gpu", cache_dir=tmp_path_factory.mktemp("programs")
    )
    made.programs.options.append("-cl-opt-disable")
    yield made
    made.close()


def rows(op, dims, **attrs):
    b = GraphBuilder(op)
    x = b.input("x", TensorType(dims, "float32"))
    more = []
    if op == "layer_normalization":
        more = [b.constant(n, np.linspace(-1, 2, dims[-1], dtype=np.float32)) for n in "sb"]
    if op.startswith("reduce"):
        more = [b.constant("axes", np.array([1]))]
    return b.finish(b.add(op, x, *more, **attrs))


ROWS = {
    "softmax": ("softmax", {"axis": -1}),
    "scaled softmax": ("softmax", {"axis": -1, "beta": 0.5}),
    "log_softmax": ("log_softmax", {"axis": -1}),
    "layer_normalization": ("layer_normalization", {"axis": -1}),
    "reduce_mean": ("reduce_mean", {}),
    "reduce_max": ("reduce_max", {}),
    "reduce_log_sum": ("reduce_log_sum", {}),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_items_share_agree(device, name):
    """Sizes around the number of items, numbers of rows around a group's; NaN and infinities."""
    op, attrs = ROWS[name]
    graphs = [rows(op, dims, **attrs) for dims in ((1, 8), (3, 33), (5, 300), (2, 4000))]
    for graph, executable in zip(graphs, device.compile(graphs), strict=True):
        assert "_shared" in str(executable.steps[0].name)
        feeds = opencl.feed(graph)
        (x,) = feeds.values()
        if op == "reduce_log_sum":
            x[:] = abs(x)
        for special in (None, np.nan, -np.inf):
            if special is not None:
                x[0, 5] = special
            with np.errstate(all="ignore"):
                wanted = interpret(graph, feeds)[graph.outputs[0]]
            found = opencl.run(device, graph, feeds, executable)[0][0]
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5, err_msg=f"{x.shape}")
