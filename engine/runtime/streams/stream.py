"""A stream: inputs go in, outputs come out in the order of the inputs, several runs in flight.

A session and replicas give streams; a `Dispatcher` runs the items. A stream takes inputs while a
context is free, names the item that fails, and ends what it began when it is closed.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trireme.runtime.loop.execute import finish
from trireme.runtime.program.failures import interrupt_of
from trireme.runtime.streams.dispatcher import Dispatcher, Item
from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import RunError, TriremeError
from trireme.support.forks import register_at_fork

if TYPE_CHECKING:
    from trireme.runtime.models.failover import StreamFailover


Feeds = Mapping[str, Any]


class Stream(Closing, Iterator[dict[str, Array]]):
    """The outputs of a stream of inputs, in order; read by one thread at a time.

    An item that fails raises RunError with its number, from what went wrong; `next` goes on with
    the item after it. What the inputs' iterable raises comes out when all before it has. Close it,
    or use it in a `with`, if it is not read to the end; any thread may. After an interrupt (Ctrl-C)
    it is closed.

    owner: what must not be collected before the stream
    again: runs items that a device fails on other devices; None where an error comes out
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        feeds: Iterable[Feeds],
        owner: object = None,
        again: StreamFailover | None = None,
    ) -> None:
        self.dispatcher, self.flow, self._owner = dispatcher, dispatcher.flow, owner
        self._again = again
        self._feeds = iter(feeds)
        self._contexts = deque(dispatcher.contexts)
        self._flying: deque[Item] = deque()
        self._last: Item | None = None
        self._count = 0
        self._broken: BaseException | None = None
        self._dry = self.closed = False
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._end = weakref.finalize(self, dispatcher.end)
        register_at_fork(self)
        dispatcher.start()

    def __next__(self) -> dict[str, Array]:
        if not self._reading.acquire(blocking=False):
            raise RunError("the stream is being read already", fix="read it in one thread")
        try:
            return self._next()
        except (StopIteration, TriremeError):
            raise
        except BaseException as error:
            if self.closed:
                raise
            self._give_up("the stream was interrupted")
            interrupt = interrupt_of(error)
            if interrupt is error:
                raise
            raise interrupt from None
        finally:
            self._reading.release()

    def _next(self) -> dict[str, Array]:
        self._fill()
        with self._lock:
            item = self._flying[0] if self._flying else None
        if item is None:
            broken, self._broken = self._broken, None
            self.close()
            raise broken or StopIteration
        if item.begun:
            self.dispatcher.wait(item)
        with self._lock:
            if self.closed:
                raise RunError("the stream was closed while it was read")
            self._flying.popleft()
            if item.begun:
                self._contexts.append(item.context)
            if item.error is None:
                outputs = item.context.execution.ports.collect(item.given)
        if item.error is not None:
            outputs = self._run_again(item, item.error)
        self._fill()
        return outputs

    def _run_again(self, item: Item, error: BaseException) -> dict[str, Array]:
        """Return the outputs of an item on other devices. Errors: RunError with its number"""
        try:
            found = None if self._again is None else self._again.run(error, item.feeds)
        except TriremeError as failed:
            raise RunError(f"item {item.number} of the stream: {failed}") from failed
        if found is None:
            raise RunError(f"item {item.number} of the stream: {error}") from error
        return found

    def _fill(self) -> None:
        """Take inputs while a context is free."""
        while self._contexts and not self._dry:
            try:
                feeds = next(self._feeds)
            except StopIteration:
                self._dry = True
                return
            except BaseException as error:
                self._dry, self._broken = True, error
                return
            with self._lock:
                if not self.closed:
                    self._begin(feeds)

    def _begin(self, feeds: Feeds) -> None:
        item = Item(self._count, self._contexts[0])
        self._count += 1
        self._flying.append(item)
        try:
            if self._again is not None:
                item.feeds = {name: np.array(one) for name, one in feeds.items()}
                self._again.check()
            item.given = item.context.execution.ports.bind(feeds, in_place=False)
        except Exception as error:
            item.error = error
            return
        item.begun = True
        self._contexts.popleft()
        self.dispatcher.submit(item, self._last)
        self._last = item

    def close(self) -> None:
        """End the stream: what has started is waited for, the rest is not begun."""
        self.closed = self._dry = True
        try:
            with self._lock:
                for item in self._flying:
                    item.error = item.error or RunError("the stream was closed")
                for item in self._flying:
                    if item.begun:
                        self.dispatcher.wait(item)
                self._flying.clear()
                self._end()
                self._owner = None
        except BaseException:
            self._give_up("")
            raise

    def _give_up(self, why: str) -> None:
        """Close it though an interrupt may have come anywhere: drop what has not started."""
        self.closed = self._dry = True
        self._broken = RunError(why, fix="begin another") if why else None
        for item in self._flying:
            item.unfinished = 0
        self._flying.clear()
        self._end()
        self._owner = None
        for program in self.dispatcher.programs:
            finish(program.devices)

    def reset_after_fork(self) -> None:
        """Be closed, in a forked child, where no thread is left that would end its runs."""
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.closed = self._dry = True
        self._broken = RunError("the stream is another process's", fix="begin another")
        self._flying.clear()


class OpenStream(Closing, Iterator[dict[str, Array]]):
    """The outputs of inputs of differing shapes, in order; read by one thread at a time.

    Runs go one at a time, each at its own shape: a pipeline is planned for one program. What
    overlaps is the caller: the next input is asked for when a result is read.
    An item that fails raises RunError with its number, from what went wrong; `next` goes on with
    the item after it.

    run: runs one item
    """

    def __init__(self, run: Callable[[Feeds], dict[str, Array]], feeds: Iterable[Feeds]) -> None:
        self._run, self._feeds = run, iter(feeds)
        self._count = 0
        self.closed = False
        self._reading = threading.Lock()

    def __next__(self) -> dict[str, Array]:
        if not self._reading.acquire(blocking=False):
            raise RunError("the stream is being read already", fix="read it in one thread")
        try:
            return self._next()
        finally:
            self._reading.release()

    def _next(self) -> dict[str, Array]:
        if self.closed:
            raise StopIteration
        try:
            feeds = next(self._feeds)
        except BaseException:
            self.close()
            raise
        number, self._count = self._count, self._count + 1
        try:
            return self._run(feeds)
        except TriremeError as error:
            raise RunError(f"item {number} of the stream: {error}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Begin nothing more."""
        self.closed = True


class Streams:
    """The streams of a session or of replicas: one at a time.

    whose: what the streams are of, for the error
    """

    def __init__(self, whose: str) -> None:
        self._whose = whose
        self._depth: int | None = None
        self._dispatcher: Dispatcher | None = None
        self._stream: Stream | OpenStream | None = None

    def begin(
        self,
        make: Callable[[int | None], Dispatcher],
        feeds: Iterable[Feeds],
        depth: int | None,
        owner: object,
        again: StreamFailover | None = None,
    ) -> Stream:
        """Return a stream; one that is being closed is waited for.

        make: makes a dispatcher, given the depth; it is kept while the depth is the same
        Errors: RunError, if another is under way; those of `make`
        """
        self._end_last()
        if self._dispatcher is None or self._depth != depth:
            self._dispatcher, self._depth = make(depth), depth
        stream = self._stream = Stream(self._dispatcher, feeds, owner, again)
        return stream

    def begin_open(
        self, run: Callable[[Feeds], dict[str, Array]], feeds: Iterable[Feeds]
    ) -> OpenStream:
        """Return a stream over inputs of any shapes.

        Errors: RunError, if another is under way
        """
        self._end_last()
        self._stream = OpenStream(run, feeds)
        return self._stream

    def _end_last(self) -> None:
        if self._stream is not None:
            if not self._stream.closed:
                raise RunError(f"a stream of {self._whose} is under way", fix="read it or close it")
            self._stream.close()

    def check_ended(self, why: str) -> None:
        """Raise RunError with a reason if a stream is under way."""
        if self._stream is not None and not self._stream.closed:
            raise RunError(f"a stream of {self._whose} is under way: {why}", fix="read or close it")

    def close(self) -> None:
        """Close the stream that is under way."""
        if self._stream is not None:
            self._stream.close()
