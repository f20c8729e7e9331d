"""What an OpenCL kernel is counted in: tiles as they run, rounds of the compute units, wake-ups."""

from dataclasses import replace

import numpy as np
import opencl
import pytest

from trireme.backend.core_latency import BYTES, FLAGS
from trireme.backend.device import NodeSpan, held_s
from trireme.backend.registry import open_device
from trireme.calibration.net_builder import build
from trireme.calibration.nets import NETS
from trireme.cost.model import CostModel
from trireme.devices.opencl.cost_features import TERM_LIMITS, cost_features_of
from trireme.devices.opencl.device import OpenCLDevice
from trireme.devices.opencl.gpu_prices import LAUNCH_S, GpuFacts
from trireme.devices.opencl.kernels import lower, reason
from trireme.devices.opencl.lowering import KernelName, Lowering
from trireme.devices.opencl.tuning import CLASSES
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.passes.pipeline import optimise

CPU = CLASSES["cpu"]


def conv(size, inside, out, kernel=1, units=2, activation="", on_cores=False):
    b = GraphBuilder("conv")
    x = b.input("x", TensorType((1, size, size, inside), "float32"))
    w = b.constant("w", np.zeros((out, kernel, kernel, inside), np.float32))
    bias = b.constant("b", np.zeros(out, np.float32))
    y = b.add(
        "conv",
        x,
        w,
        bias,
        strides=(1, 1),
        pads=(kernel // 2,) * 4,
        dilations=(1, 1),
        groups=1,
        layout="NHWC",
        activation=activation,
    )
    (work,) = cost_features_of(lower(Lowering(b.finish(y), CPU)), units, on_cores)
    return work


def test_a_product_counts_what_its_tiles_make():
    """33 columns take two panels of two vectors; 7 x 7 rows take five tiles of ten."""
    work = conv(7, 20, 33)
    panels, rows, vectors = 2, 5 * 10, 2
    assert work.family == "product_f32"
    assert work.terms["multiplies"] == panels * rows * vectors * 20
    assert work.terms["stores"] == panels * rows * vectors
    assert work.terms["places"] == 0
    assert conv(7, 20, 33, kernel=3).terms["multiplies"] == 9 * work.terms["multiplies"]
    assert conv(7, 20, 33, kernel=3).terms["places"] == panels * rows * 9


def test_columns_of_no_account_still_fill_vectors():
    narrow, wide = conv(12, 16, 5), conv(12, 16, 8)
    assert narrow.terms["multiplies"] > 0
    assert conv(12, 16, 17).terms["multiplies"] > conv(12, 16, 16).terms["multiplies"]
    assert wide.terms["bytes"] > narrow.terms["bytes"]


def test_a_round_counts_in_full_where_units_are_left_over():
    one, many = conv(3, 8, 16, units=1), conv(3, 8, 16, units=4)
    assert many.terms["multiplies"] == 4 * one.terms["multiplies"]
    assert many.terms["bytes"] == one.terms["bytes"]


def test_work_grows_and_so_do_wake_ups():
    """What is short is over before a second core wakes; what is long always has two."""
    cost_features = [conv(size, 32, 64) for size in (2, 4, 8, 12, 16, 24, 40)]
    for less, more in zip(cost_features, cost_features[1:], strict=False):
        assert all(more.terms[name] >= less.terms[name] for name in less.terms)
    wakes = [work.terms["wakes"] for work in cost_features]
    assert wakes[0] == 0 and wakes[-1] == 1
    assert conv(1, 2048, 16).terms["wakes"] == 0, "one work-group needs one core"


def test_cores_of_the_cpu_hand_over_values():
    """Constants lie in the caches of all cores; a flag counts where a second core takes a part."""
    short, long = conv(2, 20, 33, on_cores=True), conv(40, 20, 33, on_cores=True)
    for size, work in ((2, short), (40, long)):
        made = size * size * 33 * 4
        assert work.terms[BYTES + "made_bytes"] == made
        assert work.terms[BYTES + "bytes"] == made + size * size * 20 * 4
    assert short.terms[FLAGS] == 0 and long.terms[FLAGS] > 0
    assert set(TERM_LIMITS) == {name for name in long.terms if name.startswith((BYTES, FLAGS))}


@pytest.mark.parametrize("given", [{"units": 1, "on_cores": True}, {"units": 40}])
def test_one_core_and_a_gpu_hand_nothing_over(given):
    terms = conv(40, 20, 33, **given).terms
    assert not [name for name in terms if name.startswith((BYTES, FLAGS))]


def test_activations_are_work_per_vector():
    plain, relu, swish = (conv(12, 16, 32, activation=a) for a in ("", "relu", "swish"))
    assert plain.terms["finish"] < relu.terms["finish"] < swish.terms["finish"]


@pytest.mark.parametrize(
    ("name", "text", "family"),
    [
        (
            KernelName("conv", "f32", "product_f32", (12, 32), fused=("add",)),
            "conv_f32_12x32+add",
            "product_f32",
        ),
        (KernelName("depthwise", "f32", tile=(4, 16)), "depthwise_f32_4x16", "depthwise_f32"),
        (KernelName("mul", family="elementwise", fused=("add",)), "mul+add", "elementwise"),
        (KernelName("softmax", "f32"), "softmax_f32", "softmax_f32"),
        (KernelName("depthwise", "u8", tile=(4, 16)), "depthwise_u8_4x16", "depthwise_s8"),
        (KernelName("max_pool", "uint8"), "max_pool_uint8", "max_pool_int8"),
        (KernelName("widen"), "widen", "widen"),
    ],
)
def test_a_kernel_is_named_by_its_facts(name, text, family):
    assert (str(name), name.family) == (text, family)


def test_every_kernel_of_the_networks_is_counted():
    for net in NETS:
        graph = optimise(build(net))
        if any(reason(graph, node) for node in graph.nodes):
            continue  # of ops that only other devices have kernels for
        cost_features = cost_features_of(lower(Lowering(graph, CPU)), 2, on_cores=True)
        by_family = {}
        for work in cost_features:
            assert all(np.isfinite(each) and each >= 0 for each in work.terms.values()), work
            assert set(work.terms) == by_family.setdefault(work.family, set(work.terms)), work


def test_a_kernel_holds_its_device_until_the_next_begins():
    spans = [NodeSpan((k,), "k", s, e) for k, (s, e) in enumerate([(0, 1), (3, 4), (3.5, 6)])]
    assert held_s(spans) == [3, 1, 2.5]
    virtual = [NodeSpan((k,), "k", s, s + 1, "virtual") for k, s in enumerate([0, 5])]
    assert held_s(virtual) == [1, 1] and held_s([]) == []


def test_what_is_fused_behind_a_product_does_not_change_its_family():
    """By way of local memory too: its seconds differ from those of other products."""
    b = GraphBuilder("fused")
    x = b.input("x", TensorType((64, 128), "float32"))
    w = b.constant("w", np.zeros((128, 128), np.float32))
    y = b.add("relu", b.add("sqrt", b.add("fully_connected", x, w)))
    (work,) = cost_features_of(lower(Lowering(b.finish(y), CLASSES["desktop_gpu"])), 2)
    assert work.family == "product_f32_local"


H200 = GpuFacts(units=132, clock=1.98e9, bandwidth=1.67e12)


def fully_connected(rows, depth, columns):
    b = GraphBuilder("dense")
    x = b.input("x", TensorType((rows, depth), "float32"))
    return b.finish(
        b.add("fully_connected", x, b.constant("w", np.zeros((columns, depth), np.float32)))
    )


def gpu_price(graph, gpu=H200):
    low = lower(Lowering(graph, replace(CLASSES["desktop_gpu"], units=gpu.units)))
    return sum(work.guess_s for work in cost_features_of(low, gpu.units, gpu=gpu))


def test_a_gpu_that_nobody_measured_is_priced_by_launches_and_rounds():
    """Products measured on an H200 are priced within a quarter."""
    for sizes, measured in (
        ((256, 256, 256), 9.3e-6),
        ((1024, 1024, 1024), 72.5e-6),
        ((4096, 4096, 4096), 3358e-6),
    ):
        assert gpu_price(fully_connected(*sizes)) == pytest.approx(measured, rel=0.25), sizes
    small = gpu_price(fully_connected(1, 16, 16))
    assert LAUNCH_S < small < 2 * LAUNCH_S
    half = replace(H200, units=66)
    large = fully_connected(4096, 512, 4096)
    assert gpu_price(large, half) == pytest.approx(2 * gpu_price(large), rel=0.2)


def test_only_a_gpu_has_prices_of_its_own(tmp_path):
    opencl.need_opencl()
    graph = fully_connected(1, 16, 16)
    pocl = open_device("opencl", cache_dir=tmp_path)
    gpu = OpenCLDevice(replace(pocl.found, kind="gpu"), CLASSES["desktop_gpu"], False, tmp_path)
    assert pocl.guesses_kernels == (pocl.found.kind == "gpu") and gpu.guesses_kernels
    (node,) = graph.nodes
    price = CostModel({"opencl": gpu}).node(graph, node, "opencl")
    assert price.source == "roofline" and price.seconds > LAUNCH_S
    pocl.close()
    gpu.close()
