"""One dispatcher: order, backpressure, errors and close are the same for every kind of context."""

import threading
import time
from functools import partial
from types import SimpleNamespace

import pytest

from trireme.runtime.streams.dispatcher import Dispatcher, StreamContext, StreamStep
from trireme.runtime.streams.stream import Stream, Streams
from trireme.support.errors import RunError

KINDS = ("steps", "whole", "launched")
PROGRAM = SimpleNamespace(devices={})


class Execution:
    """Adds ten to what is fed, in two parts; -1 does not fit and 13 fails in the second part."""

    program = PROGRAM

    def __init__(self, log):
        self.ports, self.log = self, log

    def bind(self, feeds, in_place):
        if feeds["x"] == -1:
            raise RunError("it does not fit")
        self.value = feeds["x"]

    def collect(self, given):
        return {"y": self.value}

    def part(self, number):
        self.log.append((self.value % 10, number, threading.current_thread().name))
        if self.value == 13 and number == 1:
            raise RunError("unlucky")
        self.value += 10 * number


def context_of(kind, execution, cheap=False, between=()):
    first, second = partial(execution.part, 0), partial(execution.part, 1)
    if kind == "steps":
        steps = [StreamStep(0, (), False, first), StreamStep(1, (0,), cheap, second)]
        return StreamContext(execution, steps, between)
    if kind == "whole":
        return StreamContext(execution, [StreamStep(0, (), False, lambda: (first(), second()))])
    event = SimpleNamespace(wait=second)
    return StreamContext(execution, launch=lambda events: (first(), events.append(event)))


def dispatcher_of(kind, contexts=3, **options):
    log = []
    queues = {"steps": ("one", "two"), "whole": ("one",), "launched": ()}[kind]
    made = [context_of(kind, Execution(log), **options) for _ in range(contexts)]
    return Dispatcher(SimpleNamespace(depth=contexts), made, queues), log


def serving(dispatcher):
    return [thread for one in dispatcher.threads for thread in one._threads]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("contexts", [1, 2, 5])
def test_outputs_come_in_the_order_of_the_inputs(kind, contexts):
    dispatcher, log = dispatcher_of(kind, contexts)
    for _ in range(2):
        found = [one["y"] for one in Stream(dispatcher, ({"x": x} for x in range(10)))]
        assert found == [x + 10 for x in range(10)]
    assert len(log) == 40 and not serving(dispatcher)


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_inputs_are_taken_than_there_are_contexts(kind):
    taken = []

    def feeds():
        for x in range(10):
            taken.append(x)
            yield {"x": x}

    with Stream(dispatcher_of(kind)[0], feeds()) as stream:
        assert not taken
        next(stream)
        assert taken == [0, 1, 2, 3]
        next(stream)
        assert taken == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_that_fails_is_named_and_the_others_go_on(kind):
    stream = Stream(dispatcher_of(kind)[0], ({"x": x} for x in (1, 13, -1, 4)))
    assert next(stream)["y"] == 11
    with pytest.raises(RunError, match="item 1 of the stream: unlucky"):
        next(stream)
    with pytest.raises(RunError, match="item 2 of the stream: it does not fit"):
        next(stream)
    assert next(stream)["y"] == 14
    assert next(stream, None) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_device_raises_is_the_cause_of_its_items_error(kind):
    dispatcher, _ = dispatcher_of(kind, 1)
    dispatcher.contexts[0].execution.log = None  # which has no `append`
    with Stream(dispatcher, [{"x": 1}]) as stream:
        with pytest.raises(RunError, match="item 0 of the stream: 'NoneType'") as caught:
            next(stream)
        assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_not_begun_when_a_stream_is_closed_never_begins(kind):
    dispatcher, log = dispatcher_of(kind)
    stream = Stream(dispatcher, ({"x": x} for x in range(10)))
    next(stream)
    stream.close()
    seen = len(log)
    time.sleep(0.01)
    assert len(log) == seen <= 8 and next(stream, None) is None and not serving(dispatcher)
    assert [one["y"] for one in Stream(dispatcher, [{"x": 5}])] == [15]


def test_a_cheap_step_runs_on_the_thread_that_made_it_ready():
    for cheap, names in ((True, {"one"}), (False, {"one", "two"})):
        dispatcher, log = dispatcher_of("steps", 1, cheap=cheap)
        list(Stream(dispatcher, [{"x": x} for x in range(5)]))
        assert {name.removeprefix("trireme-stream-") for _, _, name in log} == names


@pytest.mark.parametrize("between, most", [((), 3), (((1, 0),), 1)])
def test_a_step_may_wait_for_the_item_before(between, most):
    """Step 0 of an item waits for step 1 of the item before, as states make it."""
    begun, over, seen = [], [], []
    dispatcher, _ = dispatcher_of("steps", 3, between=between)
    for one in dispatcher.contexts:
        one.execution.log = SimpleNamespace(
            append=lambda row: (
                (begun, over)[row[1]].append(row) or seen.append(len(begun) - len(over))
            )
        )
    assert len(list(Stream(dispatcher, [{"x": x} for x in range(10)]))) == 10
    assert max(seen) <= most


def test_one_stream_at_a_time_and_its_dispatcher_is_kept():
    made = []

    def make(depth):
        made.append(depth)
        return dispatcher_of("whole", depth)[0]

    streams = Streams("this test")
    first = streams.begin(make, [{"x": 1}], 2, None)
    with pytest.raises(RunError, match="a stream of this test is under way"):
        streams.begin(make, [], 2, None)
    assert [one["y"] for one in first] == [11]
    streams.begin(make, [], 2, None).close()
    assert made == [2]
    last = streams.begin(make, [{"x": 1}], 3, None)
    assert made == [2, 3]
    streams.close()
    assert last.closed
