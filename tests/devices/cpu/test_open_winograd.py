"""Convolutions of open height and width by Winograd's algorithm, beside ONNX Runtime."""

import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import trireme
from trireme.devices.cpu.codegen.target import ISAS, available_isas
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.winograd import open_conv as winograd
from trireme.devices.cpu.runtime.winograd_blocks import NOTHING, winograd_words

SEED = 1128
FORMS = [(3, 1, 2), (3, 1, 3), (3, 1, 4), (5, 1, 2), (3, 2, 2), (3, 2, 4)]
"""Kernel, stride, and outputs of a tile along an axis."""
SIZES = [(1, 1, 1), (1, 2, 9), (2, 5, 7), (1, 13, 14), (3, 8, 8), (1, 31, 45), (2, 60, 37)]
"""Images, their height and their width."""


def model(kernel, stride, channels, outputs, extra):
    """Relu(Conv(x) + bias) of x [n, channels, h, w], or the conv alone."""
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((outputs, channels, kernel, kernel)) / (kernel * channels**0.5)
    constants = [numpy_helper.from_array(w.astype(np.float32), "w")]
    if extra:
        bias = rng.standard_normal(outputs).astype(np.float32)
        constants.append(numpy_helper.from_array(bias, "b"))
    pad = kernel // 2
    nodes = [
        helper.make_node(
            "Conv",
            ["x", "w", *(["b"] if extra else [])],
            ["c" if extra else "y"],
            kernel_shape=(kernel, kernel),
            strides=(stride, stride),
            pads=(pad, pad, pad, pad),
        )
    ]
    if extra:
        nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", ["n", channels, "h", "w"]), ("y", ["n", outputs, "i", "j"]))
    ]
    graph = helper.make_graph(nodes, "conv", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def peer_of(data):
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


@pytest.fixture
def always(monkeypatch):
    """Have every conv that can use Winograd's algorithm use it, at every shape, with tiles of a
    given size.
    """

    def use(size):
        monkeypatch.setattr(winograd, "choose_size", lambda *_: size)
        monkeypatch.setattr(winograd, "_direct_cost", lambda *_: (1e30, 1e30, 1e30))

    return use


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("channels", [(24, 40), (32, 32), (61, 67), (64, 130)], ids=str)
def test_every_size_of_an_image_is_that_of_onnx_runtime(always, form, channels):
    kernel, stride, side = form
    always(side)
    data, rng = model(kernel, stride, *channels, extra=True), np.random.default_rng(SEED)
    peer = peer_of(data)
    for threads in (1, 2):
        with trireme.Session(data, devices=["cpu"], threads=threads) as session:
            for size in SIZES:
                x = rng.standard_normal((size[0], channels[0], *size[1:])).astype(np.float32)
                (wanted,) = peer.run(None, {"x": x})
                made = session.run({"x": x})["y"]
                bound = 2e-5 * max(np.abs(wanted).max(), 1)
                np.testing.assert_allclose(made, wanted, rtol=0, atol=bound, err_msg=f"{size}")
            assert any("winograd" in node.kernel for node in session.profile({"x": x}).nodes)


@pytest.mark.parametrize("isa", available_isas())
def test_any_number_of_tiles_is_a_cut_into_register_tiles(always, isa):
    always(2)
    data, rng = model(3, 1, 24, 40, extra=True), np.random.default_rng(SEED)
    peer = peer_of(data)
    how = trireme.ExecutionOptions(device_options={"cpu": {"isa": isa}})
    with trireme.Session(data, devices=["cpu"], threads=1, execution_options=how) as session:
        for tiles in range(1, 47):
            x = rng.standard_normal((1, 24, 2, 2 * tiles)).astype(np.float32)
            (wanted,) = peer.run(None, {"x": x})
            made = session.run({"x": x})["y"]
            bound = 2e-5 * max(np.abs(wanted).max(), 1)
            np.testing.assert_allclose(made, wanted, rtol=0, atol=bound, err_msg=f"{tiles}")


@pytest.mark.parametrize("isa", available_isas())
def test_what_is_not_finite_stays_where_it_is(always, isa):
    always(4)
    data = model(3, 1, 20, 33, extra=False)
    x = np.random.default_rng(SEED).standard_normal((1, 20, 19, 23)).astype(np.float32)
    x[0, 3, 7, 11], x[0, 5, 0, 0], x[0, 9, 18, 22] = np.nan, np.inf, 3e38
    (wanted,) = peer_of(data).run(None, {"x": x})
    how = trireme.ExecutionOptions(device_options={"cpu": {"isa": isa}})
    with trireme.Session(data, devices=["cpu"], threads=2, execution_options=how) as session:
        made = session.run({"x": x})["y"]
    assert (np.isfinite(made) == np.isfinite(wanted)).all()
    assert (np.isnan(made) == np.isnan(wanted)).all()
    near = np.isfinite(wanted) & (np.abs(wanted) < 1e6)
    np.testing.assert_allclose(made[near], wanted[near], rtol=0, atol=1e-4)


def test_an_image_has_the_same_bits_in_a_batch_and_on_any_number_of_threads(tmp_path):
    data, rng = model(3, 1, 64, 64, extra=True), np.random.default_rng(SEED)
    sessions = [trireme.Session(data, devices=["cpu"], threads=threads) for threads in (1, 2)]
    for height, width in ((56, 56), (9, 60), (3, 3)):
        x = rng.standard_normal((3, 64, height, width)).astype(np.float32)
        whole, other = (session.run({"x": x})["y"] for session in sessions)
        assert (whole == other).all()
        for k in range(3):
            assert (sessions[0].run({"x": x[k : k + 1]})["y"] == whole[k]).all()
    for session in sessions:
        session.close()


@pytest.mark.parametrize("isa", available_isas())
def test_small_images_have_tiles_of_their_own(isa):
    """128 channels at 8 x 8 were a product, which took 2.2 times as long."""
    channels, rng = 128, np.random.default_rng(SEED)
    sizes = [
        winograd.choose_size(
            ISAS[isa],
            ImageWindow(
                side, side, channels, 9 * channels, side, side, (3, 3), (1, 1), (1, 1), (1, 1)
            ),
            channels,
        )
        for side in winograd._sides(channels)
    ]
    data = model(3, 1, channels, channels, extra=True)
    peer = peer_of(data)
    how = trireme.ExecutionOptions(device_options={"cpu": {"isa": isa}})
    with trireme.Session(data, devices=["cpu"], threads=2, execution_options=how) as session:
        for size, side in zip(sizes, (28, 8), strict=True):
            x = rng.standard_normal((2, channels, side, side)).astype(np.float32)
            (wanted,) = peer.run(None, {"x": x})
            (kernel,) = {n.kernel for n in session.profile({"x": x}).nodes if "conv" in n.kernel}
            assert not size or f"winograd{size}x{size}" in kernel, (sizes, kernel)
            made = session.run({"x": x})["y"]
            np.testing.assert_allclose(made, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
            assert (session.run({"x": x[1:]})["y"] == made[1:]).all()


def test_without_the_option_a_conv_is_a_product():
    data = model(3, 1, 64, 64, extra=True)
    x = {"x": np.ones((1, 64, 56, 56), np.float32)}
    for on in (True, False):
        how = trireme.ExecutionOptions(device_options={"cpu": {"winograd": on}})
        with trireme.Session(data, devices=["cpu"], execution_options=how) as session:
            kernels = {node.kernel for node in session.profile(x).nodes}
            assert any("winograd" in name for name in kernels) == on, kernels


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_chunks_hold_no_more_tiles_than_their_memory(name):
    rng, isa = np.random.default_rng(SEED), ISAS[name]
    print("seed", SEED)
    for _ in range(300):
        most, panels = int(rng.integers(4, 129)), int(rng.integers(1, 40))
        images, height, width = (int(10**e) for e in rng.uniform(0, (1, 2.5, 2.5)))
        tiles = tuple(2.5e3 * rows for rows in range(13))
        cost = 4, 12, panels, (900.0, 300.0), tiles, 1e5
        given = int(rng.integers(1, 9)), most, cost, (4e4, isa.l2_bytes // 2)
        pays, high, wide, count, blocks, groups = winograd_words(
            *given, (1e30, 1.0, 1.0), (), images, height, width
        )
        assert pays and high * 4 >= height > (high - 1) * 4 and wide * 4 >= width > (wide - 1) * 4
        assert count == images * high * wide and 1 <= groups <= panels
        assert -(-count // blocks) <= most and blocks <= count
        quick = *cost[:3], (9.0, 3.0), tuple(0.01 * one for one in tiles), 1e3
        for direct, rivals in (((1e-30, 0.0, 0.0), ()), ((1e30, 1.0, 1.0), (quick,))):
            assert winograd_words(*given, direct, rivals, images, height, width) == NOTHING


LATER = """
import sys, numpy as np, trireme
rng = np.random.default_rng(7)
with trireme.Session(sys.argv[1], devices=["cpu"], threads=2) as session:
    stored = []
    for size in ((1, 64, 64), (1, 224, 224), (2, 100, 33), (1, 9, 11), (1, 33, 170), (3, 50, 50)):
        x = rng.standard_normal((size[0], 64, *size[1:])).astype(np.float32)
        made = session.run({"x": x})["y"]
        stored.append(session.is_stored)
        print(size, hash(made.tobytes()))
    print(all(stored))
"""


def test_a_later_process_runs_the_stored_program_at_every_shape(tmp_path):
    path = tmp_path / "conv.onnx"
    path.write_bytes(model(3, 1, 64, 64, extra=True))
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONHASHSEED": "0"}
    said = [
        subprocess.run(
            [sys.executable, "-c", LATER, path], env=env, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert said[0][:-1] == said[1][:-1]
    assert [lines[-1] for lines in said] == ["False", "True"]
