"""Fits recover curves: from noise, from outliers, and from terms that grow together."""

import numpy as np
import pytest

from trireme.calibration.fit import fit
from trireme.cost.calibration import Curve
from trireme.cost.estimate import SPREAD


def synthetic(count=60, noise=0.02, seed=0):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    samples = [
        {"model_s": float(m), "bytes": float(b)}
        for m, b in zip(
            10 ** rng.uniform(-7, -3, count), 10 ** rng.uniform(2, 7, count), strict=True
        )
    ]
    truth = Curve(2e-7, {"model_s": 1.3, "bytes": 2e-11})
    seconds = [truth.seconds(s) * (1 + noise * rng.standard_normal()) for s in samples]
    return truth, samples, seconds


def test_fit_recovers_a_curve():
    truth, samples, seconds = synthetic()
    found = fit(samples, seconds)
    assert found.per["model_s"] == pytest.approx(truth.per["model_s"], rel=0.03)
    assert found.per["bytes"] == pytest.approx(truth.per["bytes"], rel=0.05)
    assert found.fixed_s == pytest.approx(truth.fixed_s, rel=0.1)
    assert found.error < 0.03 and found.samples == len(samples)


def test_a_fit_on_some_predicts_others():
    _, samples, seconds = synthetic(noise=0.05, seed=1)
    found = fit(samples[:40], seconds[:40])
    off = [found.seconds(s) / t - 1 for s, t in zip(samples[40:], seconds[40:], strict=True)]
    assert np.median(np.abs(off)) < 0.06


@pytest.mark.parametrize("seed", range(5))
def test_curves_never_fall(seed):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    samples = [{"a": float(x), "b": float(y)} for x, y in rng.uniform(0, 1, (12, 2))]
    found = fit(samples, list(rng.uniform(1e-6, 1e-3, 12)))
    assert found.fixed_s >= 0 and all(each >= 0 for each in found.per.values())
    small = {"a": 0.3, "b": 0.4}
    for term in small:
        assert found.seconds({**small, term: 0.9}) >= found.seconds(small)


def test_outliers_do_not_bend_a_fit():
    truth, samples, seconds = synthetic()
    seconds[::12] = [10 * s for s in seconds[::12]]
    assert fit(samples, seconds).per["model_s"] == pytest.approx(truth.per["model_s"], rel=0.1)


def test_the_interval_holds_nine_of_ten():
    _, samples, seconds = synthetic(count=200, noise=0.1, seed=2)
    found = fit(samples, seconds)
    ratio = [t / found.seconds(s) for s, t in zip(samples, seconds, strict=True)]
    assert 0.85 < np.mean([found.low <= r <= found.high for r in ratio]) < 0.95
    assert found.low < 1 < found.high


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_few_kernels_say_little_of_the_next(count):
    _, samples, seconds = synthetic(count, noise=0.0)
    low, high = SPREAD["calibration"]
    found = fit(samples, seconds)
    assert found.low < low * 1.1 and found.high > high / 1.1
    _, many, seconds = synthetic(300, noise=0.0)
    sure = fit(many, seconds)
    assert sure.low > found.low and sure.high < found.high


def test_a_disturbed_kernel_alone_in_its_family_does_not_tell_of_larger_ones():
    small, large = {"model_s": 2e-7, "stores_s": 4e-9}, {"model_s": 3e-6, "stores_s": 4e-8}
    found = fit([small], [63e-6], 2e-6, 5e-8)
    assert found.seconds(large) < 100e-6
    assert found.high > 5


def test_terms_that_grow_together_stay_within_limits():
    samples = [{"model_s": k * 1e-5, "bytes": k * 1e5} for k in range(1, 20)]
    seconds = [2e-5 * k for k in range(1, 20)]
    found = fit(samples, seconds, most={"bytes": 1e-11})
    assert found.per.get("bytes", 0.0) <= 1e-11
    assert found.seconds(samples[4]) == pytest.approx(seconds[4], rel=0.05)
