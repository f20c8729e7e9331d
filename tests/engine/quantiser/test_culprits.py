"""The nodes that make the error are named, and ranges are chosen by the measured error."""

import numpy as np
import pytest
from float_graphs import conv_net, samples_of

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

SEED = 7


def test_a_culprits_gain_is_that_of_keeping_it_float():
    net = conv_net(SEED)
    data = samples_of(net, 12, SEED)
    plain = {"ranges": "min_max", "repairs": "none"}
    made = trireme.quantize(net, data, explain=True, **plain)
    rows = made.quantization.culprits
    assert [row.gain_db for row in rows] == sorted((row.gain_db for row in rows), reverse=True)
    alone = trireme.quantize(net, data, keep_float=[rows[0].name], **plain)
    gain = alone.quantization.outputs[0].snr_db - made.quantization.outputs[0].snr_db
    assert gain == pytest.approx(rows[0].gain_db, abs=1e-6), f"seed {SEED}"
    assert "Left float, the output gains" in str(made.quantization)
    assert 6 <= len(rows) <= 16
    assert all("were not tried" in row.repair or "no repair" in row.repair for row in rows)


def test_a_node_that_stays_float_has_the_weights_of_the_float_model():
    """Rounded weights are right for integers alone."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("head")
    x = b.input("x", TensorType((4, 32), "float32"))
    w = b.constant("w", rng.standard_normal((8, 32)).astype(np.float32))
    net = b.finish(b.add("fully_connected", x, w, names=["last"]))
    data = {"x": (rng.standard_normal((24, 4, 3)) @ rng.random((3, 32))).astype(np.float32)}
    made = trireme.quantize(net, data, explain=True, ranges="min_max", repairs="rounding")
    (repair,), (row,) = made.quantization.repairs, made.quantization.culprits
    assert repair.kept, f"seed {SEED}"
    assert row.gain_db > 60


def test_the_error_made_in_a_node_is_less_than_with_what_it_inherits():
    net = conv_net(SEED)
    report = trireme.quantize(net, samples_of(net, 12, SEED), explain=True).quantization
    known = {one.name: one for one in report.tensors if one.made_db is not None}
    assert len(known) >= 6
    assert known["last"].made_db > known["last"].snr_db, f"seed {SEED}"
    tried = {row.name: str(row) for row in report.repairs}
    named = [row.repair for row in report.culprits if "no repair" not in row.repair]
    assert named and all(tried["rounding"] in one or "smooth_quant" in one for one in named)


def test_auto_keeps_the_ranges_of_least_error():
    net = conv_net(SEED)
    data = samples_of(net, 12, SEED)
    report = trireme.quantize(net, data, repairs="none").quantization
    assert len(report.tried_db) == 3
    best = max(report.tried_db, key=report.tried_db.get)
    assert {one.method for one in report.tensors} == {best, "fixed"}
    for method, found in report.tried_db.items():
        alone = trireme.quantize(net, data, ranges=method, repairs="none").quantization
        assert alone.tried_db == {method: found}
