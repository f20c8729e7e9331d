"""Loops without end on every route: a timeout, a deadline and an interrupt stop each of them."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
from alarm import Stop, alarms, needs_timers
from ends import python_of_ends
from onnx import parser
from programs import HEAD, NESTED, UNTIL, f32

from trireme import eager
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import DeadlineError, RunError

SOON_S = 0.2
LONG_S = 20
"""More than an interrupted run may take on a crowded machine."""


def grows(step, more="more = Less(f, stop)"):
    text = f"""
    grows (float stop, float[k,4] x, float[1,4] w) => (float[m,4] y, float[turns] all)
    {{
        y, all = Loop (, , x) <body = turn
            (int64 i, bool going, float[a,4] s) => (bool more, float[b,4] t, float row)
            {{ f = Cast <to = 1> (i)  {more}  {step} }}
        >
    }}
    """
    return parser.parse_model(HEAD + text).SerializeToString()


OPEN = """
until (float limit, float[k] x) => (float[k] y)
{
    y = Loop (, , x) <body = turn
        (int64 i, bool going, float[k] s) => (bool more, float[k] t)
        { t = Add(s, s)  m = ReduceMax <keepdims = 0> (t)  more = Less(m, limit) }
    >
}
"""
UNLIKE = """
m = ReduceMax <keepdims = 0> (s)  row = Identity(m)
six = Constant <value = int64[1] {6}> ()  zero = Constant <value = int64[1] {0}> ()
one = Constant <value = int64[1] {1}> ()  j = Reshape(i, one)  size = Mod(j, six)
more = Less(f, stop)  part = Slice(s, zero, size, zero)  t = Concat <axis = 0> (w, part)
"""


@dataclass
class Route:
    """An endless loop on one route.

    model, feeds: what runs for ever; ends: feeds that end soon; options: of the session
    """

    model: bytes
    feeds: dict
    ends: dict
    options: dict


STILL = {"limit": np.array(np.inf, np.float32), "start": np.array(True), "x": f32(0, 0, 0)}
ROWS = {"stop": np.array(1e30, np.float32), "x": np.ones((2, 4), "f4"), "w": np.ones((1, 4), "f4")}
FEW = ROWS | {"stop": np.array(3, np.float32)}
OPEN_FEEDS = {"limit": np.array(np.inf, np.float32), "x": f32(0, 0, 0)}
ONE_TURN = {"limit": np.array(-1, np.float32)}
NESTS = {"n": np.array(1 << 40), "m": np.array(3), "x": f32(1, 2, 3)}
LEAST = "row = ReduceMin <keepdims = 0> (s)  t = Concat <axis = 0> (s, w)"
ROUTES = {
    "native": Route(UNTIL.model(), STILL, STILL | ONE_TURN, {}),
    "driven": Route(NESTED.model(), NESTS, NESTS | {"n": np.array(1)}, {}),
    "driven, inner": Route(
        NESTED.model(),
        NESTS | {"n": np.array(1), "m": np.array(1 << 40)},
        NESTS | {"n": np.array(1)},
        {},
    ),
    "open": Route(
        parser.parse_model(HEAD + OPEN).SerializeToString(), OPEN_FEEDS, OPEN_FEEDS | ONE_TURN, {}
    ),
    "growing": Route(grows(LEAST), ROWS, FEW, {}),
    "on the host": Route(grows(UNLIKE, ""), ROWS, FEW, {}),
    "dataflow": Route(UNTIL.model(), STILL, STILL | ONE_TURN, {"schedule": "dynamic"}),
    "dataflow, nested": Route(
        NESTED.model(), NESTS, NESTS | {"n": np.array(1)}, {"schedule": "dynamic"}
    ),
}
on_routes = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)


def open_on(route, **options):
    return Session(route.model, execution_options=ExecutionOptions(**route.options, **options))


def ends_in_time(run, error):
    """Whether a run raises an error soon."""
    start = time.monotonic()
    with pytest.raises(error) as raised:
        run()
    assert time.monotonic() - start < LONG_S
    return str(raised.value)


def run_on(session, feeds):
    """Run feeds that end, again where a crowded machine takes longer than the session allows."""
    start = time.monotonic()
    while True:
        try:
            return session.run(feeds)
        except RunError as error:
            if "did not end within" not in str(error) or time.monotonic() - start > LONG_S:
                raise


@on_routes
def test_a_timeout_ends_a_loop_and_the_session_runs_on(route):
    with open_on(route, timeout_s=SOON_S) as session:
        told = ends_in_time(lambda: session.run(route.feeds), RunError)
        assert f"did not end within {SOON_S:g} s" in told
        assert "onnx:Loop_0" in told
        run_on(session, route.ends)


@on_routes
def test_a_deadline_of_a_run_ends_a_loop_and_the_session_runs_on(route):
    with open_on(route) as session:
        want = session.run(route.ends)
        ends_in_time(lambda: session.run(route.feeds, timeout_s=SOON_S), DeadlineError)
        for name, array in session.run(route.ends).items():
            np.testing.assert_array_equal(array, want[name])


@on_routes
def test_nothing_that_ends_runs_python_code(route):
    """An interrupt that came while a callback of a weak reference ran, or a __del__, is lost."""
    with open_on(route) as session:
        session.run(route.ends)
        with python_of_ends() as called:
            session.run(route.ends)
            ends_in_time(lambda: session.run(route.feeds, timeout_s=SOON_S), DeadlineError)
    assert not called


@needs_timers
@on_routes
def test_an_interrupt_ends_a_loop_and_the_session_runs_on(route):
    with alarms(Stop) as set_alarm, open_on(route) as session:
        want = session.run(route.ends)

        def run():
            set_alarm(SOON_S)
            session.run(route.feeds)

        ends_in_time(run, Stop)
        for name, array in session.run(route.ends).items():
            np.testing.assert_array_equal(array, want[name])


@needs_timers
def test_an_interrupt_ends_a_loop_of_the_host_language():
    with alarms(Stop) as set_alarm:

        def run():
            set_alarm(SOON_S)
            x = eager.tensor(np.zeros(3, np.float32))
            while (x < 1).all():
                x = x + x

        ends_in_time(run, Stop)
