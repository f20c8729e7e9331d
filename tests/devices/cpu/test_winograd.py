"""Winograd convolutions against the reference: odd shapes, every instruction set and tile size, one
and two threads, poisoned margins and guard pages; rounding, NaN, infinities and overflow.
"""

import numpy as np
import pytest
from cpu_run import assert_close, isas_for, node_graph, run
from sweep import sweep

import trireme.ops  # noqa: F401
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import ISAS, available_isas
from trireme.devices.cpu.kernels.f32.im2row import ImageWindow
from trireme.devices.cpu.kernels.f32.winograd import conv as winograd_conv
from trireme.devices.cpu.kernels.f32.winograd.plan import choose_size, cut_winograd
from trireme.devices.cpu.kernels.f32.winograd.transforms import POINTS, scheme, transform_weights
from trireme.ir.interpreter import interpret

SEED = 20261122
BOUND = 1e-5
"""Of the largest output: conv's tolerance."""

SCHEMES = [(*form, size) for form, sizes in POINTS.items() for size in sizes]
"""Kernel, stride, m."""

SHAPES = [  # batch, height, width, channels, outputs, pads (top, left, bottom, right)
    (1, 1, 1, 1, 1, (1, 1, 1, 1)),
    (1, 3, 3, 1, 1, (0, 0, 0, 0)),
    (1, 1, 13, 3, 3, (1, 1, 1, 1)),
    (2, 5, 3, 3, 17, (0, 1, 2, 0)),
    (1, 7, 11, 17, 3, (1, 1, 1, 1)),
    (1, 13, 2, 17, 17, (2, 1, 0, 1)),
    (2, 7, 7, 64, 64, (1, 1, 1, 1)),
    (1, 11, 13, 64, 17, (1, 1, 1, 1)),
    (1, 4, 4, 3, 64, (1, 1, 1, 1)),
    (1, 12, 12, 64, 33, (0, 0, 1, 1)),
    (3, 9, 5, 16, 100, (2, 2, 2, 2)),
    (1, 13, 13, 48, 192, (1, 1, 1, 1)),
    (1, 30, 31, 5, 20, (1, 1, 1, 1)),
    (1, 3, 3, 2, 2, (4, 5, 4, 4)),
]
EPILOGUES = ["", "relu", "relu6", "swish"]


def named(number):
    kernel, stride, size = SCHEMES[number]
    return f"{kernel}x{kernel} stride {stride} m {size}"


@pytest.fixture(params=sweep(range(len(SCHEMES)), always=range(0, len(SCHEMES), 2)), ids=named)
def made(request, monkeypatch):
    """A scheme, its tile size forced on every convolution that can have it."""
    kernel, stride, size = SCHEMES[request.param]
    monkeypatch.setattr(winograd_conv, "choose_size", lambda *_: size)
    return scheme(kernel, stride, size)


def conv(rng, shape, activation="", extra=(True, True), weights=None, form=(3, 1)):
    """A graph of one convolution with bias and residual as `extra` says, and its feeds.

    form: kernel and stride
    """
    batch, height, width, channels, outputs, pads = shape
    kernel, stride = form
    height, width = max(height, kernel - pads[0] - pads[2]), max(width, kernel - pads[1] - pads[3])
    x = rng.standard_normal((batch, height, width, channels)).astype(np.float32)
    w = rng.standard_normal((outputs, kernel, kernel, channels)).astype(np.float32)
    w = w / np.float32(kernel * np.sqrt(channels)) if weights is None else weights
    out = (
        batch,
        (height + pads[0] + pads[2] - kernel) // stride + 1,
        (width + pads[1] + pads[3] - kernel) // stride + 1,
        outputs,
    )
    bias = rng.standard_normal(outputs).astype(np.float32) if extra[0] else None
    residual = rng.standard_normal(out).astype(np.float32) if extra[1] else None
    attrs = {
        "strides": (stride, stride),
        "pads": pads,
        "dilations": (1, 1),
        "groups": 1,
        "layout": "NHWC",
        "activation": activation,
    }
    inputs = [x, w, bias, residual]
    while inputs[-1] is None:
        inputs.pop()
    return node_graph("conv", inputs, attrs, constants=(1, 2))


def check(cpus, graph, feeds, what, rtol=BOUND):
    """Run on instruction sets and one and two threads: close to the reference, of the same bits."""
    want = list(interpret(graph, feeds).values())[0]
    for isa in isas_for(f"{graph} {what}", available_isas(variants=False)):
        bits = []
        for threads in (1, 2):
            got, kernels, _ = run(cpus[isa, threads], graph, feeds, at_end=threads == 1)
            assert_close(got[0], want, rtol, f"{isa} {what} {kernels}")
            bits.append(got[0].tobytes())
        assert bits[0] == bits[1], f"results depend on the number of threads of {isa}"
    return kernels


@pytest.mark.parametrize("part", sweep(range(3), always=[0]))
def test_shapes(cpus, made, part):
    """The schemes share the shapes: all of each are a sweep."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    turn = SCHEMES.index((made.kernel, made.stride, made.outputs))
    for number, shape in enumerate(SHAPES):
        if (number + turn) % 3 != part:
            continue
        activation = EPILOGUES[number % len(EPILOGUES)]
        extra = (number % 3 != 0, number % 2 != 0)
        graph, feeds = conv(rng, shape, activation, extra, form=(made.kernel, made.stride))
        kernels = check(cpus, graph, feeds, f"{shape} {activation} {extra}")
        (kernel,) = kernels.values()
        assert kernel.startswith(f"conv_f32_winograd{made.outputs}x{made.outputs}_"), kernel


def test_rounding(cpus, made):
    """The worst error stays within conv's tolerance, and near that of plain sums of products."""
    channels = 512
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    kernel, stride = made.kernel, made.stride
    graph, feeds = conv(
        rng, (1, 12, 12, channels, 32, (1, 1, 1, 1)), "", (False, False), form=(kernel, stride)
    )
    (x,) = feeds.values()
    w = next(v.data for v in graph.values.values() if v.is_constant).astype(np.float64)
    padded = np.pad(x[0].astype(np.float64), ((1, 1), (1, 1), (0, 0)))
    side = 14 - kernel + 1
    exact = sum(
        padded[i : i + side : stride, j : j + side : stride] @ w[:, i, j].T
        for i in range(kernel)
        for j in range(kernel)
    )
    for isa in isas_for(str(made), available_isas(variants=False)):
        got, _, _ = run(cpus[isa, 1], graph, feeds)
        error = np.abs(got[0][0] - exact).max() / np.abs(exact).max()
        assert error < 5e-6, (isa, error)


def test_what_is_not_finite(cpus, made):
    """NaN and infinities reach the outputs that see them and no others; overflow too."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    for channels, outputs in ((3, 5), (33, 20)):
        form = (made.kernel, made.stride)
        graph, feeds = conv(rng, (1, 11, 10, channels, outputs, (1, 1, 1, 1)), "relu", form=form)
        x, *_ = feeds.values()
        for value, place in (
            (np.nan, (0, 2, 3, 1)),
            (np.inf, (0, 10, 9, 0)),
            (-np.inf, (0, 6, 0, 2)),
        ):
            x[place] = value
        check(cpus, graph, feeds, "not finite")
        residual = list(feeds)[1]
        feeds[residual][0, 3, 3, 0] = np.inf
        check(cpus, graph, feeds, "an infinite residual")
        x[...] = rng.standard_normal(x.shape)
        x[0, 5, 5] = 1.5e38  # finite, but not the sums of a transform
        check(cpus, graph, feeds, "huge")


def test_the_fallback_reads_weights_by_strides(cpus, made):
    """Weights that lie as in a file of another layout, at odd bytes, are read where they are."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    channels, outputs, side = 19, 21, made.kernel
    raw = bytearray(4 * channels * outputs * side**2 + 3)
    stored = np.frombuffer(raw, np.float32, offset=3, count=channels * outputs * side**2)
    stored[:] = rng.standard_normal(stored.shape) / (side * channels**0.5)
    for order in ((0, 2, 3, 1), (3, 1, 2, 0), (1, 3, 2, 0)):  # of OIHW, HWIO and another
        dims = (outputs, side, side, channels)
        weights = stored.reshape([dims[order.index(k)] for k in range(4)]).transpose(order)
        assert not weights.flags.c_contiguous
        graph, feeds = conv(
            rng,
            (1, 9, 10, channels, outputs, (1, 1, 1, 1)),
            "relu",
            weights=weights,
            form=(made.kernel, made.stride),
        )
        (data,) = (v.data for v in graph.values.values() if v.is_constant and v.data.ndim == 4)
        assert np.shares_memory(data, stored)
        next(iter(feeds.values()))[0, 2, 3, 1] = np.nan
        check(cpus, graph, feeds, f"weights in order {order}")


def test_weights_that_are_not_finite(cpus, monkeypatch):
    monkeypatch.setattr(winograd_conv, "choose_size", lambda *_: 4)
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((4, 3, 3, 5)).astype(np.float32)
    weights[1, 2, 0, 3] = np.inf
    graph, feeds = conv(rng, (1, 9, 9, 5, 4, (0, 0, 0, 0)), weights=weights)
    kernels = check(cpus, graph, feeds, "infinite weights")
    assert not any("winograd" in kernel for kernel in kernels.values())


@pytest.mark.parametrize(("kernel", "stride", "outputs"), SCHEMES)
def test_matrices(kernel, stride, outputs):
    """Y = A^T [(G g G^T) * (B^T d B)] A in one dimension, and packed weights in two."""
    rng = np.random.default_rng(SEED)
    made = scheme(kernel, stride, outputs)
    d, g = rng.standard_normal(made.inputs), rng.standard_normal(kernel)
    to_input, to_output = np.array(made.to_input.rows), np.array(made.to_output.rows)
    got = to_output @ ((made.to_weights @ g) * (to_input @ d))
    want = [d[k * stride : k * stride + kernel] @ g for k in range(outputs)]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
    w = rng.standard_normal((5, kernel, kernel, 2)).astype(np.float32)
    packed = transform_weights(w, made, 4)
    assert packed.shape == (2, made.points**2, 2, 4)
    one = made.to_weights @ w[4, :, :, 1] @ made.to_weights.T
    np.testing.assert_allclose(packed[1, :, 1, 0], one.reshape(-1), rtol=1e-6, atol=1e-7)
    assert not packed[1, :, :, 1:].any()


def test_option(tmp_path):
    """`winograd=False` leaves sums of products."""
    rng = np.random.default_rng(SEED)
    graph, feeds = conv(rng, (1, 28, 28, 64, 64, (1, 1, 1, 1)))
    for winograd in (True, False):
        device = open_device("cpu", threads=1, cache_dir=tmp_path, winograd=winograd)
        _, kernels, _ = run(device, graph, feeds)
        assert all(("winograd" in kernel) is winograd for kernel in kernels.values()), kernels
        device.close()


def test_the_cut_covers_every_tile_once():
    """Blocks and groups of every cut hold all tiles and panels, register tiles all rows."""
    for isa in ISAS.values():
        for side, channels, outputs, batch in ((1, 1, 1, 1), (7, 512, 512, 1), (56, 64, 33, 2)):
            window = ImageWindow(
                side, side, channels, channels, side, side, (3, 3), (1, 1), (1, 1), (1, 1)
            )
            assert choose_size(isa, window, outputs) in (0, *POINTS[3, 1])
            for size in POINTS[3, 1]:
                for threads in (1, 2, 64):
                    cut = cut_winograd(isa, batch, window, outputs, size, threads)
                    assert cut.tile_count == batch * (-(-side // size)) ** 2
                    assert (cut.panels - 1) * cut.width + cut.last_columns == outputs
                    assert 0 < cut.last_columns <= cut.width
                    for block in range(cut.blocks):
                        low = block * cut.tile_count // cut.blocks
                        count = (block + 1) * cut.tile_count // cut.blocks - low
                        tiles = -(-count // cut.tile_rows)
                        full = count - tiles * (cut.tile_rows - 1)
                        assert 0 < count <= cut.tiles
                        assert 0 <= full <= tiles
                        assert not cut.is_even or full == tiles


@pytest.mark.parametrize(
    ("side", "channels", "stride", "size"),
    [(56, 64, 1, 4), (28, 128, 1, 4), (14, 256, 1, 2), (7, 512, 1, 2), (14, 512, 2, 0)],
)
def test_weights_from_memory_choose_few_points(side, channels, stride, size):
    """The layers of ResNet choose what is fastest where their weights come from memory."""
    out = -(-side // stride)
    window = ImageWindow(
        side, side, channels, channels, out, out, (3, 3), (stride, stride), (1, 1), (1, 1)
    )
    assert choose_size(ISAS["avx512"], window, channels) == size


def test_one_thread_transforms_its_input_once():
    """Groups of panels transform the same tiles again, so there are as many as threads need."""
    window = ImageWindow(28, 28, 128, 128, 28, 28, (3, 3), (1, 1), (1, 1), (1, 1))
    for threads in (1, 2):
        cut = cut_winograd(ISAS["avx512"], 1, window, 128, 4, threads)
        assert (cut.blocks, cut.groups) == (1, threads)


@pytest.mark.parametrize(("side", "channels"), [(28, 128), (14, 256), (7, 512)])
def test_an_image_has_the_same_bits_in_a_batch(tmp_path, side, channels):
    """The form of the algorithm does not follow the batch, so an image's bits do not, either."""
    rng = np.random.default_rng(SEED)
    device = open_device("cpu", threads=1, cache_dir=tmp_path)
    weights = rng.standard_normal((channels, 3, 3, channels)).astype(np.float32)
    results, images = [], None
    for batch in (8, 1):
        shape = (batch, side, side, channels, channels, (1, 1, 1, 1))
        graph, feeds = conv(rng, shape, extra=(False, False), weights=weights)
        images = feeds[graph.inputs[0]] if images is None else images
        (y,), kernels, _ = run(device, graph, {graph.inputs[0]: images[:batch]})
        assert all("winograd" in kernel for kernel in kernels.values()), kernels
        results.append(y)
    assert np.array_equal(results[0][:1], results[1])
    device.close()
