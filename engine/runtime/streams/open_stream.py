"""A stream over inputs of any shapes: runs in order, one at a time, each at its own shape.

A pipeline of several runs in flight is planned for one program, and a new shape is another one.
What overlaps is the caller: the next input is asked for when a result is read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trireme.support.closing import Closing
from trireme.support.dtypes import Array
from trireme.support.errors import RunError, TriremeError

Feeds = Mapping[str, Any]


class OpenStream(Closing, Iterator[dict[str, Array]]):
    """The outputs of inputs of differing shapes, in order; read by one thread at a time.

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
