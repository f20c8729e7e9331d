"""The verdict of `trireme calibrate --check` on rows of predictions and measurements."""

import pytest

from trireme.tools.calibrate_check import repeated, verdict
from trireme.tools.calibrate_rank import rank_correlation
from trireme.tools.calibrate_rows import CheckRow


def rows(*figures):
    return [
        CheckRow("m", "cpu", 1, "run", predicted, 0.0, 9.0, measured, speed)
        for predicted, measured, speed in figures
    ]


def test_the_bars_are_of_a_quiet_machine():
    """Runs at another speed than the calibration's are told, and not judged."""
    near, far = (1.0, 1.02, 1.0), (1.0, 1.3, 1.01)
    is_met, why = verdict(rows(*[near] * 8, far, far))
    assert is_met and why.startswith("met: of 10 runs") and "80% are within 10%" in why
    assert not verdict(rows(*[near] * 7, far, far, far))[0]
    slow = (1.0, 1.2, 1.2)
    assert verdict(rows(*[near] * 8, slow, slow))[0]
    is_met, why = verdict(rows(*[near] * 7, slow, slow, slow))
    assert not is_met and "only 7 of 10 runs" in why and "trireme calibrate" in why
    assert rows(slow)[0].paced_error == pytest.approx(0.0)
    assert not verdict([])[0]


def test_no_prediction_is_better_than_measurements_of_the_same():
    other = CheckRow("other", "cpu", 1, "run", 1.0, 0.0, 9.0, 5.0, 1.0)
    same = rows((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0, 1.0))
    (line,) = repeated("runs", [*same, other])
    # of 1, 1 and 2 the others' medians are 1.5, 1.5 and 1
    assert "each predicted by the median of its other checks: 3, median error 50.0%" in line
    assert line.endswith("0% within 10%")
    assert not repeated("runs", [same[0], other])


def test_ranks():
    assert rank_correlation([(1, 10), (2, 20), (3, 40)]) == pytest.approx(1)
    assert rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    same = [(1, 10), (1, 12), (2, 20), (2, 21)]  # alike placements say nothing of their order
    assert rank_correlation(same) == rank_correlation(same[::-1]) == pytest.approx(0.8944, abs=1e-4)
