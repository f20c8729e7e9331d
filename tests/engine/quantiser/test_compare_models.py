"""Two models node by node: the node that was spoilt is the first bad one."""

from dataclasses import replace

import numpy as np
import pytest
from commands import call
from float_graphs import CONV, conv_net, samples_of, weights

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.quantization.report import vars_of
from trireme.quantiser.compare_models import compare_models

SEED = 3


@pytest.fixture(scope="module")
def models():
    net = conv_net(SEED)
    data = samples_of(net, 16, SEED)
    return net, data, trireme.quantize(net, data, ranges="min_max", repairs="none")


def spoilt(graph, name):
    """Return the graph with the weights of the node that makes a value turned round."""
    node = next(n for n in graph.nodes if graph.values[n.outputs[0]].first_name == name)
    w = graph.values[node.used[1]]
    values = dict(graph.values) | {w.id: replace(w, data=np.ascontiguousarray(w.data[::-1]))}
    return trireme.Graph(**vars_of(graph) | {"values": values})


def unlike_net():
    """Two convs with a relu between, one channel of which is much larger than the others."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("unlike")
    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    w, v = weights(rng, 8, 3, 3, 3), weights(rng, 4, 3, 3, 8)
    w[3], v[..., 3] = w[3] * 40, v[..., 3] / 40
    first = b.add("relu", b.add("conv", x, b.constant("w", w), **CONV), names=["first"])
    return b.finish(b.add("conv", first, b.constant("v", v), names=["last"], **CONV))


def test_channels_that_a_repair_multiplied_are_no_error(tmp_path):
    net = unlike_net()
    data = samples_of(net, 16, SEED)
    made = trireme.quantize(net, data, ranges="min_max", repairs=["equalisation"])
    assert [one.kept for one in made.quantization.repairs] == [True]
    trireme.save(made, tmp_path / "m8.trm")
    for model in (made, tmp_path / "m8.trm"):
        found = compare_models(model, net, data)
        assert found.first_bad is None and min(one.snr_db for one in found.nodes) > 30, found
    assert compare_models(spoilt(made, "first"), net, data).first_bad.name == "first"


def test_every_node_is_matched_and_has_the_ratio_of_the_report(models):
    net, data, made = models
    found = compare_models(made, net, data, samples=16)
    integers = {n.outputs[0] for n in made.nodes if n.op not in ("quantize", "dequantize")}
    assert len(found.nodes) >= len(integers)
    assert found.agrees and found.first_bad is None and found.samples == 16
    report = {one.name: one.snr_db for one in made.quantization.tensors}
    for row in found.nodes:
        if row.name in report:
            assert row.snr_db == pytest.approx(report[row.name], abs=3), f"seed {SEED}"


@pytest.mark.parametrize("name", ["first.act", "point", "last", "head"])
def test_the_spoilt_node_is_the_first_bad_one(models, name):
    net, data, made = models
    found = compare_models(spoilt(made, name), net, data)
    assert found.first_bad.name.removesuffix("_int8") == name
    assert found.first_bad.loss_db > 10 or name == "first.act"  # nothing was lost before it
    assert f"first bad node: {found.first_bad.op} {found.first_bad.name}" in str(found)


def test_other_inputs_have_a_sentence(models):
    net, data, made = models
    named = {v.id: replace(v, name="other") for v in net.input_values()}
    other = trireme.Graph(**vars_of(net) | {"values": dict(net.values) | named})
    with pytest.raises(trireme.GraphError, match="other inputs or outputs"):
        compare_models(made, other, data)


def test_the_command_names_the_first_bad_node(models, tmp_path, capsys):
    net, data, made = models
    trireme.save(net, tmp_path / "f.trm")
    trireme.save(made, tmp_path / "q.trm")
    trireme.save(spoilt(made, "last"), tmp_path / "bad.trm")
    np.savez(tmp_path / "d.npz", **data)
    ends = ["--against", str(tmp_path / "f.trm"), "--data", str(tmp_path / "d.npz")]
    code, out, err = call(capsys, "verify", str(tmp_path / "q.trm"), *ends)
    assert code == 0 and "ok: every node has 20 dB or more" in out, err
    code, out, err = call(capsys, "verify", str(tmp_path / "bad.trm"), *ends)
    assert "first bad node: conv last" in out
    code, _, err = call(capsys, "verify", str(tmp_path / "q.trm"), *ends[:2])
    assert code == 2 and "give --data FILE" in err
