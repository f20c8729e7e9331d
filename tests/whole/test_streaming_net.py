"""A streaming int8 net with states, frame by frame, against LiteRT: bits, and time."""

import statistics
import time

import numpy as np
import pytest
from litert import interpreter
from streaming_net import FRAME, StreamingNet
from sweep import sweep

from trireme import ExecutionOptions, Session

SEED = 20261129
FRAMES = np.random.default_rng(SEED).integers(-128, 128, (50, *FRAME)).astype(np.int8)
MOST_OVER_NATIVE_US = 1.0
"""The bar of a bound run: microseconds beyond the call of the cpu."""


@pytest.fixture(scope="module")
def data():
    return StreamingNet(SEED).data()


@pytest.fixture(scope="module")
def wanted(data):
    """LiteRT's output of each frame, by its reference kernels."""
    made, outputs = interpreter(data), []
    for frame in FRAMES:
        made.set_tensor(made.get_input_details()[0]["index"], frame)
        made.invoke()
        outputs.append(made.get_tensor(made.get_output_details()[0]["index"]))
    assert len({array.tobytes() for array in outputs}) > 10
    return outputs


def ends(session):
    return session.inputs[0].name, session.outputs[0].name


@pytest.mark.parametrize("threads", [1, 2])
def test_fifty_frames_have_the_bits_of_litert(data, wanted, threads):
    """Plain runs, bound runs and a stream, each of a session with states of its own."""
    plain, bound, streamed = (Session(data, devices=["cpu"], threads=threads) for _ in range(3))
    with plain, bound, streamed:
        x, y = ends(plain)
        frame, score = np.empty(FRAME, np.int8), np.zeros((1, 1), np.uint8)
        call = bound.bind({x: frame}, {y: score})
        assert call.copies == ()
        with streamed.stream([{x: one} for one in FRAMES]) as stream:
            for one, want, item in zip(FRAMES, wanted, stream, strict=True):
                frame[...] = one
                call.run()
                assert score.tobytes() == want.tobytes()
                assert plain.run({x: one})[y].tobytes() == want.tobytes()
                assert item[y].tobytes() == want.tobytes()


WAYS = {
    "serial": dict(mode="serial"),
    "parallel": dict(mode="parallel"),
    "interactive": dict(execution_options=ExecutionOptions(execution="interactive")),
    "dynamic": dict(execution_options=ExecutionOptions(schedule="dynamic")),
    "an instance": dict(devices=["cpu#1"]),
    "npu": dict(devices=["npu", "cpu"]),
}


@pytest.mark.parametrize("way", sweep(WAYS, always=["interactive", "an instance"]))
def test_every_way_to_run_has_the_bits_of_litert(data, wanted, way):
    """Bound runs and plain runs take turns, in place or not."""
    with Session(data, **{"devices": ["cpu"], **WAYS[way]}) as session:
        x, y = ends(session)
        frame = np.empty(FRAME, np.int8)
        bound = session.bind({x: frame})
        for k, (one, want) in enumerate(zip(FRAMES[:20], wanted[:20], strict=True)):
            frame[...] = one
            made = bound.run() if k % 3 else session.run({x: one})
            assert made[y].tobytes() == want.tobytes()


def test_states_go_back_to_a_frame(data, wanted):
    with Session(data, devices=["cpu"]) as session:
        x, y = ends(session)
        for one in FRAMES[:20]:
            session.run({x: one})
        saved = session.get_state()
        session.reset()
        assert session.run({x: FRAMES[0]})[y].tobytes() == wanted[0].tobytes()
        session.set_state(saved)
        for one, want in zip(FRAMES[20:], wanted[20:], strict=True):
            assert session.run({x: one})[y].tobytes() == want.tobytes()


def medians_us(calls, rounds=200, times=50):
    """Return the median microseconds of calls by name, taken in turns, and all their rounds."""
    took = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(times):
                call()
            took[name].append((time.perf_counter() - start) / times * 1e6)
    return {name: statistics.median(one) for name, one in took.items()}, took


@pytest.mark.timed
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_is_as_fast_as_litert(data, threads):
    made = interpreter(data, reference=False)
    fed, asked = (d[0]["index"] for d in (made.get_input_details(), made.get_output_details()))
    frame = FRAMES[0].copy()

    def litert():
        made.set_tensor(fed, frame)
        made.invoke()
        return made.get_tensor(asked)

    with Session(data, devices=["cpu"], threads=threads) as session:
        feeds = {session.inputs[0].name: frame}
        bound, (native,) = session.bind(feeds), session.ready.latest().calls
        calls = {
            "LiteRT": litert,
            "run": lambda: session.run(feeds),
            "bound": bound.run,
            "native": native.run,
        }
        for call in calls.values():
            for _ in range(500):
                call()
        medians, took = medians_us(calls)
    times = {
        name: statistics.median(a / b for a, b in zip(took["LiteRT"], took[name], strict=True))
        for name in ("run", "bound")
    }
    pairs = zip(took["bound"], took["native"], strict=True)
    over = statistics.median(a - b for a, b in pairs)
    print(f"\n{threads} threads, us: {medians}; x LiteRT: {times}; over native: {over:.2f} us")
    assert times["run"] >= 1.0
    assert over <= MOST_OVER_NATIVE_US
