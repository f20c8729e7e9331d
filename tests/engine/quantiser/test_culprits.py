"""The nodes that make the error are named, and ranges are chosen by the measured error."""

import numpy as np
import pytest
from float_graphs import conv_net, encoder_block, samples_of

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


def rows_explained(net):
    data = samples_of(net, 12, SEED)
    made = trireme.quantize(net, data, explain=True, ranges="min_max", repairs="none")
    assert made.quantization.products == "rows", f"seed {SEED}"
    return data, made.quantization


def test_a_culprit_on_rows_gains_what_keeping_it_float_gives():
    net = encoder_block(SEED)
    data, report = rows_explained(net)
    rows = report.culprits
    assert len(rows) == len(report.weights) == 4
    assert [row.gain_db for row in rows] == sorted((row.gain_db for row in rows), reverse=True)
    whole, without = (
        trireme.quantize(net, data, scheme="dynamic", keep_float=kept).quantization.outputs[0]
        for kept in ([], [rows[0].name])
    )
    assert without.snr_db - whole.snr_db > 0.1, f"seed {SEED}"
    assert rows[0].gain_db > 0.1
    assert all(row.made_db > row.snr_db - 0.1 for row in rows)
    assert "rows take none" in str(rows[0])


def test_a_channel_that_widens_the_rows_of_a_product_is_named():
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("wide")
    x = b.input("x", TensorType((1, 8, 32), "float32"))
    one, zero = b.constant("one", np.ones(32, np.float32)), b.constant("zero", np.zeros(32, "f4"))
    arrays = [rng.standard_normal((32, 32)).astype(np.float32) / 6 for _ in range(2)]
    factors = np.ones(32, np.float32)
    factors[5] = 40
    w = [b.constant("w", array) for array in (arrays[0] / factors, arrays[1])]
    wide = b.add("layer_normalization", x, b.constant("factors", factors), zero, axis=-1)
    first = b.add("fully_connected", wide, w[0], names=["first"])
    y = b.add("softmax", b.add("fully_connected", first, w[1], names=["second"]))
    _, report = rows_explained(b.finish(b.add("layer_normalization", y, one, zero, axis=-1)))
    known = {row.name: row for row in report.culprits}
    assert "channel 5 of its input" in known["first"].cause, f"seed {SEED}"


@pytest.mark.parametrize("times", [1, 40])
def test_a_channel_that_widens_the_range_of_a_product_is_named(times):
    """One filter is larger than the others, and what reads its channel is smaller."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("wide")
    x = b.input("x", TensorType((1, 8, 8, 3), "float32"))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NHWC"}
    one = rng.standard_normal((16, 3, 3, 3)).astype(np.float32)
    one[3] *= times
    edges = b.add("relu", b.add("conv", x, b.constant("w", one), **window), names=["edges"])
    other = rng.standard_normal((8, 3, 3, 16)).astype(np.float32)
    other[..., 3] /= times
    net = b.finish(b.add("conv", edges, b.constant("v", other), names=["shapes"], **window))
    report = trireme.quantize(net, samples_of(net, 8, SEED), explain=True, repairs="none")
    known = {row.name: row for row in report.quantization.culprits}
    assert ("channel 3 of its input is" in known["shapes"].cause) == (times > 1), f"seed {SEED}"
    assert ("equalisation" in known["shapes"].repair) and "channel" not in known["edges"].cause
    if times > 1:
        data = samples_of(net, 8, SEED)
        tried = trireme.quantize(net, data, explain=True, repairs="equalisation").quantization
        assert tried.outputs[0].snr_db > report.quantization.outputs[0].snr_db + 3
        assert not any("channel" in row.cause for row in tried.culprits), f"seed {SEED}"


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
