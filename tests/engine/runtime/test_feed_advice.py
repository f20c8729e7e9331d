"""The fix of a feed that does not fit: run as Python, it makes an array that fits."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

IMAGE = (1, 3, 8, 6)
CASES = {
    "channels last": (IMAGE, (1, 8, 6, 3), "x.transpose(0, 3, 1, 2)"),
    "channels last, square": ((1, 3, 8, 8), (1, 8, 8, 3), "x.transpose(0, 3, 1, 2)"),
    "channels first": ((1, 8, 6, 3), IMAGE, "x.transpose(0, 2, 3, 1)"),
    "no batch": (IMAGE, (3, 8, 6), "x[None]"),
    "a batch too many": ((8, 6), (1, 8, 6), "x[0]"),
    "flat": ((3, 4), (12,), "x.reshape(3, 4)"),
    "turned": ((3, 4), (4, 3), "x.transpose(1, 0)"),
    "open batch": (("n", 3, "h", "w"), (2, 8, 6, 3), "x.transpose(0, 3, 1, 2)"),
    "open, no batch": (("n", 3, "h", "w"), (3, 8, 6), "x[None]"),
    "dtype": ((3, 4), (3, 4), "x.astype('float32')"),
}


def taker(shape):
    b = GraphBuilder("taker")
    return b.finish(b.add("relu", b.input("x", TensorType(shape, "float32"))))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_the_fix_makes_an_array_that_fits(name, dtype):
    shape, fed, wanted = CASES[name]
    x = np.ones(fed, dtype if name != "dtype" else "float64")
    with Session(taker(shape)) as session:
        with pytest.raises(RunError) as caught:
            session.run({"x": x})
        assert caught.value.fix.startswith(wanted)
        session.run({"x": eval(caught.value.fix, {"x": x})})  # noqa: S307  that is the promise


def test_fixes_without_an_array():
    x = np.ones((4, 8), np.float32)
    with Session(taker((1, 8))) as session:
        with pytest.raises(RunError) as caught:
            session.run({"x": x})
        assert caught.value.fix == "open the session with batch=4, or run one of the 4 at a time"
        cases = [({}, "feed x too"), ({"a": x}, "feed 'a' as 'x'")]
        for feeds, fix in [*cases, ({"x": x, "a": x, "b": x}, "leave out a, b")]:
            with pytest.raises(RunError) as caught:
                session.run(feeds)
            assert caught.value.fix == fix
    with Session(taker((1, 8)), batch=4) as session:
        session.run({"x": x})
    with Session(taker((1, 8))) as session, pytest.raises(RunError) as caught:
        session.run({"x": np.ones((1, 9), np.float32)})
    assert not caught.value.fix
