"""Fourier transforms on the cpu device: lengths of many factors, axes, frames, inverses."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas

SEED = 12
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))
LENGTHS = (1, 2, 3, 4, 5, 8, 15, 49, 64, 77, 104, 250, 512)


def draw(*shape):
    print("seed", SEED)
    return np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)


@by_isa
@pytest.mark.parametrize("length", LENGTHS)
def test_dft_of_many_lengths(cpus, length, isa):
    axis = np.array(1, np.int64)
    for parts, attrs in ((1, {"onesided": 1}), (2, {}), (2, {"inverse": 1})):
        x = draw(3, length, parts)
        agree(cpus, isa, *node_graph("dft", [x, None, axis], attrs, {2}))


@pytest.mark.parametrize("length, given", [(12, 20), (20, 12), (9, 9)])
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
@pytest.mark.parametrize("attrs", [{}, {"onesided": 1}, {"inverse": 1}])
def test_dft_along_any_axis_cut_or_padded(cpus, length, given, axis, attrs):
    shape = [3, 5, 4]
    shape[axis if axis >= 0 else 2] = length
    inputs = [draw(*shape, 2), np.array(given, np.int64), np.array(axis, np.int64)]
    agree(cpus, available_isas()[0], *node_graph("dft", inputs, attrs, {1, 2}))


@by_isa
@pytest.mark.parametrize("shape", [(7, 1, 480), (2, 33, 30), (3, 4, 40, 7)])
@pytest.mark.parametrize("length", [(1, 512), (36, 20)])
def test_rfft2d(cpus, shape, length, isa):
    agree(cpus, isa, *node_graph("rfft2d", [draw(*shape)], {"fft_length": length}))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("shape", [(2, 403), (1, 403, 1), (2, 403, 2)])
def test_stft(cpus, window, onesided, shape):
    length = None if window else np.array(48, np.int64)
    shown = np.hanning(window).astype(np.float32) if window else None
    inputs = [draw(*shape), np.array(13, np.int64), shown, length]
    while inputs[-1] is None:
        inputs.pop()
    if onesided and shape[-1] == 2:
        return  # a complex signal has no mirrored half
    graph = node_graph("stft", inputs, {"onesided": onesided}, {1, 3})
    agree(cpus, available_isas()[0], *graph)


@by_isa
def test_a_magnitude_overflows_only_where_it_is_infinite(cpus, isa):
    x = (draw(3, 37) + 1j * draw(3, 37)).astype(np.complex64)
    edge = [0, -0.0, 3e38, 1e-40, np.inf, -np.inf, np.nan]
    x.real[0, :7], x.imag[1, :7] = edge, edge
    x[2, 0], x[2, 1], x[2, 2] = 2e38 + 2e38j, complex(np.inf, np.nan), complex(np.nan, -np.inf)
    agree(cpus, isa, *node_graph("complex_abs", [x], {}))


def test_a_large_prime_runs_on_the_reference(cpus):
    graph = node_graph("rfft2d", [draw(2, 1, 34)], {"fft_length": (1, 34)})
    agree(cpus, available_isas()[0], *graph, native=False)
