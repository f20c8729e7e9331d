"""Products with weights of a few bits at many shapes, on every instruction set."""

import itertools

import numpy as np
import pytest
from cpu_run import agree, agree_everywhere, node_graph, run
from sweep import sweep

from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.interpreter import interpret
from trireme.ops.block_quantized import drawn

SEED = 11
ISAS = available_isas(variants=False)


@pytest.fixture
def rng():
    print("seed", SEED)
    return np.random.default_rng(SEED)


def product(inputs, constants=(1, 2, 3, 4), **attrs):
    fixed = [n for n in constants if inputs[n] is not None]
    return node_graph("matmul_nbits", inputs, attrs, fixed)


SHAPES = {  # (.., depth), columns, block, bits
    "one of all": ((1, 1), 1, 8, 4),
    "one row": ((1, 256), 129, 32, 4),
    "one row, many columns": ((1, 64), 2000, 32, 4),
    "one row of a part": ((1, 50), 65, 32, 4),
    "one row, 7 of 8 codes": ((1, 39), 64, 16, 4),
    "two rows": ((2, 64), 64, 32, 4),
    "five rows": ((5, 96), 47, 32, 4),
    "more rows than a tile": ((17, 64), 33, 16, 4),
    "many rows": ((2, 37, 160), 50, 32, 4),
    "a block of a row": ((3, 128), 31, 128, 4),
    "block longer than the row": ((3, 20), 31, 128, 4),
    "8 bits": ((3, 70), 70, 32, 8),
    "8 bits, many rows": ((40, 64), 20, 64, 8),
    "8 bits, one row": ((1, 130), 100, 128, 8),
    "2 bits": ((3, 70), 70, 32, 2),
    "2 bits, one row": ((1, 128), 100, 64, 2),
    "small blocks": ((3, 30), 9, 8, 4),
}
CASES = list(itertools.product(SHAPES, ("", "zeros", "zeros and bias"), (0, 4)))


@pytest.mark.parametrize(
    ("name", "more", "level"),
    sweep(
        CASES, [(name, more, level) for name, more, level in CASES if (level == 4) == bool(more)]
    ),
)
def test_shapes(cpus, rng, name, more, level):
    shape, columns, block, bits = SHAPES[name]
    inputs = drawn(rng, shape, columns, block, bits, "zeros" in more, "bias" in more)
    graph, feeds = product(inputs, bits=bits, block_size=block, accuracy_level=level)
    agree_everywhere(cpus, graph, feeds, 2e-5)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(cpus, rng, isa, level):
    inputs = drawn(rng, (3, 200), 100, 64, 4, True, True)
    graph, feeds = product(inputs, block_size=64, accuracy_level=level)
    agree(cpus, isa, graph, feeds, 2e-5)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_stay_in_their_rows(cpus, rng, isa, level):
    """At level 4 they spoil their block, as 127 / infinity is no scale."""
    inputs = drawn(rng, (5, 64), 40, 32, 4, True)
    a = inputs[0]
    a[0, 3], a[1, 40], a[2, 63], a[4, :32] = np.nan, np.inf, -np.inf, 1e-33
    graph, feeds = product(inputs, block_size=32, accuracy_level=level)
    with np.errstate(invalid="ignore"):
        agree(cpus, isa, graph, feeds, 2e-5)
        (want,) = interpret(graph, feeds).values()
    assert np.isfinite(want[3:]).all() and not np.isfinite(want[:3]).any()


def test_zero_points_may_be_floats(cpus, rng):
    a, b, scales, _, _ = drawn(rng, (3, 70), 37, 32)
    zeros = rng.uniform(3, 12, scales.shape).astype(np.float32)
    for level in (0, 4):
        graph, feeds = product((a, b, scales, zeros, None), block_size=32, accuracy_level=level)
        agree_everywhere(cpus, graph, feeds, 2e-5)


REFUSED = {
    "blocks of 4 codes of 4 bits": (((3, 8), 5, 4), (1, 2, 3, 4)),
    "constant weights only": (((3, 64), 5, 32), (2,)),
    "constant scales only": (((3, 64), 5, 32), (1,)),
    "empty tensors": (((0, 64), 5, 32), (1, 2)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_form_without_a_kernel_runs_on_the_reference_and_says_why(rng, why):
    sizes, constants = REFUSED[why]
    graph, feeds = product(drawn(rng, *sizes), constants, block_size=sizes[2])
    device = open_device("cpu", threads=1)
    assert why in device.kernel_note(graph, graph.nodes[0])
    (found,), _, _ = run(device, graph, feeds)
    (want,) = interpret(graph, feeds).values()
    np.testing.assert_array_equal(found, want)
    device.close()


def test_packed_weights_take_as_many_bytes_as_their_codes(rng):
    """A panel of 64 columns of 4 bits holds 64 * depth / 2 bytes."""
    graph, _ = product(drawn(rng, (1, 512), 256, 32), block_size=32)
    device = open_device("cpu", threads=1)
    (executable,) = device.compile([graph])
    codes, scales = 256 * 512 // 2, 256 * 512 // 32 * 4
    assert codes + scales <= executable.constant_bytes <= codes + scales + 4096
    device.close()
