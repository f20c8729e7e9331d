"""Loops whose carried values grow, in native code: against ONNX Runtime, and turn by turn."""

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from alarm import Stop, alarms, needs_timers
from growing_programs import GrowingProgram
from onnx import parser
from programs import HEAD, peer

from trireme.devices.cpu.compile.resizable import CpuResizable
from trireme.runtime.control.bodies import Bodies
from trireme.runtime.control.dynamic import ControlFlow
from trireme.runtime.control.growing_loop import FIRST_TURNS, GrowingLoop
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import CompileError, RunError


@pytest.fixture
def flows(monkeypatch):
    """The control flow of each session that is opened."""
    made = []
    plain = ControlFlow.__init__

    def noted(self, *given):
        plain(self, *given)
        made.append(self)

    monkeypatch.setattr(ControlFlow, "__init__", noted)
    return made


def native(flow):
    """The loops that ran inside native code."""
    return [use.body for use in flow.uses if isinstance(use.body, GrowingLoop)]


def by_host(data, feeds, monkeypatch):
    """What a loop makes whose turns the host runs, each on the program of all shapes."""
    with monkeypatch.context() as patch, Session(data) as session:
        patch.setattr(Bodies, "growing", lambda *_: None)
        patch.setattr(Bodies, "_little", lambda *_: None)
        return session.run(feeds)


@pytest.mark.parametrize("seed", range(16))
def test_random_loops_equal_onnx_runtime_and_turns_by_the_host(seed, flows, monkeypatch):
    print(f"seed {seed}")
    program = GrowingProgram(seed)
    with Session(program.data) as session:
        for turns in (FIRST_TURNS + 6, 1, 0, 2 * FIRST_TURNS + 22):
            feeds = program.feeds(turns)
            found, wanted = session.run(feeds), peer(program.data, feeds)
            for name, right in wanted.items():
                assert found[name].dtype == right.dtype
                np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-5)
    if native(flows[0]):
        for name, array in by_host(program.data, feeds, monkeypatch).items():
            np.testing.assert_array_equal(found[name], array)


def test_most_random_loops_run_in_native_code(flows):
    for seed in range(6):
        program = GrowingProgram(seed)
        with Session(program.data) as session:
            session.run(program.feeds(FIRST_TURNS + 1))
    assert sum(bool(native(flow)) for flow in flows) >= 5


def looped(step, more="more = Identity(going)", rows=", float row", outer=", float[turns] all"):
    """A loop that carries s and appends w."""
    text = f"""
    grows (int64 n, float stop, float[k,4] x, float[1,4] w) => (float[m,4] y{outer})
    {{
        y{", all" if outer else ""} = Loop (n, , x) <body = turn
            (int64 i, bool going, float[a,4] s) => (bool more, float[b,4] t{rows})
            {{ {more}  {step}  t = Concat <axis = 0> (s, w) }}
        >
    }}
    """
    return parser.parse_model(HEAD + text).SerializeToString()


def fed(turns, stop=0.0, rows=2):
    """Feeds for so many turns."""
    rng = np.random.default_rng(11)
    x, w = (rng.uniform(-1, 1, (n, 4)).astype(np.float32) for n in (rows, 1))
    return {"n": np.array(turns), "stop": np.array(stop, np.float32), "x": x, "w": w}


LEAST = "row = ReduceMin <keepdims = 0> (s)"


def test_a_loop_grows_far_beyond_its_first_tables(flows):
    data = looped(LEAST)
    with Session(data) as session:
        for turns in (3000, 100, 3001):
            feeds = fed(turns)
            found, wanted = session.run(feeds), peer(data, feeds)
            np.testing.assert_array_equal(found["y"], wanted["y"])
            np.testing.assert_array_equal(found["all"], wanted["all"])
    (loop,) = native(flows[0])


def test_a_loop_that_its_data_ends_grows_too(flows):
    data = looped(LEAST, "f = Cast <to = 1> (i)  more = Less(f, stop)")
    with Session(data) as session:
        for stop in (0, FIRST_TURNS - 2, FIRST_TURNS - 1, FIRST_TURNS, 700):
            feeds = fed(1 << 30, stop)
            found, wanted = session.run(feeds), peer(data, feeds)
            np.testing.assert_array_equal(found["y"], wanted["y"])
            np.testing.assert_array_equal(found["all"], wanted["all"])
    assert native(flows[0])


def test_a_first_value_without_elements_grows_in_native_code(flows):
    data = looped("row = ReduceSum <keepdims = 0> (s)")
    with Session(data) as session:
        feeds = fed(200, rows=0)
        found, wanted = session.run(feeds), peer(data, feeds)
    np.testing.assert_allclose(found["all"], wanted["all"], rtol=1e-4, atol=1e-5)
    assert native(flows[0])


def test_other_first_sizes_take_the_same_program(flows):
    data = looped(LEAST)
    with Session(data) as session:
        for rows in (2, 3, 17, 64, 5):
            feeds = fed(90, rows=rows)
            np.testing.assert_array_equal(session.run(feeds)["all"], peer(data, feeds)["all"])
    assert len(native(flows[0])) == 1


def test_wrong_data_in_a_turn_is_an_error(flows):
    step = "f = Gather <axis = 0> (s, i)  row = ReduceMin <keepdims = 0> (f)"
    data = looped(step + "  unused = Identity(f)")
    with Session(data) as session:
        feeds = fed(100)
        np.testing.assert_array_equal(session.run(feeds)["all"], peer(data, feeds)["all"])
        bad = looped(
            "two = Constant <value = int64 {2}> ()  j = Mul(i, two)" + step.replace("i)", "j)", 1)
        )
    with Session(bad) as session, pytest.raises(RunError, match="out of range|index"):
        session.run(fed(100))
    assert native(flows[-1])


def test_a_growing_loop_ends_in_time(flows):
    data = looped(LEAST, "f = Cast <to = 1> (i)  more = Less(f, stop)")
    with Session(data, execution_options=ExecutionOptions(timeout_s=0.2)) as session:
        start = time.monotonic()
        with pytest.raises(RunError, match="did not end within 0.2 s"):
            session.run(fed(1 << 30, stop=1e30))
        assert time.monotonic() - start < 30
        np.testing.assert_array_equal(session.run(fed(100, 50.0))["y"].shape, (53, 4))
    assert native(flows[0])


@needs_timers
def test_interrupts_at_any_moment_leave_right_results():
    print("seed 6")
    rng = random.Random(6)
    data = looped(LEAST, "f = Cast <to = 1> (i)  more = Less(f, stop)")
    asked = [fed(1 << 30, stop, rows) for stop, rows in ((70.0, 2), (300.0, 5), (1500.0, 2))]
    with alarms(Stop) as set_alarm, Session(data) as session:
        want = [session.run(feeds) for feeds in asked]
        for _ in range(40):
            with contextlib.suppress(Stop):
                set_alarm(rng.uniform(1e-5, 4e-3))
                while True:
                    session.run(fed(1 << 30, 5000.0, rng.randint(1, 9)))
            k = rng.randrange(3)
            got = session.run(asked[k])
            for name, array in want[k].items():
                np.testing.assert_array_equal(got[name], array)


def test_callers_at_once_get_their_own_results():
    data = looped(LEAST)
    asked = [fed(100 + 37 * k, rows=2 + k) for k in range(4)]
    with Session(data) as session, ThreadPoolExecutor(4) as callers:
        want = [session.run(feeds) for feeds in asked]
        jobs = [(k, callers.submit(session.run, asked[k])) for k in range(4) for _ in range(15)]
        for k, job in jobs:
            for name, array in job.result().items():
                np.testing.assert_array_equal(array, want[k][name])


def test_turns_that_no_table_serves_run_on_the_host(flows, monkeypatch):
    def refuse(*_):
        raise CompileError("no table today")

    monkeypatch.setattr(CpuResizable, "turn_tables", refuse)
    data = looped(LEAST)
    with Session(data) as session:
        feeds = fed(70)
        np.testing.assert_array_equal(session.run(feeds)["all"], peer(data, feeds)["all"])
    assert [use.why for use in flows[0].uses if use.body] == ["no table today"]


NESTED = """
grows (int64 n, float[k,4] x, float[1,4] w) => (float[m,4] y, float[turns] all)
{
    three = Constant <value = int64 {3}> ()
    y, all = Loop (n, , x) <body = turn
        (int64 i, bool going, float[a,4] s) => (bool more, float[b,4] t, float row)
        {
            more = Identity(going)  row = ReduceMin <keepdims = 0> (s)
            t = Loop (three, , s) <body = inner
                (int64 j, bool on, float[c,4] p) => (bool on2, float[d,4] q)
                { on2 = Identity(on)  g = Add(w, row)  q = Concat <axis = 0> (p, g) }
            >
        }
    >
}
"""


def test_loops_inside_loops_grow():
    data = parser.parse_model(HEAD + NESTED).SerializeToString()
    feeds = {name: array for name, array in fed(80).items() if name != "stop"}
    with Session(data) as session:
        found, wanted = session.run(feeds), peer(data, feeds)
    np.testing.assert_allclose(found["all"], wanted["all"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-4, atol=1e-5)
