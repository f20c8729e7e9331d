"""Repairs: float graphs keep their meaning, weights make less error, and only gains are kept."""

import time
from dataclasses import replace

import numpy as np
import pytest
from float_graphs import CONV, POOL, conv_net, samples_of, weights

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.model_file import dumps
from trireme.quantiser.prepare import prepare
from trireme.quantiser.repairs.equalise import equalised
from trireme.quantiser.repairs.outliers import outlier_cut
from trireme.quantiser.repairs.products import products
from trireme.quantiser.repairs.rounding import _better, _compensated
from trireme.quantiser.repairs.rounding_work import planned
from trireme.quantiser.repairs.smooth import smoothed
from trireme.quantiser.scheme import scheme_named
from trireme.quantiser.select import select

SEED = 11


def unlike_channels(rng, count, times=30.0):
    """Factors of channels, a few of them many times the others."""
    return np.where(rng.random(count) < 0.1, times, 1.0).astype(np.float32)


def chain(clamp="relu"):
    """Dense, depthwise and dense products with a pool between, their channels unlike."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((1, 12, 12, 8), "float32"))
    for name, out, inside, groups in (("a", 24, 8, 1), ("d", 24, 1, 24), ("c", 16, 24, 1)):
        w = weights(rng, out, 3, 3, inside) * unlike_channels(rng, out)[:, None, None, None]
        bias = rng.standard_normal(out).astype(np.float32)
        data = [b.constant(f"{name}.w", w), b.constant(f"{name}.b", bias)]
        x = b.add(clamp, b.add("conv", x, *data, groups=groups, names=[name], **CONV))
        if name == "a":
            x = b.add("max_pool", x, **POOL)
    return b.finish(x)


def block():
    """A norm read by two products, and a gelu with unlike channels read by a third."""
    rng = np.random.default_rng(SEED)
    b = GraphBuilder("block")
    x = b.input("x", TensorType((1, 10, 32), "float32"))
    scale, shift = (b.constant(n, unlike_channels(rng, 32)) for n in ("scale", "shift"))
    normed = b.add_node("layer_normalization", [x, scale, shift], {"axis": -1}, outputs=3)[0]
    rows = weights(rng, 48, 32) * unlike_channels(rng, 48, 8.0)[:, None]
    up = b.add("fully_connected", normed, b.constant("up", rows), names=["up.y"])
    gate = b.add("fully_connected", normed, b.constant("gate", weights(rng, 48, 32)))
    mixed = b.add("mul", b.add("gelu", up), gate)
    return b.finish(b.add("fully_connected", mixed, b.constant("down", weights(rng, 32, 48))))


def taken_of(graph):
    scheme = scheme_named("int8")
    return select(graph, scheme, scheme.kind_of(graph), ()).taken


def chain_of_relu6():
    return chain("relu6")


@pytest.mark.parametrize(
    ("make", "rewrite"), [(chain, equalised), (chain_of_relu6, equalised), (block, smoothed)]
)
def test_a_rewritten_float_graph_means_the_same(make, rewrite):
    graph = prepare(make(), None)
    feeds = [{k: v[i] for k, v in samples_of(graph, 4, SEED).items()} for i in range(4)]
    made, what = rewrite(graph, taken_of(graph), feeds, 1)
    assert what in ("2 pairs of products", "1 values by their norms, 1 by a mul")
    moved = [
        value.name
        for value in made.values.values()
        if value.is_constant and not any(value is known for known in graph.values.values())
    ]
    assert len(moved) >= 3
    for number in range(3):
        fresh = {k: v[0] for k, v in samples_of(graph, 1, SEED + 1 + number).items()}
        (want,), (found,) = (list(run_reference(g, fresh).values()) for g in (graph, made))
        assert np.abs(want - found).max() <= 2e-6 * np.abs(want).max(), f"seed {SEED}"


def test_channels_that_a_relu6_cuts_keep_their_size():
    """Others grow, with room below the clamp for twice the peak of the samples."""
    graph = prepare(chain("relu6"), None)
    feeds = [{k: v[i] for k, v in samples_of(graph, 4, SEED).items()} for i in range(4)]
    made, _ = equalised(graph, taken_of(graph), feeds, 1)
    node = products(graph, taken_of(graph))[0]
    values = [run_reference(replace(g, outputs=node.outputs), feeds[0]) for g in (graph, made)]
    before, after = (next(iter(one.values())).max(axis=(0, 1, 2)) for one in values)
    cut = before == 6
    assert cut.any() and (after[cut] == 6).all(), f"seed {SEED}"
    assert (after[~cut] > 1.2 * before[~cut]).any() and (after[~cut] < 6).all()


@pytest.mark.parametrize("make", [chain, block])
def test_repairs_help_on_inputs_that_nothing_has_seen(make):
    graph = make()
    data = samples_of(graph, 24, SEED)
    found = {}
    for repairs in ("none", "auto"):
        made = trireme.quantize(graph, data, repairs=repairs, products="integers")
        signal = noise = 0.0
        for number in range(8):
            fresh = {k: v[0] for k, v in samples_of(graph, 1, SEED + 100 + number).items()}
            (want,), (y,) = (list(run_reference(g, fresh).values()) for g in (graph, made))
            signal, noise = signal + (want**2).sum(), noise + ((want - y) ** 2).sum()
        found[repairs] = 10 * np.log10(signal / noise)
    rows = made.quantization.repairs
    assert [row.name for row in rows][0] == "equalisation" and any(row.kept for row in rows)
    for row in rows:
        assert row.kept == (row.after_db is not None and row.after_db > row.before_db + 0.3)
        assert row.name in str(made.quantization)
    assert found["auto"] > found["none"] + 1, (f"seed {SEED}", found, [str(r) for r in rows])


def test_compensated_rows_make_less_error_than_nearest_ones():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((400, 6)) @ rng.standard_normal((6, 40))
    x += 0.1 * rng.standard_normal(x.shape)
    steps = rng.uniform(-127, 127, (20, 40))
    steps[:, 3] = 127
    gram = x.T @ x
    nearest = np.rint(steps)
    made = _better(steps, nearest, gram)
    assert np.array_equal(made, np.rint(made)) and np.abs(made).max(axis=1).min() == 127
    error, plain = (np.linalg.norm((q - steps) @ x.T, axis=1) for q in (made, nearest))
    assert (error <= plain).all() and error.sum() < 0.5 * plain.sum(), f"seed {SEED}"
    alike = _compensated(steps, np.eye(40))
    assert np.array_equal(alike, nearest)


def test_an_outlier_channel_is_cut_and_many_are_none():
    peaks = np.ones(100)
    assert outlier_cut(peaks) is None
    peaks[7] = 9
    assert outlier_cut(peaks) == 1
    peaks[:50] = 9
    assert outlier_cut(peaks) is None


def test_biases_are_corrected_where_there_was_none():
    graph = block()
    data = samples_of(graph, 16, SEED)
    made = trireme.quantize(graph, data, repairs=["bias_correction"], products="integers")
    (row,) = made.quantization.repairs
    assert row.what == "3 biases" and row.after_db is not None
    with_bias = [n for n in made.nodes if n.op == "fully_connected" and len(n.used) == 3]
    assert len(with_bias) == (3 if row.kept else 0)


def test_an_unknown_repair_has_a_sentence():
    with pytest.raises(trireme.GraphError, match="unknown repair 'luck'"):
        trireme.quantize(conv_net(), samples_of(conv_net(), 8), repairs=["luck"])


def test_rounding_stops_at_its_limit_and_says_so():
    graph = chain()
    data = samples_of(graph, 8, SEED)
    (row,) = trireme.quantize(
        graph, data, repairs=["rounding"], round_limit_gflop=1e-3
    ).quantization.repairs
    assert row.after_db is None and row.what == "no product was reached within 0.001 GFLOP"
    assert not trireme.quantize(
        graph, data, repairs=["rounding"], round_limit_gflop=0
    ).quantization.repairs


class SimulatedClock:
    """A clock that goes on by some seconds each time that it is read."""

    def __init__(self, step_s):
        self.step_s, self.now_s = step_s, 0.0

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


def test_the_bytes_are_the_same_on_a_fast_and_on_a_slow_machine(monkeypatch):
    graph = chain()
    data = samples_of(graph, 8, SEED)
    made = []
    for step_s in (1e-6, 60.0):
        clock = SimulatedClock(step_s)
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, clock)
        rounded = trireme.quantize(graph, data)
        monkeypatch.undo()
        assert "rounding" in [row.name for row in rounded.quantization.repairs if row.kept]
        made.append(dumps(rounded))
        assert clock.now_s > step_s
    assert made[0] == made[1], f"seed {SEED}"


def test_what_rounding_reaches_is_decided_by_sizes():
    graph = prepare(chain(), None)
    nodes = products(graph, taken_of(graph))
    whole = list(planned(graph, nodes, 8, 1e12))
    assert [node.id for batch, _ in whole for node in batch] == [node.id for node in nodes]
    costs = [cost for _, batch in whole for cost in batch]
    for count in range(len(nodes) + 1):
        cut = list(planned(graph, nodes, 8, sum(costs[:count]) * (1 + 1e-9)))
        assert sum(len(batch) for batch, _ in cut) == count
