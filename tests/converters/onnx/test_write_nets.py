"""Nets quantised here, in ONNX Runtime through the written QDQ file: each node within one unit.

A whole net is not within one unit everywhere. Units that single nodes may differ by add up
(docs/experiments/quantised-files.md), so the whole net is compared by signal-to-noise.
"""

import numpy as np
import pytest
from float_graphs import conv_net, encoder_block

pytest.importorskip("onnxruntime")
import qdq_nodes
from ort_integers import adds_exactly
from quantising_peers import installed

import trireme
from trireme.converters.onnx.write import names
from trireme.ir.interpreter import run_reference

SEED = 20261126
NETS = {"conv_net": (conv_net, {}), "encoder_block": (encoder_block, {"products": "integers"})}


def made(name, scheme):
    """Return the graph of integers of a net, and feeds that no range has seen."""
    print("seed", SEED)
    make, options = NETS[name]
    net = make(SEED)
    (x,) = net.input_values()
    rng = np.random.default_rng(SEED)
    samples = rng.standard_normal((9, *x.type.dims)).astype(np.float32)
    graph = trireme.quantize(net, {x.name: samples[:8]}, scheme=scheme, repairs="none", **options)
    return graph, {x.name: samples[8]}


@pytest.mark.parametrize("scheme", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETS)
def test_every_node_is_within_a_unit_of_onnx_runtime(name, scheme):
    """With its optimiser off, and with its kernels of integers."""
    graph, feeds = made(name, scheme)
    for optimised in (False, True) if adds_exactly() else (False,):
        rows = list(qdq_nodes.local(graph, feeds, optimised))
        assert len(rows) > 5
        for row in rows:
            assert row.within == 1, f"{row.op} '{row.name}', optimised {optimised}"


@pytest.mark.parametrize("name", NETS)
def test_a_whole_net_is_near_onnx_runtime(name):
    graph, feeds = made(name, "int8")
    shares = [row.within for row in qdq_nodes.whole(graph, feeds) if row.units is not None]
    assert np.mean(shares) > 0.9
    qdq_nodes.session(graph, optimised=True)  # whose optimiser refused products of rows


@pytest.mark.parametrize("wide", [False, True])
def test_a_net_of_int16_is_near_onnx_runtime(wide, monkeypatch):
    """Its biases of int64 are int32 in the file, or floats where they do not fit."""
    graph, feeds = made("conv_net", "int16x8")
    if wide:
        monkeypatch.setattr(names, "MOST_INT32", 0)
    (found,) = qdq_nodes.session(graph, optimised=False).run(None, feeds)
    (right,) = run_reference(graph, feeds).values()
    assert np.square(found - right).sum() < 1e-5 * np.square(right).sum()


@pytest.mark.slow
@pytest.mark.skipif(
    not installed("torch", "transformers", "sklearn"),
    reason="torch, transformers or scikit-learn is missing",
)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "bert_mini", "vit_tiny", "swin"])
def test_every_node_of_a_model_is_within_a_unit_of_onnx_runtime(name):
    options = {} if name in ("resnet18", "mobilenet_v2") else {"products": "integers"}
    for row in qdq_nodes.local(*qdq_nodes.quantised(name, **options)):
        assert row.within == 1, f"{row.op} '{row.name}'"
