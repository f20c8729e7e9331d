"""Caches of several heads in loops, against ONNX Runtime and against turns by the host."""

import numpy as np
import pytest
from decode_loops import KINDS, Sizes, decode_feeds, decode_loop
from programs import peer

from trireme.runtime.control.bodies import Bodies
from trireme.runtime.control.growing_loop import GrowingLoop
from trireme.runtime.control.state_rooms import LEAST_ROWS
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session

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
