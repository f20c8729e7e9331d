"""Loops that read and write at fed indices, right or wrong: as ONNX Runtime, and by the host."""

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from programs import HEAD
from random_index_loops import TURNS, random_index_loop
from sweep import sweep

from trireme.devices.cpu.runtime.repeat import NativeRepeat
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

BY_HOST = "trireme.runtime.control.repeat.native_turns"


@pytest.fixture
def repeats(monkeypatch):
    """How often turns ran inside native code."""
    plain, runs = NativeRepeat.run, []

    def noted(self, *given):
        runs.append(self)
        return plain(self, *given)

    monkeypatch.setattr(NativeRepeat, "run", noted)
    return runs


def answer(run, feeds):
    """The bytes and shapes of the outputs, or the sentences of the error."""
    try:
        return [(array.shape, array.tobytes()) for array in run(feeds).values()]
    except RunError as error:
        return str(error)


def peer_of(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(feeds):
        try:
            made = session.run(None, feeds)
        except Exception:  # its errors have no common type
            return None
        return [(array.shape, array.tobytes()) for array in made]

    return run


@pytest.mark.parametrize("seed", sweep(range(160), always=range(0, 160, 8)))
def test_random_loops_equal_onnx_runtime_and_turns_by_the_host(seed, repeats, monkeypatch):
    print("seed", seed)
    one, rng = random_index_loop(seed), np.random.default_rng(seed)
    model, threads = one.model(), 1 + seed // 8 % 2
    peer = peer_of(model)
    with monkeypatch.context() as patch:
        patch.setattr(BY_HOST, lambda *_: None)
        driven = Session(model, threads=threads)
        driven.run(one.feeds(rng, 1))  # a session of any shape compiles its loop now
        assert not repeats
    with Session(model, threads=threads) as native, driven:
        for turns in (3, 0, TURNS):
            right = one.feeds(rng, turns)
            wrong = {name: array.copy() for name, array in right.items()}
            one.wrong(rng, wrong)
            for feeds in (right, wrong, right):
                want, found = peer(feeds), answer(native.run, feeds)
                with monkeypatch.context() as patch:
                    patch.setattr(BY_HOST, lambda *_: None)
                    assert found == answer(driven.run, feeds)
                if want is None:
                    assert "is outside the" in found, found
                else:
                    assert found == want
    assert repeats or "If" in one.text


BODIES = {
    "scatter_nd": "t = ScatterND (s, at, w)",
    "scatter_nd, added": 't = ScatterND <reduction = "add"> (s, at, w)',
    "scatter_elements": "t = ScatterElements <axis = 0> (s, wide, w)",
    "gather": "p = Gather <axis = 0> (s, flat)  t = Add(s, p)",
    "gather_elements": "p = GatherElements <axis = 0> (s, wide)  t = Add(s, p)",
    "gather_nd": "p = GatherND (s, at)  t = Add(s, p)",
}
INDEXED = """
indexed (int64 n, float[5,4] x, float[1,4] w, int64[1,1] at, int64[1] flat, int64[1,4] wide)
    => (float[5,4] y)
{{
    y = Loop (n, , x) <body = turn
        (int64 i, bool going, float[5,4] s) => (bool more, float[5,4] t)
        {{ more = Identity(going)  {step} }}
    >
}}
"""


def at(index):
    return {
        "at": np.full((1, 1), index),
        "flat": np.full(1, index),
        "wide": np.full((1, 4), index),
    }


@pytest.mark.parametrize("name", BODIES)
def test_a_body_with_fed_indices_runs_inside_native_code(name, repeats):
    model = parser.parse_model(HEAD + INDEXED.format(step=BODIES[name])).SerializeToString()
    rng = np.random.default_rng(3)
    rest = {"x": rng.integers(0, 9, (5, 4)).astype("f4"), "w": np.ones((1, 4), "f4")}
    peer = peer_of(model)
    with Session(model) as session:
        for turns in (4, 1, 1000):
            for index in (2, -5, 5, 0, -6, 4):
                feeds = {"n": np.array(turns), **rest, **at(index)}
                want, found = peer(feeds), answer(session.run, feeds)
                assert (want is None) == (not -5 <= index < 5)
                if want is None:
                    assert f"index {index} is outside the 5 elements of the axis" in found
                    assert f"onnx:{BODIES[name].split(' = ')[1].split()[0]}" in found
                else:
                    assert found == want
    assert len(repeats) == 18


GROWING = """
growing (int64 n, float[k,4] x, float[j,4] w, int64[T,2] at) => (float[m,4] y, float[q,2,4] all)
{
    y, all = Loop (n, , x) <body = turn
        (int64 i, bool going, float[a,4] s) => (bool more, float[b,4] t, float[2,4] row)
        {
            more = Identity(going)  mine = Gather(at, i)
            t = Concat <axis = 0> (s, w)  row = Gather <axis = 0> (t, mine)
        }
    >
}
"""


def test_the_first_wrong_index_of_a_loop_that_grows_is_the_one_told(repeats):
    """Turns 70 and 71 run on other calls, and turn 90 on that of turn 70."""
    model = parser.parse_model(HEAD + GROWING).SerializeToString()
    rest = {"n": np.array(150), "x": np.ones((2, 4), "f4"), "w": np.ones((1, 4), "f4")}
    right = np.zeros((150, 2), np.int64)
    with Session(model) as session:
        for wrong in ({70: 300, 71: 400, 90: 500}, {71: -301, 72: 8000}, {149: 153}):
            feeds = {**rest, "at": right.copy()}
            for turn, index in wrong.items():
                feeds["at"][turn, 1] = index
            for _ in range(2):
                with pytest.raises(RunError, match=f"index {next(iter(wrong.values()))} "):
                    session.run(feeds)
                found = session.run({**rest, "at": right})
                assert found["all"].shape == (150, 2, 4) and (found["all"] == 1).all()
    assert repeats
