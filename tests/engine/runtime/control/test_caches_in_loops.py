"""Caches of several heads in loops, against ONNX Runtime and against turns by the host."""

import numpy as np
import pytest
from decode_loops import KINDS, Sizes, decode_feeds, decode_loop
from onnx import parser
from programs import HEAD, peer

from trireme.runtime.control.bodies import Bodies
from trireme.runtime.control.growing_loop import GrowingLoop
from trireme.runtime.control.state_rooms import LEAST_ROWS
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SIZES = Sizes(room=256)


@pytest.fixture
def growing(monkeypatch):
    """The loops of growing states that are made."""
    made = []
    plain = GrowingLoop.__init__

    def noted(self, *given):
        plain(self, *given)
        made.append(self)

    monkeypatch.setattr(GrowingLoop, "__init__", noted)
    return made


def check(found, wanted, rtol=1e-4):
    np.testing.assert_array_equal(found["ids"], wanted["ids"])
    for name, right in wanted.items():
        np.testing.assert_allclose(found[name], right, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decode_loop_equals_onnx_runtime(kind):
    data = decode_loop(SIZES, kind)
    with Session(data) as session:
        for steps in (150, 3, 200):
            feeds = decode_feeds(SIZES, kind, steps)
            check(session.run(feeds), peer(data, feeds))


def test_caches_stay_where_they_are_and_have_the_bits_of_turns_by_the_host(growing, monkeypatch):
    data = decode_loop(SIZES, "concat")
    asked = [decode_feeds(SIZES, "concat", 130, past) for past in (1, LEAST_ROWS - 1, 200)]
    asked.append(decode_feeds(SIZES, "concat", 1 << 40, 2, stop=190))
    with Session(data) as session:
        found = [session.run(feeds) for feeds in asked]
    assert [len(loop.state_rooms) for loop in growing] == [2 * SIZES.layers]
    with monkeypatch.context() as patch, Session(data) as session:
        patch.setattr(Bodies, "growing", lambda *_: None)
        patch.setattr(Bodies, "_little", lambda *_: None)
        for mine, feeds in zip(found, asked, strict=True):
            for name, array in session.run(feeds).items():
                np.testing.assert_array_equal(mine[name], array, err_msg=name)
            check(mine, peer(data, feeds))


def test_a_few_turns_of_many_nodes_run_in_native_code(growing):
    data = decode_loop(SIZES, "concat")
    with Session(data) as session:
        feeds = decode_feeds(SIZES, "concat", 8)
        check(session.run(feeds), peer(data, feeds))
    assert len(growing) == 1


def test_memory_of_caches_grows_where_only_data_ends_a_loop(growing):
    data = decode_loop(SIZES, "concat")
    with Session(data) as session:
        for stop, past in ((200, 0), (3, 0), (230, 5), (100, 90)):
            feeds = decode_feeds(SIZES, "concat", 1 << 40, past, stop)
            check(session.run(feeds), peer(data, feeds))
    assert len(growing) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_dataflow_form_decodes_the_same(kind):
    data, feeds = decode_loop(SIZES, kind), decode_feeds(SIZES, kind, 12)
    with Session(data, execution_options=ExecutionOptions(schedule="dynamic")) as session:
        check(session.run(feeds), peer(data, feeds))


WRITES = """
writes (int64 n, float[8,4] x, float[1,4] w) => (float[8,4] y, float[4] z)
{{
    two = Constant <value = int64[2] {{1, 1}}> ()
    size = Constant <value = int64 {{8}}> ()
    zero = Constant <value = int64[1] {{0}}> ()
    y, z = Loop (n, , x, w0) <body = turn
        (int64 i, bool going, float[8,4] s, float[4] r) => (bool more, float[8,4] t, float[4] q)
        {{
            more = Identity(going)  m = Mod(i, size)  at = Reshape(m, two)
            part = Unsqueeze(r, zero)  row = Add(part, w)
            t = ScatterND <reduction = "{how}"> (s, at, row)
            q = ReduceMean <keepdims = 0> ({read}, zero)
        }}
    >
}}
"""


def writing(read, how="none"):
    text = WRITES.format(read=read, how=how).replace(
        "    y, z = Loop", "    w0 = Squeeze(w, zero)\n    y, z = Loop"
    )
    return parser.parse_model(HEAD + text).SerializeToString()


def states_of(session):
    """Whether each carried value of a session's loop stays where it is."""
    (driver,) = [
        one
        for call in session.ready.latest().calls
        for one in getattr(call, "drivers", {}).values()
    ]
    return [np.shares_memory(state.first, state.second) for state in driver.bound.states]


@pytest.mark.parametrize(
    ("read", "how", "stays"),
    [("t", "none", True), ("t", "add", True), ("s", "none", False), ("row", "max", True)],
)
def test_a_value_that_a_scatter_alone_reads_stays_where_it_is(read, how, stays, monkeypatch):
    data = writing(read, how)
    rng = np.random.default_rng(3)
    feeds = {
        name: rng.uniform(-1, 1, shape).astype(np.float32)
        for name, shape in (("x", (8, 4)), ("w", (1, 4)))
    }
    asked = [feeds | {"n": np.array(n)} for n in (21, 0, 1, 8)]
    with Session(data) as session:
        assert states_of(session) == [stays, False]
        found = [session.run(one) for one in asked]
    monkeypatch.setattr("trireme.runtime.control.repeat.states_in_place", lambda *_: set())
    with Session(data) as session:
        assert states_of(session) == [False, False]
        for mine, one in zip(found, asked, strict=True):
            for name, array in session.run(one).items():
                np.testing.assert_array_equal(mine[name], array)
            for name, right in peer(data, one).items():
                np.testing.assert_allclose(mine[name], right, rtol=1e-5, atol=1e-6)


def test_an_index_outside_a_value_that_stays_is_an_error_and_the_next_run_is_right():
    data = writing("t")
    feeds = {"x": np.ones((8, 4), np.float32), "w": np.ones((1, 4), np.float32)}
    with Session(data.replace(b"Mod", b"Mul")) as session:
        assert states_of(session) == [True, False]
        with pytest.raises(RunError, match="index|outside"):
            session.run(feeds | {"n": np.array(5)})
        one = feeds | {"n": np.array(1)}
        np.testing.assert_array_equal(session.run(one)["y"], peer(data, one)["y"])
