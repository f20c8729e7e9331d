"""Streams over inputs of differing shapes: in order, with states, errors by item."""

import numpy as np
import pytest

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SEED = 20261124


def net():
    b = GraphBuilder("net")
    x = b.input("x", TensorType(("n", "m"), "float32"))
    return b.finish(b.add("softmax", b.add("tanh", x), axis=-1, names=["y"]))


def items(count):
    rng = np.random.default_rng(SEED)
    for _ in range(count):
        shape = tuple(int(n) for n in rng.integers(1, 9, 2))
        yield {"x": rng.standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("buckets", [None, {"m": [4, 8]}])
def test_outputs_come_in_order_with_the_bits_of_runs(buckets):
    with Session(net(), buckets=buckets) as session:
        wanted = [session.run(feeds)["y"] for feeds in items(20)]
        with session.stream(items(20)) as stream:
            got = [outputs["y"] for outputs in stream]
        assert len(got) == 20
        assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_states_go_on_from_item_to_item():
    b = GraphBuilder("count")
    x = b.input("x", TensorType(("n",), "float32"))
    old = b.add("variable", b.constant("zero", np.zeros((), np.float32)), state="total")
    new = b.add("add", old, b.add("reduce_sum", x, keepdims=0), names=["y"])
    b.add("assign", new, state="total")
    with Session(b.finish(new)) as session:
        feeds = ({"x": np.ones(n, np.float32)} for n in (3, 1, 4))
        assert [float(o["y"]) for o in session.stream(feeds)] == [3, 4, 8]


def test_an_item_that_does_not_fit_is_named_and_the_others_go_on():
    def feeds():
        yield from items(1)
        yield {"x": np.zeros(3, np.float32)}
        yield from items(1)
        raise KeyError("no more")

    with Session(net()) as session:
        stream = session.stream(feeds())
        next(stream)
        with pytest.raises(RunError, match="item 1 of the stream: input 'x' is float32"):
            next(stream)
        next(stream)
        with pytest.raises(KeyError):
            next(stream)
        assert next(stream, None) is None


def test_one_stream_at_a_time():
    with Session(net()) as session:
        stream = session.stream(items(3))
        with pytest.raises(RunError, match="a stream of this session is under way"):
            session.stream(items(1))
        stream.close()
        assert next(stream, None) is None
        left = session.stream(items(3))
        next(left)
    assert left.closed
    with pytest.raises(RunError, match="closed"):
        session.stream(items(1))
