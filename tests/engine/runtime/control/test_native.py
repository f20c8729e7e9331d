"""Loops inside native code: where, the same bits as turns of the host, errors and interrupts."""

import ctypes
import signal
import statistics
import sys
import threading
import time

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from programs import COUNTED, HEAD, KEPT, NESTED, PROGRAMS, UNTIL, f32

from trireme.backend.capabilities import RepeatableCall
from trireme.devices.cpu.runtime.repeat import NativeRepeat
from trireme.runtime.control.repeat import DRIVEN, NATIVE
from trireme.runtime.session.session import Session


def drivers(session):
    """The drivers of a session's control nodes."""
    return [
        one
        for call in session.ready.latest().calls
        for one in getattr(call, "drivers", {}).values()
    ]


def kernels(program):
    with Session(program.model()) as session:
        return [driver.kernel for driver in drivers(session)]


def test_a_body_of_one_region_runs_inside_native_code():
    assert kernels(COUNTED) == kernels(UNTIL) == kernels(KEPT) == [NATIVE]
    assert kernels(NESTED) == [DRIVEN]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.name)
def test_native_turns_give_the_bits_of_driven_ones(program, monkeypatch):
    model = program.model()
    with Session(model) as session:
        native = [session.run(feeds) for feeds in program.feeds]
    monkeypatch.setattr("trireme.runtime.control.repeat.native_turns", lambda *_: None)
    with Session(model) as session:
        for feeds, want in zip(program.feeds, native, strict=True):
            for name, array in session.run(feeds).items():
                assert array.tobytes() == want[name].tobytes()


ROWS = """
rows (float[{n}] h, float[{t},{n}] xs) => (float[{n}] last, float[{t},{n}] all, float[{n},{t}] side)
{{
    last, all, side = Scan (h, xs) <
        num_scan_inputs = 1, scan_input_directions = [{back}], scan_output_axes = [0, 1],
        scan_output_directions = [{back}, 0],
        body = step (float[{n}] s, float[{n}] x) => (float[{n}] t, float[{n}] a, float[{n}] b)
        {{
            t = Add(s, x)
            a = Mul(t, x)
            b = Sub(t, x)
        }}
    >
}}
"""


@pytest.mark.parametrize("back", [0, 1])
@pytest.mark.parametrize("n", [1, 3, 64, 100, 9000])
def test_slices_and_rows_of_any_size_go_where_they_belong(n, back):
    model = parser.parse_model(HEAD + ROWS.format(n=n, t=1100, back=back)).SerializeToString()
    rng = np.random.default_rng(n)
    feeds = {
        "h": rng.standard_normal(n).astype(np.float32),
        "xs": rng.standard_normal((1100, n)).astype(np.float32),
    }
    peer = onnxruntime.InferenceSession(model)
    with Session(model) as session:
        (driver,) = drivers(session)
        assert driver.kernel == NATIVE
        found = session.run(feeds)
        for out, right in zip(peer.get_outputs(), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(found[out.name], right, rtol=1e-4, atol=1e-4)


def is_in_loop(frame):
    """Whether native turns are under way in this frame or around it."""
    while frame is not None and frame.f_code is not NativeRepeat.run.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.fixture
def ctrl_c_in_loop():
    """Ctrl-C comes once native turns are under way, again and again until one ends them.

    One that comes at any other time raises nothing: KeyboardInterrupt outside of the test's block
    ends a worker of xdist. A timer is not enough. On a busy machine the main thread may wait for
    longer than any timer before it gets into the block.
    """
    main, done = threading.main_thread().ident, threading.Event()

    def interrupt(number, frame):
        if is_in_loop(frame):
            signal.default_int_handler(number, frame)

    def press():
        while not done.wait(0.1):
            if is_in_loop(sys._current_frames().get(main)):
                signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=press)
    thread.start()
    yield
    done.set()
    thread.join()
    signal.signal(signal.SIGINT, before)


def test_a_native_loop_can_be_interrupted_and_run_again(ctrl_c_in_loop):
    feeds = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
    with Session(UNTIL.model()) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run(feeds)
        again = {"limit": np.array(100, np.float32), "start": np.array(True), "x": f32(1, 2, 3)}
        np.testing.assert_array_equal(session.run(again)["y"], f32(64, 128, 192))


def test_other_sessions_run_while_a_loop_runs(monkeypatch):
    feeds = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
    with Session(UNTIL.model()) as first:
        device = first.devices["cpu"]
        with Session(COUNTED.model(), devices=[device, first.devices["host"]]) as second:
            thread = threading.Thread(target=ended_by_interrupt, args=(first, feeds))
            thread.start()
            time.sleep(0.1)
            for one in COUNTED.feeds:
                second.run(one)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
            )
            thread.join(10)
            assert not thread.is_alive()


def ended_by_interrupt(session, feeds):
    with pytest.raises(KeyboardInterrupt):
        session.run(feeds)


TIMED = """
timed (int64 n, float[{shape}] x, float[{shape}] w) => (float[{shape}] y)
{{
    y = Loop (n, , x) <body = turn
        (int64 i, bool going, float[{shape}] s) => (bool more, float[{shape}] t)
        {{ more = Identity(going)  t = {op}(s, w) }}
    >
}}
"""


def turn_us(run, feeds):
    """Microseconds a turn: the slope from 10 to 1,000 turns, the least of five."""
    took = []
    for turns in (10, 1000):
        fed = feeds | {"n": np.array(turns)}
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run(fed)
            times.append(time.perf_counter() - start)
        took.append(min(times))
    return (took[1] - took[0]) / 990 * 1e6


@pytest.mark.timed
@pytest.mark.parametrize(
    ("op", "shape", "most_us", "least"), [("Add", "1,16", 0.5, 2.0), ("MatMul", "64,64", None, 1.0)]
)
def test_a_turn_is_faster_than_onnx_runtimes(op, shape, most_us, least):
    model = parser.parse_model(HEAD + TIMED.format(op=op, shape=shape)).SerializeToString()
    dims = [int(dim) for dim in shape.split(",")]
    rng = np.random.default_rng(3)
    feeds = {"x": rng.standard_normal(dims).astype(np.float32), "w": f32(1 / 64, shape=dims)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    peer = onnxruntime.InferenceSession(model, options)
    with Session(model, threads=1) as session:
        pairs = [
            (turn_us(lambda fed: peer.run(None, fed), feeds), turn_us(session.run, feeds))
            for _ in range(7)
        ]
    # the weights keep values at their size: denormal numbers would be slow
    assert statistics.median(theirs / ours for theirs, ours in pairs) >= least
    assert most_us is None or min(ours for _, ours in pairs) <= most_us


def test_the_capability_is_declared():
    with Session(COUNTED.model()) as session:
        (driver,) = drivers(session)
        assert all(isinstance(one.calls[0], RepeatableCall) for one in driver.contexts)
