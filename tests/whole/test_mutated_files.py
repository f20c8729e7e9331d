"""A damaged file is converted, loaded and run in bounded time and memory, to the peer's answer.

Each ends in a TriremeError or in an answer; where the peer takes the file too, in the peer's.
"""

import sys
from collections import Counter

import pytest

pytest.importorskip("resource")
from lab.fuzz import damaged_runs  # noqa: E402
from lab.stress import (
    bounded,  # noqa: E402
    mutations,  # noqa: E402
    seeds,  # noqa: E402
)

SEED = 20261122
COUNTS = {"onnx": 80, "tflite": 40, "trm": 40}
PEERS = {"onnx": "onnxruntime", "tflite": "ai_edge_litert", "trm": "numpy"}


def ends_of(format, seed, count, folder):
    """What each damaged file ended in here, and what comparing with the peer ended in."""
    print("seed", seed)
    sound = mutations.packed(seeds.SEEDS[format]() + seeds.MORE_SEEDS[format]())
    command = [format, str(seed), str(count), str(folder)]
    stall_s = bounded.STALL_S + count
    return tuple(
        bounded.outcomes(["-m", damaged_runs.__name__, side, *command], sound, stall_s)
        for side in ("trireme", "peer")
    )


def bad_of(ends):
    return {number: f"{end.kind} {end.text}" for number, end in ends.items() if end.is_bad}


def check(format, seed, count, folder):
    pytest.importorskip(PEERS[format])
    here, there = ends_of(format, seed, count, folder)
    print(format, Counter(end.kind for end in here.values()))
    print(format, Counter(end.kind for end in there.values()))
    assert len(here) == len(there) == count
    assert not bad_of(here)
    wrong = {number: end.text for number, end in there.items() if end.kind == "wrong"}
    assert not wrong
    return here, there


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and CPU time of Linux")
@pytest.mark.parametrize("format", COUNTS)
def test_some(format, tmp_path):
    here, there = check(format, SEED, COUNTS[format], tmp_path)
    assert (
        sum(end.kind == "ran" for end in here.values()) >= COUNTS[format] // 20
    )  # most bytes of a small file are structure
    assert any(end.kind == "equal" for end in there.values())


@pytest.mark.slow
@pytest.mark.parametrize("format", COUNTS)
def test_thousands(format, tmp_path):
    check(format, SEED + 1, 2000, tmp_path)
