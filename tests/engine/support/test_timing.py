"""The timing harness, on a clock that a test winds."""

import random

import pytest

from trireme.support.timing import (
    RepeatLimits,
    collect,
    interleave,
    medians,
    seconds_of,
    time_calls,
    warm_median,
)


class Clock:
    """Stands still but for what calls take."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def call(self, *seconds):
        """A call that takes these seconds in turn, then the last of them for ever."""
        left = list(seconds)

        def run():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_seconds_of_one_call():
    clock = Clock()
    assert seconds_of(clock.call(0.25), clock) == 0.25


@pytest.mark.parametrize(
    "repeat, calls",
    [
        (RepeatLimits(), 1),
        (RepeatLimits(least=3), 3),
        (RepeatLimits(duration_s=2.0), 4),
        (RepeatLimits(duration_s=1.75), 4),
        (RepeatLimits(duration_s=0.1, least=3), 3),
        (RepeatLimits(duration_s=9.0, least=2, most=5), 5),
        (RepeatLimits(duration_s=9.0, least=7, most=5), 7),
    ],
)
def test_calls_go_on_for_the_duration_within_the_limits(repeat, calls):
    clock = Clock()
    assert time_calls(clock.call(0.5), repeat, clock) == [0.5] * calls


def test_a_sample_may_be_anything():
    clock, run = Clock(), Clock().call(1.0)
    assert collect(lambda: (run(), "seen")[1], RepeatLimits(least=2), clock) == ["seen", "seen"]


def test_the_first_call_warms_up_and_the_median_is_returned():
    clock = Clock()
    assert warm_median(clock.call(50.0, 1.0, 9.0, 2.0), RepeatLimits(least=3), clock) == 2.0


def test_a_call_that_fails_is_the_callers():
    def broken():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        time_calls(broken, RepeatLimits(least=2))


def test_medians_of_the_parts():
    assert medians([[1.0, 10.0], [3.0, 30.0], [2.0, 90.0]]) == [2.0, 30.0]


def turns(rounds, seconds=0.0, limit_s=float("inf"), seed=0):
    clock, found, told = Clock(), [], []
    for turn in interleave(
        "abc", rounds, random.Random(seed), lambda *what: told.append(what), limit_s, clock
    ):
        found.append((turn.entrant, turn.counts, turn.in_time))
        clock.now += seconds
    return found, told


def test_every_entrant_has_a_turn_in_every_round_and_the_first_warms_up():
    found, told = turns(3)
    assert [counts for _, counts, _ in found] == [False] * 3 + [True] * 9
    rounds = ["".join(name for name, _, _ in found[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(order) == list("abc") for order in rounds)
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_the_order_is_drawn_anew_in_each_round_and_given_by_the_seed():
    one, same, other = (turns(20, seed=seed)[0] for seed in (1, 1, 2))
    assert one == same != other
    orders = {"".join(name for name, _, _ in one[i : i + 3]) for i in range(0, 63, 3)}
    assert len(orders) > 3


@pytest.mark.parametrize("limit_s, kept", [(0.0, 1), (3.5, 1), (6.5, 2), (9.5, 3), (99.0, 5)])
def test_after_the_limit_the_round_is_finished_and_one_is_kept(limit_s, kept):
    found, _ = turns(5, seconds=1.0, limit_s=limit_s)
    assert sum(counts for _, counts, _ in found) == 3 * kept
    assert [in_time for _, _, in_time in found] == [k < limit_s for k in range(len(found))]
