"""Exact requantisation in float32: a multiplier and an addend whose steps are the reference's.

The reference (trireme.ops.integer.multiply) maps the 32-bit sum `acc` of a channel to a small
integer y, with 64-bit products and up to two roundings. It never
falls as acc grows, so it is known by its steps: T[k], the smallest acc with y >= k, for the few
k (at most 255) that the clamp lets through. A kernel computes instead

    n = nearest(fma(float(acc), scale, addend))          addend with the sign of acc if `signed`

with ties to even; a signed addend is never negative itself. That never falls either, so both agree
everywhere if they agree at T[k] - 1 and T[k] of every k. `fit` looks for scale and addend (float32,
one pair a channel) for which they do.

Only the sums that the weights and the bias allow (least .. most) need to agree; a step outside asks
for the right side at the end of that range. What is rounded, exactly: float(acc) is known. With
t = k - 1/2, the product and sum v = acc * scale + addend are rounded once, to p; nearest(p) >= k
holds if p > t, or p = t and k is even. p >= t holds if v >= t - below / 2, p > t if
v > t + above / 2, where below and above are the distances from t to its neighbours in float32 (t
has an even last bit, so a tie goes to t). All of these are integers in units of 2**-e,
e = 26 + max(right, 0), so the comparison of v with its bound L[k] has no error:

    scale * T[k] + addend >= L[k]   and   scale * (T[k] - 1) + addend < L[k]          for every k
    max(L - scale * T) <= addend < min(L - scale * T) + scale

Often the nearest scale has an addend between both ends. If not, its neighbours are tried, and where
none does, the addend that fails at the fewest sums is taken, and these sums become **exceptions**:
(acc, correction) pairs that the kernel compares with. With more than `MOST_EXCEPTIONS` in a channel
there is no fit, and kernels follow the reference's formula.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from trireme.devices.cpu.codegen.kernel_cache import KernelCache, encoded
from trireme.ir.graph import Rounding
from trireme.ops.integer import LinearParams, multiply
from trireme.support.dtypes import Array
from trireme.support.records import dataclass

MOST_EXCEPTIONS = 4
_NEIGHBOURS = (0, -1, 1, -2, 2, -3, 3)
"""Scales that are tried, in units in the last place from the nearest one."""
_DROPS = sorted(((late, early) for late in range(5) for early in range(5 - late)), key=sum)
"""The number of the highest lower ends, and of the lowest upper ends, that an addend may miss."""
_NEVER = -(1 << 31)
"""An exception's sum where there is none: the correction beside it is 0."""
_FAR = 1 << 60
_BLOCK = 128
"""Channels looked at together: their steps stay in cache."""


@dataclass(frozen=True, eq=False)
class Fit:
    """float32 requantisation of a layer; see the module.

    signed: the addend takes the sign of acc
    Shapes: scales, addends float32 [O]; sums, corrections int32 [exceptions, O]
    """

    scales: Array
    addends: Array
    signed: bool
    sums: Array
    corrections: Array


@dataclass(frozen=True, eq=False)
class _Steps:
    """The steps of some channels, in units of 2**-e.

    below, above: the sums (as float32 holds them) at which y must not, and must, have reached k
    tied: whether steps of positive and negative sums differ; then these are those of positive ones
    Shapes: mantissas (of the nearest float32 scale, mantissa * 2**-(24 + right)), rights int64 [U];
            below, above, level (L) int64 [K, U]; has_below, has_above, tied bool [K, U]
    """

    mantissas: Array
    rights: Array
    below: Array
    above: Array
    level: Array
    has_below: Array
    has_above: Array
    tied: Array

    def unit(self, mantissa: Array) -> Array:
        """Return scales in units of 2**-e."""
        return np.asarray(mantissa << (2 + np.maximum(-self.rights, 0)))

    @property
    def exponents(self) -> Array:
        """e, by channel."""
        return np.asarray(26 + np.maximum(self.rights, 0))

    def take(self, columns: Array) -> _Steps:
        """Return some of the channels."""
        per_step = (self.below, self.above, self.level, self.has_below, self.has_above, self.tied)
        rest = (array[:, columns] for array in per_step)
        return _Steps(self.mantissas[columns], self.rights[columns], *rest)

    def ends(self, unit: Array) -> tuple[Array, Array]:
        """Return the least and the greatest addend that each step allows, [K, U]."""
        lows = np.where(self.has_above, self.level - self.above * unit, -_FAR)
        highs = np.where(self.has_below, self.level - self.below * unit - 1, _FAR)
        return lows, highs


def fit_once(
    recipes: KernelCache | None, params: LinearParams, least: Array, most: Array
) -> Fit | None:
    """Return `fit` of the same. Earlier results, of this or another process, are kept."""
    if recipes is None:
        return fit(params, least, most)
    given = {field.name: getattr(params, field.name) for field in fields(params)}
    given |= {"least": least, "most": most}
    arrays = {name: a for name, a in given.items() if isinstance(a, np.ndarray)}
    rest = {name: encoded(v) for name, v in given.items() if name not in arrays}
    forms = {name: (a.dtype.str, a.shape) for name, a in arrays.items()}
    data = b"".join(array.tobytes() for array in arrays.values())
    problem = f"int8_fit {rest} {forms} ".encode() + data
    return _decoded(recipes.found(problem, lambda: _bytes_of(fit(params, least, most))))


def _bytes_of(found: Fit | None) -> bytes:
    if found is None:
        return b""
    arrays = (found.scales, found.addends, found.sums, found.corrections)
    head = np.array([found.signed, *found.sums.shape], "<i4")
    return b"".join(a.tobytes() for a in (head, *arrays))


def _decoded(data: bytes) -> Fit | None:
    if not data:
        return None
    words = np.frombuffer(data, np.int32)
    signed, rows, channels = words[:3].tolist()
    reals, pairs = words[3 : 3 + 2 * channels], words[3 + 2 * channels :]
    scales, addends = reals.view(np.float32).reshape(2, channels)
    sums, corrections = pairs.reshape(2, rows, channels)
    return Fit(scales, addends, bool(signed), sums, corrections)


def fit(params: LinearParams, least: Array, most: Array) -> Fit | None:
    """Return float32 requantisation that equals the reference for least <= acc <= most.

    None if there is none.
    Shapes: least, most int64 [O], as params.multipliers and shifts
    """
    pairs = np.stack([params.multipliers, params.shifts]).astype(np.int64)
    unique, inverse = np.unique(pairs, axis=1, return_inverse=True)
    at, count = inverse.reshape(-1), unique.shape[1]
    lows, highs = np.full(count, _FAR), np.full(count, -_FAR)
    np.minimum.at(lows, at, least)
    np.maximum.at(highs, at, most)
    signed = params.rounding is not Rounding.HALF_EVEN and params.low < params.y_zero
    reach = np.maximum(highs, -lows)
    limits = (params.low - params.y_zero, params.high - params.y_zero)
    multipliers, shifts = unique
    ends = [
        np.clip(multiply(x, multipliers, shifts, params.rounding), *limits) for x in (lows, highs)
    ]
    live = ends[0] != ends[1]
    if (multipliers[live] < 1 << 30).any() or (shifts[live] < -26).any():
        return None
    if (reach * 2.0 ** np.maximum(shifts, 0) >= 1 << 30)[live].any():
        return None  # shifted left, sums would wrap
    scales, addends = np.zeros(count, np.float32), np.zeros(count, np.float32)
    addends[~live] = np.abs(ends[0])[~live] if signed else ends[0][~live]
    exceptions: dict[int, list[tuple[int, int]]] = {}
    for start in range(0, count, _BLOCK):
        columns = np.arange(start, min(start + _BLOCK, count))
        columns = columns[live[columns]]
        if not len(columns):
            continue
        bounds = (np.zeros_like(reach), reach) if signed else (lows, highs)
        steps = _steps(params, unique[:, columns], bounds[0][columns], bounds[1][columns], signed)
        done = _fit_without_exceptions(steps, scales, addends, columns, signed)
        for rest in np.flatnonzero(~done):
            one = _fit_with_exceptions(steps.take(np.array([rest])), signed)
            if one is None:
                return None
            column = int(columns[rest])
            scales[column], addends[column], exceptions[column] = one
    rows = max(map(len, exceptions.values()), default=0)
    sums = np.full((rows, count), _NEVER, np.int32)
    corrections = np.zeros((rows, count), np.int32)
    for column, found in exceptions.items():
        for row, (acc, correction) in enumerate(found):
            sums[row, column], corrections[row, column] = acc, correction
    return Fit(scales[at], addends[at], signed, sums[:, at], corrections[:, at])


def _steps(params: LinearParams, pairs: Array, least: Array, most: Array, signed: bool) -> _Steps:
    """Return the steps of the reference for multipliers pairs[0] and shifts pairs[1]."""
    multipliers, rights = pairs[0], -pairs[1]
    low, high = params.low - params.y_zero, params.high - params.y_zero
    k = np.arange(1, max(high, -low) + 1) if signed else np.arange(low + 1, high + 1)
    right, left = np.maximum(rights, 0), np.maximum(-rights, 0)
    whole = (2 * k[:, None] - 1) << right  # twice what k - 1/2 is in units of 2**-right
    whole = np.clip(whole, -(1 << 32), 1 << 32)  # a step that far is never reached
    tied = np.zeros(whole.shape, bool)
    if params.rounding is Rounding.TWICE:  # the first rounding reaches ceil((k - 1/2) * 2**right)
        bound = (-(-whole // 2) << 31) - (1 << 30)
        divisor = np.broadcast_to(multipliers << left, bound.shape)
        first = -(-bound // divisor)
        tied = (first * divisor == bound) & (first <= most) & signed
    else:  # acc * m >= (k - 1/2) * 2**(31 + right), or > where a half becomes k - 1
        falls = k % 2 == 1 if params.rounding is Rounding.HALF_EVEN else k <= 0
        bound = ((whole << 30) >> left) + falls[:, None]
        first = -(-bound // np.broadcast_to(multipliers, bound.shape))
    level = (_levels(k)[:, None] << right) + (k[:, None] & 1)
    below, above = np.minimum(first - 1, most), np.maximum(first, least)
    return _Steps(
        (multipliers + 64) >> 7,
        rights,
        _as_float(below),
        _as_float(above),
        level,
        first > least,
        first <= most,
        tied,
    )


def _as_float(x: Array) -> Array:
    """Return integers as float32 holds them."""
    return np.asarray(x.astype(np.float32), np.int64)


def _levels(k: Array) -> Array:
    """Return L[k] - k % 2 for nearest(p) >= k, in units of 2**-26."""
    t = 2 * k - 1  # of halves
    size = np.abs(t)
    exponent = np.floor(np.log2(size)).astype(np.int64) - 1  # |k - 1/2| is in 2**exponent * [1, 2)
    outward = np.int64(1) << (2 + exponent)  # half the distance to the neighbour off zero
    inward = np.where(size == 1, outward >> 1, outward)
    below, above = np.where(t > 0, inward, outward), np.where(t > 0, outward, inward)
    return np.asarray((t << 25) + np.where(k % 2 == 0, -below, above))


def _fit_without_exceptions(
    steps: _Steps, scales: Array, addends: Array, columns: Array, signed: bool
) -> Array:
    """Write the channels that fit to scales and addends at `columns`; return which did, [U]."""
    done = np.zeros(len(columns), bool)
    possible = ~steps.tied.any(axis=0)
    for neighbour in _NEIGHBOURS:
        todo = np.flatnonzero(possible & ~done)
        if not len(todo):
            break
        part = steps.take(todo) if len(todo) < len(columns) else steps
        mantissas = part.mantissas + neighbour
        unit = part.unit(mantissas)
        each_low, each_high = part.ends(unit)
        lows = each_low.max(axis=0, initial=-_FAR)
        highs = each_high.min(axis=0, initial=_FAR)
        least = np.zeros_like(unit) if signed else -unit
        addend = _between(np.maximum(lows, least), np.minimum(highs, unit), part.exponents)
        exact = np.ldexp(addend.astype(np.float64), part.exponents)
        fits = (exact >= lows) & (exact <= highs) & (mantissas >> 23 == 1)
        fits &= (exact >= 0) | (not signed)
        scales[columns[todo[fits]]] = _scale(mantissas, part.rights)[fits]
        addends[columns[todo[fits]]] = addend[fits]
        done[todo[fits]] = True
    return done


def _scale(mantissas: Array, rights: Array) -> Array:
    return np.asarray(np.ldexp(mantissas.astype(np.float64), -24 - rights), np.float32)


def _between(low: Array, high: Array, exponents: Array) -> Array:
    """Return the float32 nearest to the middle of low and high, in units of 2**-exponents."""
    return np.asarray(np.ldexp((low + high) / 2.0, -exponents), np.float32)


def _fit_with_exceptions(
    steps: _Steps, signed: bool
) -> tuple[np.float32, np.float32, list[tuple[int, int]]] | None:
    """Return (scale, addend, exceptions) of the one channel in `steps`, with few exceptions."""
    candidates = []
    for neighbour in _NEIGHBOURS:
        mantissa = steps.mantissas + neighbour
        if mantissa[0] >> 23 == 1:
            unit = steps.unit(mantissa)
            lows, highs = (end[:, 0] for end in steps.ends(unit))
            ordered = (np.sort(lows)[::-1], np.sort(highs))
            candidates.append((_scale(mantissa, steps.rights)[0], lows, highs, ordered, unit))
    best: tuple[np.float32, np.float32, list[tuple[int, int]]] | None = None
    for late, early in _DROPS:
        for scale, lows, highs, ordered, unit in candidates:
            if max(late, early) >= len(lows):
                continue
            ends = (ordered[0][late : late + 1], ordered[1][early : early + 1])
            if ends[0] > ends[1]:
                continue  # more steps fail than these
            least = np.zeros_like(unit) if signed else -unit
            addend = _between(
                np.maximum(ends[0], least), np.minimum(ends[1], unit), steps.exponents
            )
            found = _exceptions(steps, (lows, highs), unit[0], addend, signed)
            if found is not None and (best is None or len(found) < len(best[2])):
                best = scale, addend[0], found
        if best is not None and len(best[2]) <= late + early + 1:
            break
    return best


def _exceptions(
    steps: _Steps, ends: tuple[Array, Array], unit: int, addend: Array, signed: bool
) -> list[tuple[int, int]] | None:
    """Return where a scale and an addend fail, as (sum, correction), None if that is too often."""
    at = np.ldexp(addend.astype(np.float64), steps.exponents)[0]
    lows, highs = ends
    if (
        at != int(at)
        or (signed and at < 0)
        or (lows > at + unit).any()
        or (highs < at - unit).any()
    ):
        return None
    above, below = steps.above[:, 0], steps.below[:, 0]
    if (
        max(np.abs(above[lows > at]).max(initial=0), np.abs(below[highs < at]).max(initial=0))
        > 1 << 24
    ):
        return None
    tied = steps.tied[:, 0]
    found: dict[int, int] = {}
    for sign in (1, -1) if signed else (1,):
        move = (tied & (sign < 0)).astype(np.int64)  # negative sums: that step is one later
        for t in (above + move)[lows - unit * move > at].tolist():
            found[sign * t] = found.get(sign * t, 0) + sign
        for t in (below + move)[highs - unit * move < at].tolist():
            found[sign * t] = found.get(sign * t, 0) - sign
    return list(found.items()) if len(found) <= MOST_EXCEPTIONS else None
