"""Requantisation in float32 is the reference's, bit for bit: at every step and at millions of sums.

Sums are chosen around each of the up to 255 places where the stored byte changes, at the ends of
the range that was promised, at powers of two and at random, for multipliers near powers of two,
shifts from left 6 to right 31, every kind of clamp, and per-layer and per-channel scales.
"""

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from trireme.devices.cpu.codegen.jit import Jit, ObjectCache
from trireme.devices.cpu.codegen.kernel_cache import KernelCache
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import ISAS, available_isas, choose_isa
from trireme.devices.cpu.kernels.int8 import exact_requant as int8_fit
from trireme.devices.cpu.kernels.int8.exact_requant import fit
from trireme.devices.cpu.kernels.int8.requant import requantiser
from trireme.devices.cpu.kernels.lowering import begin, finish
from trireme.ir.graph import Rounding
from trireme.ops.integer import LinearParams, requantize

SEED = 23
CHANNELS = 64
ROUNDINGS = (Rounding.TWICE, Rounding.HALF_AWAY, Rounding.HALF_EVEN)


def draw_params(rng):
    """A layer: multipliers of all kinds, shifts close together or far apart, any clamp."""
    multipliers = rng.integers(1 << 30, 1 << 31, CHANNELS)
    near = rng.integers(0, CHANNELS, 12)
    multipliers[near] = rng.choice([1 << 30, (1 << 30) + 1, (1 << 31) - 1, 3 << 29], 12)
    middle = int(rng.integers(0, 13))
    shifts = -(middle + rng.integers(0, 4, CHANNELS))
    kind = rng.random()
    if kind < 0.15:
        shifts = rng.integers(0, 4, CHANNELS)
    elif kind < 0.4:
        odd = rng.integers(0, CHANNELS, 6)
        shifts[odd] = rng.integers(-31, 1, 6)
        multipliers[odd[0]] = 0
    signed = rng.random() < 0.5
    least, most = (-128, 127) if signed else (0, 255)
    zero = int(rng.integers(least, most + 1))
    low = zero if rng.random() < 0.5 else least
    high = (
        int(rng.integers(max(low, zero) + 1, most + 1))
        if zero < most and rng.random() < 0.3
        else most
    )
    if rng.random() < 0.5:
        multipliers[:], shifts[:] = multipliers[0], shifts[0]
    params = LinearParams(
        0,
        0,
        zero,
        multipliers.astype(np.int32),
        shifts.astype(np.int32),
        low,
        high,
        ROUNDINGS[int(rng.integers(3))],
    )
    return params, "int8" if signed else "uint8"


def draw_sums(rng, params, reach, rows):
    """Sums [rows, channels] within +-reach: around each step of the reference, and at random."""
    sums = rng.integers(-reach, reach + 1, (rows, CHANNELS))
    sums[:200] = rng.choice(1 << np.arange(24), (200, CHANNELS)) * rng.choice([-1, 1], (200, 1))
    real = params.multipliers * 2.0 ** (params.shifts.astype(float) - 31)
    with np.errstate(divide="ignore", over="ignore"):
        steps = (np.arange(-256, 257)[:, None] - 0.5) / real
    steps = np.clip(steps, -reach, reach)
    around = np.concatenate([np.floor(steps).astype(np.int64) + d for d in range(-3, 5)])
    sums[200 : 200 + len(around)] = around
    sums[-2:] = [[-reach], [reach]]
    return np.clip(sums, -reach, reach)


def run_numbers(isa, requant, sums, cache):
    """Return y - y_zero of each sum, computed by generated code; lanes are channels."""
    fn, (x, table, y), _, _ = begin("numbers", isa, 3)
    for row in fn.range(0, len(sums)):
        for lane in range(0, CHANNELS, isa.lanes):
            acc = fn.load(vector(isa.lanes, "i32"), fn.at(x, row * CHANNELS + lane, "i32"), 4)
            branch = requant.enter(fn, (), row, (table, lane, isa.lanes, 1)) if lane else None
            (number,) = requant.numbers(fn, [acc], table, lane, branch)
            fn.store(number, fn.at(y, row * CHANNELS + lane, "i32"), 4)
    code = finish(fn)
    jit = Jit(isa, ObjectCache(cache))
    address = jit.addresses([code])[code.symbol]
    arrays = [np.ascontiguousarray(sums, np.int32), requant.data, np.zeros(sums.shape, np.int32)]
    pointers = (ctypes.c_void_p * 3)(*(a.ctypes.data for a in arrays))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(address)(
        ctypes.addressof(pointers), 0, None
    )
    return arrays[2].astype(np.int64)


@pytest.mark.parametrize("isa", [name for name in available_isas() if ISAS[name].fused])
def test_every_step_is_the_reference(isa, tmp_path):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    chosen, fitted, checked, order = choose_isa(isa), 0, 0, np.arange(CHANNELS)
    for _ in range(60):
        params, dtype = draw_params(rng)
        reach = int(rng.choice([3000, 100_000, 3_000_000, 1 << 26]))
        bounds = (np.full(CHANNELS, -reach), np.full(CHANNELS, reach))
        bias = np.zeros(CHANNELS, np.int64)
        requant = requantiser(chosen, params, dtype, bias, bounds, order)
        sums = draw_sums(rng, params, reach, 8000)
        number = run_numbers(chosen, requant, sums, tmp_path)
        got = np.clip(number + params.y_zero, params.low, params.high)
        want = requantize(
            sums,
            params.multipliers,
            params.shifts,
            params.y_zero,
            params.low,
            params.high,
            params.rounding,
        )
        np.testing.assert_array_equal(got, want, err_msg=f"{requant.kind} {params}")
        fitted += requant.kind == "fit"
        checked += sums.size
    print(f"{isa}: {fitted} of 60 layers fitted, {checked} sums")
    assert fitted >= 20


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_steps_that_float32_cannot_tell_apart_have_no_fit(steps):
    """The least sums of a step, beyond 2**24, have a neighbour of the same float."""
    params = LinearParams(
        0,
        0,
        225,
        np.array([(1 << 30) + 1], np.int32),
        np.array([-25], np.int32),
        225,
        225 + steps,
        Rounding.TWICE,
    )
    assert fit(params, np.array([-(1 << 29)]), np.array([1 << 29])) is None


def test_channels_that_no_sum_moves_need_no_scale():
    params = LinearParams(
        0,
        0,
        -128,
        np.array([1 << 30, 0, 1 << 30], np.int32),
        np.array([-31, 0, -30], np.int32),
        -128,
        127,
        Rounding.TWICE,
    )
    ends = np.array([1 << 30, -5, -(1 << 30)]), np.array([(1 << 30) + 3, 5, -(1 << 30) + 9])
    found = fit(params, *ends)
    assert found is not None and not found.scales.any()
    want = requantize(ends[0], params.multipliers, params.shifts, 0, 0, 255, params.rounding)
    np.testing.assert_array_equal(found.addends, want)


def test_sums_that_fail_are_corrected():
    """A multiplier whose steps leave no room needs exceptions, and they are counted."""
    rng = np.random.default_rng(SEED)
    multipliers = rng.integers(1 << 30, 1 << 31, 200).astype(np.int32)
    shifts = np.full(200, -9, np.int32)
    params = LinearParams(0, 0, -128, multipliers, shifts, -128, 127, Rounding.TWICE)
    ends = np.full(200, -2_000_000), np.full(200, 2_000_000)
    found = fit(params, *ends)
    assert found is not None and len(found.sums)
    for row in range(len(found.sums)):
        for column in np.flatnonzero(found.corrections[row]):
            scale, addend = (float(v[column]) for v in (found.scales, found.addends))
            acc = int(found.sums[row, column])
            plain = np.rint(np.float32(acc * scale + addend))
            want = requantize(acc, int(multipliers[column]), -9, 0, 0, 255, params.rounding)
            assert np.clip(plain + found.corrections[row, column], 0, 255) == want


def test_what_was_fitted_is_kept(tmp_path, monkeypatch):
    """A second search for the same finds the first one's result; another parameter is another."""
    rng = np.random.default_rng(SEED)
    print("seed", SEED)
    most = np.full(CHANNELS, 30_000, np.int64)
    problems = [(draw_params(rng)[0], -most, most) for _ in range(12)]
    first = problems[0][0]
    problems += [
        (replace(first, y_zero=first.y_zero + 1), -most, most),
        *(
            (replace(first, rounding=how), -most, most)
            for how in ROUNDINGS
            if how is not first.rounding
        ),
        (replace(first, shifts=first.shifts - 1), -most, most),
        (first, -most, most + 1),
        (first, -most - 1, most),
        (replace(first, shifts=first.shifts + 40), -most, most),
    ]
    wanted = [fit(*problem) for problem in problems]
    assert any(want is None for want in wanted) and any(want is not None for want in wanted)
    searches = []
    monkeypatch.setattr(int8_fit, "fit", lambda *a: (searches.append(1), fit(*a))[1])
    for count in (len(problems), 0):
        known = KernelCache(choose_isa("auto"), ObjectCache(tmp_path))
        searches.clear()
        for problem, want in zip(problems, wanted, strict=True):
            got = int8_fit.fit_once(known, *problem)
            assert (got is None) == (want is None)
            for name in ("scales", "addends", "sums", "corrections") if want else ():
                a, b = getattr(got, name), getattr(want, name)
                assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all(), name
            assert want is None or got.signed == want.signed
        assert len(searches) == count
