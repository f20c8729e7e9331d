"""The random graphs that other tests feed on: valid, varied, the same for the same seed."""

import numpy as np
import pytest
from random_graphs import (
    FLOAT_ONLY,
    MAKERS,
    QUANTISED_ONLY,
    random_feeds,
    random_graph,
)

from trireme.ir.interpreter import run_reference
from trireme.model_file import dumps, loads


@pytest.mark.parametrize("quantised", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("seed", range(12))
def test_they_run_and_survive_the_file(seed, quantised):
    print("seed", seed)
    graph = random_graph(seed, 25, quantised=quantised)
    assert len(graph.nodes) == 25
    data = dumps(graph)
    assert data == dumps(random_graph(seed, 25, quantised=quantised))
    loaded = loads(data)
    assert str(loaded) == str(graph) and dumps(loaded) == data
    feeds = random_feeds(graph, seed)
    results, again = run_reference(graph, feeds), run_reference(loaded, feeds)
    for name, array in results.items():
        assert array.tobytes() == again[name].tobytes()
        assert np.isfinite(array.astype(np.float64)).all()


@pytest.mark.parametrize("name", MAKERS)
def test_every_maker_makes(name):
    for quantised in (False, True):
        if name in (FLOAT_ONLY if quantised else QUANTISED_ONLY):
            continue
        graph = random_graph(3, 6, ops=[name, "relu"], quantised=quantised, pins=["cpu", "npu"])
        op = "conv" if name == "depthwise" else name
        assert op in {node.op for node in graph.nodes}
        assert {node.pin for node in graph.nodes} <= {None, "cpu", "npu"}
