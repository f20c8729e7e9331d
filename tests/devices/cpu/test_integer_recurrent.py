"""integer_lstm and integer_svdf on the cpu: tails, parts of a layer, cuts into kernels."""

import numpy as np
import pytest
from cpu_run import agree, node_graph

import trireme.ops  # noqa: F401
from trireme.devices.cpu.codegen.target import available_isas
from trireme.devices.cpu.kernels.int8 import recurrent
from trireme.ops.integer import quantize_multiplier

SEED = 31
by_isa = pytest.mark.parametrize("isa", available_isas(variants=False))

CASES = {  # (steps, batch, inputs, units, outputs), gates, time axis, what else is given
    "one": ((1, 1, 1, 1, 1), 4, 0, ""),
    "odd": ((3, 2, 7, 21, 21), 4, 0, ""),
    "coupled": ((3, 2, 5, 17, 17), 3, 0, ""),
    "wide": ((2, 1, 131, 70, 70), 4, 0, "clip"),
    "batch first": ((3, 4, 16, 32, 32), 4, 1, "peepholes"),
    "peepholes": ((3, 3, 9, 18, 18), 4, 0, "peepholes"),
    "coupled peepholes": ((3, 2, 9, 18, 18), 3, 0, "peepholes"),
    "projection": ((3, 2, 9, 35, 13), 4, 0, "projection"),
    "projection to more": ((3, 2, 9, 13, 35), 4, 1, "projection clip"),
    "projection, peepholes": ((3, 3, 8, 19, 5), 4, 0, "projection peepholes clip"),
    "projection, peepholes, batch first": ((3, 3, 8, 19, 5), 3, 1, "projection peepholes"),
}


def graph_of(name, extreme=False):
    rng = np.random.default_rng(SEED)
    (steps, batch, depth, units, outputs), gates, time_axis, given = CASES[name]

    def draw(*shape, dtype="int8", most=127):
        return rng.integers(-most - (dtype == "int8"), most + 1, shape).astype(dtype)

    rows = gates * units
    shape = (batch, steps, depth) if time_axis else (steps, batch, depth)
    inputs = [
        draw(*shape),
        draw(rows, depth),
        draw(rows, outputs),
        draw(rows, dtype="int32", most=9000),
        draw(rows, dtype="int32", most=9000),
        draw(batch, outputs),
        draw(batch, units, dtype="int16", most=32767),
        draw(3, units, dtype="int16", most=32767) if "peepholes" in given else None,
        None,
        None,
    ]
    if "projection" in given:
        inputs += [draw(outputs, units), draw(outputs, dtype="int32", most=9000)]
    while inputs[-1] is None:
        inputs.pop()
    gain = 40 if extreme else 1
    reals = [*rng.uniform(0.02, 1.5, 2 * gates) * gain, *[0.0] * gates]
    reals += [*rng.uniform(1e-4, 1e-3, 3) * gain, 2e-7 * gain, 0.01 * gain]
    multipliers, shifts = zip(*map(quantize_multiplier, reals), strict=True)
    attrs = {
        "multipliers": multipliers,
        "shifts": shifts,
        "guards": (1,) * gates,
        "cell_scale": -9 - steps,
        "hidden_zero": -7,
        "output_zero": 11,
        "time_axis": time_axis,
    }
    if "clip" in given:
        attrs |= {"cell_clip": 9000, "projection_clip": 90}
    return node_graph("integer_lstm", inputs, attrs, {1, 2, 3, 4, 7, 10, 11}, outputs=3)


@by_isa
@pytest.mark.parametrize("name", CASES)
def test_integer_lstm(cpus, name, isa):
    agree(cpus, isa, *graph_of(name))


@by_isa
def test_sums_that_saturate(cpus, isa):
    agree(cpus, isa, *graph_of("odd", extreme=True))


@pytest.mark.parametrize("name", ["odd", "batch first", "projection"])
def test_a_long_run_is_cut_into_kernels_that_hand_states_on(cpus, monkeypatch, name):
    monkeypatch.setattr(recurrent, "_LONGEST_S", 1e-9)
    agree(cpus, available_isas()[0], *graph_of(name))


FILTERS = {  # (batch, inputs, filters, memory, rank), whether there is a bias
    "one": ((1, 1, 1, 1, 1), False),
    "odd": ((2, 7, 15, 5, 3), True),
    "long": ((3, 40, 18, 70, 2), True),
    "wide": ((1, 131, 70, 16, 1), False),
    "even": ((2, 64, 64, 32, 4), True),
}


@by_isa
@pytest.mark.parametrize("name", FILTERS)
def test_integer_svdf(cpus, name, isa):
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    (batch, depth, filters, memory, rank), has_bias = FILTERS[name]
    inputs = [
        rng.integers(-128, 128, (batch, depth)).astype(np.int8),
        rng.integers(-127, 128, (filters, depth)).astype(np.int8),
        rng.integers(-9000, 9000, (filters, memory)).astype(np.int16),
        rng.integers(-32768, 32768, (batch, filters * memory)).astype(np.int16),
    ]
    if has_bias:
        inputs.append(rng.integers(-90000, 90000, filters // rank).astype(np.int32))
    pairs = [quantize_multiplier(real) for real in (0.7, 4e-8)]
    attrs = {
        "multipliers": [m for m, _ in pairs],
        "shifts": [s for _, s in pairs],
        "rank": rank,
        "x_zero": -11,
        "y_zero": 9,
    }
    agree(cpus, isa, *node_graph("integer_svdf", inputs, attrs, {1, 2, 4}, outputs=2))
