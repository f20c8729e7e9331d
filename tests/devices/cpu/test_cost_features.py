"""What the cpu device says of its kernels: amounts, families, and the parts of a large batch."""

from contextlib import closing

import numpy as np
import pytest

from trireme.backend.core_latency import BYTES, FLAGS
from trireme.backend.registry import open_device
from trireme.calibration.net_builder import Net, build
from trireme.calibration.nets import NETS
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise
from trireme.placement.shards.batch import batched

_WIDE = Net("wide", "float32", (1, 96, 96, 16), [("separable", 48), ("separable", 48)])


def cost_features(graph, threads):
    with closing(open_device("cpu", threads=threads)) as device:
        return device.cost_features(graph)


def test_short_runs_have_two_prices():
    net = next(net for net in NETS if net.name == "tiny")
    for threads in (1, 2):
        for work in cost_features(optimise(build(net)), threads):
            assert (work.alone is not None) == (threads == 2)
            if work.alone:
                family = work.family.removesuffix(" columns")
                assert work.alone.family == f"{family} alone"
                assert work.alone.terms["model_s"] >= work.terms["model_s"]


def test_bytes_pass_between_cores_where_there_are_several():
    graph = optimise(build(_WIDE))
    for work in cost_features(graph, 1):
        assert FLAGS not in work.terms and not any(name.startswith(BYTES) for name in work.terms)
    for work in cost_features(graph, 2):
        assert (
            work.terms[BYTES + "bytes"] == work.terms.get("bytes", work.terms[BYTES + "bytes"]) > 0
        )
        assert not any(name.startswith(BYTES) for name in work.alone.terms)


def test_threads_pass_flags_where_they_share_a_kernel():
    tiny = next(net for net in NETS if net.name == "tiny")
    found = [work for net in (tiny, _WIDE) for work in cost_features(optimise(build(net)), 2)]
    shared = [work.alone.terms["model_s"] > work.terms["model_s"] for work in found]
    assert [work.terms[FLAGS] == 1.0 for work in found] == shared
    assert set(shared) == {True, False}


def test_near_bytes_of_products_are_in_their_own_estimate():
    found = {work.family: work.terms for work in cost_features(optimise(build(_WIDE)), 2)}
    assert any("depthwise" in family for family in found) and "conv_f32" in found
    for family, terms in found.items():
        assert ("bytes" in terms) == ("depthwise" in family)


def test_one_product_is_the_same_work_by_whatever_op_it_is_asked_for():
    """Done twice it would be as right, and twice the work."""
    found = {}
    for op, shape in (("matmul", (64, 48)), ("gemm", (64, 48)), ("fully_connected", (48, 64))):
        b = GraphBuilder(op)
        w = b.constant("w", np.ones(shape, np.float32))
        (work,) = cost_features(
            b.finish(b.add(op, b.input("x", TensorType((32, 64), "float32")), w)), 1
        )
        found[op] = work.terms["model_s"]
    assert max(found.values()) < 1.2 * min(found.values()), found


@pytest.mark.parametrize("threads", [1, 2])
def test_a_large_batch_is_priced_by_the_parts_that_run(threads):
    """Each part counts, its values stay near, and weights are where the part before left them."""
    graph = optimise(build(_WIDE))
    with closing(open_device("cpu", threads=threads)) as device:
        one, many = device.cost_features(graph), device.cost_features(batched(graph, 32))
        (executable,) = device.compile([batched(graph, 32)])
    assert len(many) % len(one) == 0 and len(many) > len(one)
    parts = len(many) // len(one)
    assert len(executable.codes) == len(many)
    assert [work.family for work in many] == [work.family for work in one] * parts
    for name in ("model_s", "bytes", "activations"):
        whole = sum(work.terms.get(name, 0.0) for work in many)
        assert whole == pytest.approx(32 * sum(work.terms.get(name, 0.0) for work in one), rel=0.1)
    later = many[-len(one) :]
    assert sum(w.terms["cold_bytes"] for w in later) <= sum(w.terms["cold_bytes"] for w in one)


@pytest.mark.parametrize(("dtype", "family"), [("float32", ""), ("int8", "gemm_q8 row")])
def test_products_of_one_row_are_a_family(dtype, family):
    layers = [("conv", 64), ("mean", True), ("conv", 64)]
    *_, last = cost_features(optimise(build(Net("n", dtype, (1, 16, 16, 32), layers))), 1)
    assert last.family == (family or "fully_connected_f32")
    b = GraphBuilder("rows")
    x = b.input("x", TensorType((4, 64), "float32"))
    w = b.constant("w", np.ones((32, 64), np.float32))
    (work,) = cost_features(b.finish(b.add("fully_connected", x, w)), 1)
    assert work.family == "fully_connected_f32"


@pytest.mark.parametrize("isa", ["auto", "generic"])
@pytest.mark.parametrize(
    ("shape", "layer", "family"),
    [
        ((1, 2, 4, 256), ("conv", 2048), "conv_f32 columns"),
        ((1, 128, 128, 16), ("conv", 16), "conv_f32"),
        ((1, 8, 8, 256), ("conv", 256, 3), "conv_f32_winograd columns"),
        ((1, 1, 1, 512), ("conv", 1000), "fully_connected_f32 columns"),
        ((1, 2, 2, 4), ("conv", 4), "conv_f32"),
    ],
)
def test_products_dealt_out_by_columns_are_families_of_several_threads(isa, shape, layer, family):
    """Few rows of many channels are cut by columns, many rows of few by rows, small ones not."""
    graph = optimise(build(Net("n", "float32", shape, [layer])))
    plain = family.removesuffix(" columns")
    for threads, said in ((1, plain), (2, family)):
        with closing(open_device("cpu", threads=threads, isa=isa)) as device:
            (work,) = device.cost_features(graph)
        assert work.family == said
        assert work.alone is None or work.alone.family == f"{plain} alone"


@pytest.mark.parametrize(
    ("net", "family"),
    [
        ("generator", "group_norm"),
        ("recurrent", "recurrent"),
        ("spectra", "fft_f32"),
        *[("lookups", family) for family in ("gather", "scatter", "arg", "top_k", "cum")],
        ("maps uint8", "table_q8 uint8"),
    ],
)
def test_nets_hold_the_families_of_kernels(net, family):
    found = cost_features(optimise(build(next(one for one in NETS if one.name == net))), 1)
    assert family in {work.family for work in found}
    assert all(work.terms["model_s"] > 0 for work in found)
