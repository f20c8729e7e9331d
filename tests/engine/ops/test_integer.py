"""The integers of quantised arithmetic, against plain-Python transcriptions of the definitions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.ir.graph import Quant, Rounding, TensorType, Value
from trireme.ir.op import Call, has_op
from trireme.ops import integer as q
from trireme.support.errors import GraphError

SEED = 20
EDGES = [0, 1, -1, 2, -2, 127, -128, 255, 2**15, -(2**15), 2**30, -(2**30), 2**31 - 1, -(2**31)]


def scalar_high_multiply(a: int, b: int) -> int:
    """gemmlowp: add a nudge by the sign of the product, then cut toward zero."""
    product = a * b
    nudged = product + (2**30 if product >= 0 else 1 - 2**30)
    return nudged // 2**31 if nudged >= 0 else -(-nudged // 2**31)


def scalar_divide(x: int, exponent: int) -> int:
    """Nearest, ties away from zero."""
    sign, size = (-1 if x < 0 else 1), abs(x)
    return sign * ((size + (1 << exponent >> 1)) >> exponent)


def call(types, out, attrs=None, data=()):
    values = tuple(
        None if type is None else Value(i, f"v{i}", type, data[i] if i < len(data) else None)
        for i, type in enumerate(types)
    )
    return Call(values, (out,), attrs or {})


def int8(shape, scale, zero, axis=None):
    scales = scale if isinstance(scale, tuple) else (float(np.float32(scale)),)
    return TensorType(shape, "int8", Quant(scales, (zero,) * len(scales), axis))


def uint8(shape, scale, zero):
    return TensorType(shape, "uint8", Quant((float(np.float32(scale)),), (zero,)))


def test_high_multiply_is_gemmlowps():
    rng = np.random.default_rng(SEED)
    values = [*EDGES, *rng.integers(-(2**31), 2**31, 200).tolist()]
    for multiplier in (2**30, 2**30 + 1, 2**31 - 1, 1_518_500_250):
        got = q.rounding_doubling_high_multiply(np.array(values), multiplier)
        assert got.tolist() == [scalar_high_multiply(v, multiplier) for v in values]


def test_many_multipliers_are_as_one():
    rng = np.random.default_rng(SEED)
    exact = [m * 2.0**e for e in range(-70, 40) for m in (1, 1 - 2.0**-32, 1 - 2.0**-33, 0.75)]
    reals = np.array([0.0, *exact, *np.exp(rng.uniform(-60, 30, 2000))])
    got = np.stack(q.quantize_multipliers(reals), axis=1).tolist()
    assert got == [list(q.quantize_multiplier(real)) for real in reals.tolist()]


def test_divide_by_power_of_two_rounds_ties_away():
    rng = np.random.default_rng(SEED)
    values = [*EDGES, *rng.integers(-(2**31), 2**31, 200).tolist(), *range(-40, 40)]
    for exponent in range(32):
        got = q.rounding_divide_by_power_of_two(np.array(values), exponent)
        assert got.tolist() == [scalar_divide(v, exponent) for v in values], exponent


@pytest.mark.parametrize("real", [0.0, 1e-12, 1e-9, 0.3, 0.5, 1 - 2**-40, 1.0, 1.5, 77.7, 2.0**31])
def test_quantize_multiplier(real):
    multiplier, shift = q.quantize_multiplier(real)
    assert -31 <= shift <= 30
    if 2.0**-32 < real < 2.0**30:
        assert 2**30 <= multiplier < 2**31
        assert math.isclose(multiplier * 2.0 ** (shift - 31), real, rel_tol=2.0**-30)
    else:
        assert (multiplier, shift) in [(0, 0), (2**31 - 1, 30)]


def rounded(exact, rounding):
    """A fraction as an integer, the plain way."""
    down, rest = math.floor(exact), exact - math.floor(exact)
    half = down % 2 == 1 if rounding is Rounding.HALF_EVEN else exact > 0
    return down + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and half))


@pytest.mark.parametrize("rounding", [Rounding.HALF_AWAY, Rounding.HALF_EVEN])
def test_multiply_once_is_the_nearest_integer(rounding):
    rng = np.random.default_rng(SEED)
    x = rng.integers(-(2**20), 2**20, 500)
    for real in (0.0007, 0.3, 0.5, 0.125, 1.7, 900.0):
        multiplier, shift = q.quantize_multiplier(real)
        nearest = [rounded(Fraction(int(v) * multiplier, 1 << (31 - shift)), rounding) for v in x]
        assert q.multiply_once(x, multiplier, shift, rounding).tolist() == nearest, real


def test_a_product_cannot_be_truncated():
    with pytest.raises(GraphError, match="truncate"):
        q.multiply(np.array(3), 1 << 30, 0, Rounding.TRUNCATE)


def test_requantize_broadcasts_over_channels():
    acc = np.array([[1000, -1000], [77, 78]])
    pairs = [q.quantize_multiplier(0.01), q.quantize_multiplier(2.5)]
    multipliers, shifts = np.array(pairs).T
    got = q.requantize(acc, multipliers, shifts, 3, -128, 127, Rounding.TWICE)
    assert got.tolist() == [[13, -128], [4, 127]]


def test_round_half_away_keeps_the_largest_float_below_a_half():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    got = q.round_half_away(np.array([0.5, -0.5, 1.5, 2.5, below, -below], np.float32))
    assert got.tolist() == [1, -1, 2, 3, 0, 0]


@pytest.mark.parametrize("rounding", [Rounding.HALF_AWAY, Rounding.HALF_EVEN])
def test_divide(rounding):
    for x, n in itertools.product(range(-20, 21), range(1, 8)):
        assert q.divide(np.array(x), n, rounding) == rounded(Fraction(x, n), rounding)


def test_quantized_saturates_and_takes_nan_to_the_least():
    type = int8((5,), 0.5, 3)
    x = np.array([np.nan, np.inf, -np.inf, 0.25, -0.25], np.float32)
    assert q.quantized(x, type).tolist() == [-128, 127, -128, 4, 2]
    back = q.dequantized(np.array([3, 4, -128], np.int8), type)
    assert back.tolist() == [0, 0.5, -65.5]


def test_conv_params_per_channel_and_clamp():
    w = int8((3, 1, 1, 2), (0.5, 0.25, 1.0), 0, axis=0)
    bias = TensorType((3,), "int32", Quant((0.05, 0.025, 0.1), (0, 0, 0), 0))
    y = int8((1, 4, 4, 3), 0.05, -20)
    params = q.conv_params(
        call([int8((1, 4, 4, 2), 0.1, 5), w, bias], y, {"activation": "relu6", "layout": "NHWC"})
    )
    assert (params.x_zero, params.w_zero, params.y_zero) == (5, 0, -20)
    assert (params.low, params.high) == (-20, 100)
    reals = params.multipliers.astype(float) * 2.0 ** (params.shifts - 31.0)
    np.testing.assert_allclose(reals, [1.0, 0.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("types", "attrs", "sentence"),
    [
        ([int8((1, 2), 0.1, 0), TensorType((2, 2), "float32")], {}, "must be quantised"),
        ([TensorType((1, 2), "float32"), int8((2, 2), 0.1, 0)], {}, "not quantised"),
        ([int8((1, 2), 0.1, 0), int8((2, 2), 0.1, 0)], {"activation": "gelu"}, "cannot be fused"),
    ],
)
def test_what_cannot_be_lowered_says_so(types, attrs, sentence):
    with pytest.raises(GraphError, match=sentence):
        q.fully_connected_params(call(types, int8((1, 2), 0.1, 0), attrs))


def test_add_of_equal_scales_is_exact():
    type = int8((256,), 0.1, 0)
    p = q.add_params(call([type, type], type))
    a = np.arange(-128, 128)
    b = np.arange(-128, 128)[::-1]
    left = q.multiply_by_quantized((a - p.a_zero) << p.left_shift, p.a_multiplier, p.a_shift)
    right = q.multiply_by_quantized((b - p.b_zero) << p.left_shift, p.b_multiplier, p.b_shift)
    scale = (p.y_multiplier, p.y_shift)
    got = q.requantize(left + right, *scale, p.y_zero, p.low, p.high, p.rounding)
    assert got.tolist() == (a + b).tolist()


def test_mean_params_divide():
    p = q.reduce_mean_params(call([int8((2, 10), 0.2, 7)], int8((2,), 0.1, -3)))
    sums, scale = np.array([10, -10]), (p.multiplier, p.shift)
    got = q.requantize(sums, *scale, p.y_zero, p.low, p.high, p.rounding)
    assert p.count == 10
    assert got.tolist() == [-1, -5]


def test_requantise_table_flips_the_sign_bit():
    table = q.unary_table("quantize", call([uint8((4,), 0.1, 128)], int8((4,), 0.1, 0)))
    x = np.arange(256, dtype=np.uint8)
    assert q.lookup(table, x).tolist() == list(range(-128, 128))


@pytest.mark.parametrize(
    ("op", "attrs", "function"),
    [
        ("tanh", {}, math.tanh),
        ("relu", {}, lambda x: max(x, 0.0)),
        ("leaky_relu", {"alpha": 0.1}, lambda x: x if x >= 0 else 0.1 * x),
        ("hard_swish", {}, lambda x: x * min(max(x + 3, 0), 6) / 6),
    ],
)
def test_tables_are_close_to_the_function(op, attrs, function):
    x, y = int8((256,), 0.05, 10), uint8((256,), 0.04, 100)
    stored = np.arange(-128, 128, dtype=np.int8)
    got = q.lookup(q.unary_table(op, call([x], y, attrs)), stored)
    want = [function(v) / 0.04 + 100 for v in (stored.astype(int) - 10) * 0.05]
    assert got.dtype == np.uint8
    assert np.abs(got - np.clip(want, 0, 255)).max() <= 1.0


def test_a_log_of_nothing_is_the_least():
    if not has_op("log"):
        pytest.skip("log is not defined yet")
    table = q.unary_table("log", call([int8((1,), 0.1, 0)], int8((1,), 0.1, 0)))
    assert q.lookup(table, np.array([-5, 0], np.int8)).tolist() == [-128, -128]


def test_softmax_params_add_up_to_one():
    p = q.softmax_params(call([int8((1, 5), 0.1, 3)], int8((1, 5), 1 / 256, -128)))
    x = np.array([12, -90, 30, 30, 29])
    e = p.table[x.max() - x].astype(np.int64)
    y = (e * p.gain + e.sum() // 2) // e.sum()
    want = np.exp(0.1 * (x - 30)) / np.exp(0.1 * (x - 30)).sum() * 256
    assert np.abs(y - want).max() <= 0.51
    assert abs(y.sum() - 256) <= 2


def test_concat_tables_leave_equal_types_alone():
    a, b, y = uint8((1, 2), 0.1, 10), uint8((1, 2), 0.2, 100), uint8((1, 4), 0.1, 10)
    same, other = q.concat_tables(call([a, b], y, {"axis": 1}))
    assert same is None
    assert other[100] == 10
    assert other[101] == 12
    assert other[0] == 0


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "align_corners"])
def test_resize_axis_stays_inside_and_weighs_to_one(mode, exact):
    for size_in, size_out in itertools.product((1, 2, 5, 17), (1, 3, 8, 33)):
        axis = q.resize_axis(size_in, size_out, mode, exact=exact)
        assert axis.lower.min() >= 0
        assert max(axis.lower.max(), axis.upper.max()) < size_in
        mixed = axis.upper != axis.lower
        assert np.all((axis.fraction[mixed] >= 0) & (axis.fraction[mixed] <= 1024))


def test_pools_need_one_quantisation():
    attrs = {"activation": "relu"}
    p = q.pool_params(call([int8((4,), 0.1, -5)], int8((4,), 0.1, -5), attrs))
    assert (p.zero, p.low, p.high) == (-5, -5, 127)
    with pytest.raises(GraphError, match="same quantisation"):
        q.pool_params(call([int8((4,), 0.1, -5)], int8((4,), 0.2, -5)))
