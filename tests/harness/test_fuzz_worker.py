"""What a campaign does when the peer's process ends: one seed is lost, and is counted."""

import ctypes
import os
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="random graphs are compared with ONNX Runtime")

from lab.fuzz.campaign import ONNX, campaign  # noqa: E402
from lab.fuzz.peer import Refused  # noqa: E402
from lab.fuzz.worker import Crashed, Worker  # noqa: E402


@pytest.fixture(scope="module")
def worker():
    with Worker() as made:
        yield made


def refuse(text):
    raise Refused(text)


def crash_at(seed, kinds):
    """As grown_and_answered, but for the crash at one seed and a refusal at another."""
    if seed == 1:
        ctypes.string_at(0)
    if seed == 2:
        refuse("no kernel")
    return None, {}


def test_a_function_returns_from_the_child_what_it_returns(worker):
    np.testing.assert_array_equal(worker(np.arange, 3), [0, 1, 2])
    assert worker(os.getpid) == worker(os.getpid) != os.getpid()


def test_what_a_function_raises_and_prints_in_the_child_disturbs_nothing(worker):
    with pytest.raises(Refused, match="no kernel"):
        worker(refuse, "no kernel")
    worker(print, "a peer that prints")
    assert worker(abs, -1) == 1


@pytest.mark.parametrize(
    "function, argument, stall_s",
    [(ctypes.string_at, 0, 60), (os._exit, 3, 60), (time.sleep, 60, 0.2)],
    ids=["segfault", "exit", "stall"],
)
def test_a_child_that_ends_is_started_again(worker, function, argument, stall_s):
    with pytest.raises(Crashed, match="ended with"):
        worker(function, argument, stall_s=stall_s)
    assert worker(abs, -1) == 1


def test_a_campaign_goes_on_behind_a_crash_of_the_peer(worker):
    family = replace(ONNX, grown_and_answered=crash_at)
    report = campaign(range(4), lambda grown, wanted: ("", []), worker, family=family)
    assert report.counts == {"equal": 2, "peer crashed": 1, "refused by the peer": 1}
    assert not report.failed
