"""Fit a curve of non-negative terms to measurements, and give its error.

`calibrate` fits every family of kernels, and launches; `transfer_probe` fits copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trireme.cost.calibration import Curve
from trireme.cost.estimate import SPREAD
from trireme.support.dtypes import Array

_ROUNDS = 6
_OUTLIER = 0.2
"""Relative errors above this limit count linearly instead of squared (Huber's loss)."""
_COVERED = 0.9
"""Target coverage of the interval. One prior sample (a calibrated estimate's spread) per fitted
factor guards against overconfidence."""
_LEAST = 0.05
"""The least half-width of the interval, relative to the prediction."""
_SHRINK = 0.1
"""Strength of the pull towards the usual factors, relative to the columns' length. Factors that the
measurements cannot tell apart stay usual."""
_USUAL = {
    "model_s": 1.0,
    "stores_s": 1.0,
    "kernels_s": 1.0,
    "handed_bytes": 0.3,
    "joins": 4.0,
}
"""Factors without evidence: 1 for seconds, 0 for other amounts. In many networks 0.3 of the bytes
and four flags passed between cores."""
_MOST = {"model_s": 8.0, "stores_s": 8.0}
"""Upper limits of factors; the largest measured are 3.1 and 4.5. Without a limit, one disturbed
kernel alone in its family makes predictions of larger kernels take milliseconds."""
_PIVOTS = 500
"""The most linear systems that one fit solves."""
_PATIENCE = 3
"""Rounds in which all wrong unknowns change together although their number does not fall."""


def fit(
    samples: Sequence[Mapping[str, float]],
    seconds: Sequence[float],
    floor_s: float = 0.0,
    least_s: float | None = None,
    most: Mapping[str, float] | None = None,
) -> Curve:
    """Return the curve fixed_s + sum of per[term] * term, none negative, that fits best.

    samples: the terms of each measurement, all of the same names
    floor_s: added to the seconds in relative errors, so that very short kernels weigh less
    least_s: the seconds of a kernel without work, where known; they count as one more sample
    most: the upper limits of factors, by term; they separate terms that grow together
    """
    names = list(samples[0])
    measured = np.asarray(seconds, np.float64)
    columns = [np.ones(len(measured))]
    columns += [np.array([sample[name] for sample in samples], np.float64) for name in names]
    terms = np.stack(columns, axis=1)
    weight = 1 / (measured + floor_s)
    if least_s is not None:
        terms = np.vstack([terms, np.eye(1, terms.shape[1])])
        measured, weight = np.append(measured, least_s), np.append(weight, 1 / (least_s + floor_s))
    most = {**_MOST, **(most or {})}
    limits = np.array([np.inf, *(most.get(name, np.inf) for name in names)])
    usual = np.array([0.0, *(_USUAL.get(name, 0.0) for name in names)])
    factors = least_squares(terms, measured, weight, usual, limits)
    count = len(samples)
    terms, measured, weight = terms[:count], measured[:count], weight[:count]
    predicted = terms @ factors
    return Curve(
        float(factors[0]),
        {name: float(f) for name, f in zip(names, factors[1:], strict=True) if f > 0},
        *_interval(predicted, measured, floor_s, len(factors)),
        len(measured),
        float(np.median(np.abs(predicted - measured) * weight)),
    )


def least_squares(terms: Array, target: Array, weight: Array, usual: Array, limits: Array) -> Array:
    """Return the factors of least weighted squares, within limits and near the usual ones.

    Outliers count linearly.
    terms: a row a measurement
    weight: of each row's error, which makes the error relative
    Source: Huber, "Robust estimation of a location parameter" (1964)
    """
    factors, robust = usual, np.ones(len(target))
    for _ in range(_ROUNDS):
        factors = _squares(terms, target, weight * robust, usual, limits)
        off = np.abs(terms @ factors - target) * weight
        robust = np.sqrt(_OUTLIER / np.maximum(off, _OUTLIER))
    return factors


def _squares(terms: Array, target: Array, weight: Array, usual: Array, limits: Array) -> Array:
    """Return the least-squares factors by the normal equations, with columns scaled to length 1."""
    scaled, wanted = terms * weight[:, None], target * weight
    size = np.maximum(np.sqrt((scaled**2).sum(axis=0)), 1e-300)
    scaled = scaled / size
    square = scaled.T @ scaled + _SHRINK**2 * np.eye(len(size))
    right = scaled.T @ wanted + _SHRINK**2 * usual * size
    return np.asarray(_within(square, right, limits * size) / size)


def _within(square: Array, right: Array, most: Array) -> Array:
    """Return the x, from 0 to `most`, that minimises x' square x / 2 - right' x.

    Each unknown is free or fixed at a limit. All wrong unknowns change together while their number
    falls. Otherwise only the last one changes, which guarantees an end.
    Source: Judice and Pires, "A block principal pivoting algorithm for large-scale strictly
        monotone linear complementarity problems" (1994)
    """
    held = np.zeros(len(right), np.int8)  # -1 at 0, 1 at the most, 0 free
    found, fewest, patience = np.zeros(len(right)), len(right) + 1, _PATIENCE
    slack = 1e-12 * max(float(np.abs(right).max()), 1e-300)
    for _ in range(_PIVOTS):
        free = held == 0
        found = np.where(held == 1, most, 0.0)
        rest = right[free] - square[np.ix_(free, ~free)] @ found[~free]
        found[free] = np.linalg.solve(square[np.ix_(free, free)], rest)
        slope = square @ found - right
        low, high = free & (found < -slack), free & (found > most + slack)
        loose = ((held == -1) & (slope < -slack)) | ((held == 1) & (slope > slack))
        wrong = np.flatnonzero(low | high | loose)
        if not len(wrong):
            break
        if len(wrong) < fewest:
            fewest, patience = len(wrong), _PATIENCE
        else:
            patience -= 1
        change = wrong if patience >= 0 else wrong[-1:]
        held[change] = np.where(loose[change], 0, np.where(low[change], -1, 1))
    return np.asarray(np.clip(found, 0.0, most))


def _interval(
    predicted: Array, measured: Array, floor_s: float, factors: int
) -> tuple[float, float]:
    """Return the low and high factors of the prediction that cover `_COVERED` of the samples."""
    ratio = (measured + floor_s) / np.maximum(predicted + floor_s, 1e-300)
    unseen = np.geomspace(*SPREAD["calibration"], factors)
    low, high = np.quantile([*ratio, *unseen], [(1 - _COVERED) / 2, (1 + _COVERED) / 2])
    return float(min(low, 1 - _LEAST)), float(max(high, 1 + _LEAST))
