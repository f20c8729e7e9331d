"""A profile says where runs take another time than was predicted, and what would mend it."""

import numpy as np
import pytest
from priced_toys import relu, toy_calibration
from toy_device import ToyDevice

from trireme.cost.calibration import (
    Calibration,
)
from trireme.profiling.prediction_error import TOLERANCE, prediction_error_of
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session


def test_prediction_errors_are_reported_with_its_remedy():
    def error_of(measured_s, sources):
        rows = [("conv", 1e-3, measured_s), ("relu", 1e-5, 1e-5)]
        return prediction_error_of("cpu", rows, [(1e-3, measured_s)], sources, "trireme calibrate")

    assert not error_of(1e-3 * (1 + TOLERANCE - 0.01), ["calibration"]).is_reported
    slow = error_of(1.5e-3, ["calibration"])
    assert slow.is_reported and slow.change == pytest.approx(0.5)
    assert "took 50% more than predicted (1.50 ms for 1.00 ms)" in str(slow)
    assert "took 20% less than" in str(error_of(0.8e-3, ["calibration"]))
    assert "when it is quiet: trireme calibrate" in str(slow)
    assert "never measured" in str(error_of(0.5e-3, ["roofline"]))


def test_a_profile_tells_prediction_errors():
    device = ToyDevice("cpu", delay_s=0.002)
    with Session(
        relu(), devices=[device], execution_options=AS_GIVEN, calibration=toy_calibration()
    ) as session:
        profile = session.profile({"x": np.ones(100, np.float32)}, runs=3)
    (error,) = profile.prediction_errors
    assert error.is_reported and "mispredicted" in str(profile)
    assert profile.interval_s[0] < profile.predicted_s < profile.interval_s[1]
    assert profile.to_json()["prediction_errors"][0]["change"] > TOLERANCE


def test_prediction_errors_of_copies_says_what_its_device_is_priced_by():
    """Copies to a device that was never measured are not said to have been."""
    far = ToyDevice("far", link_bandwidth=1e3)
    with Session(
        relu(), devices=[far], execution_options=AS_GIVEN, calibration=Calibration()
    ) as session:
        profile = session.profile({"x": np.ones(100, np.float32)}, runs=2)
    ways = [one for one in profile.prediction_errors if one.what.startswith("copies")]
    assert [one.what for one in ways] == ["copies host>far", "copies far>host"]
    for one in ways:
        assert "never measured" in one.remedy and one.remedy.endswith("--devices far")
