"""A connection of the HTTP server: uvicorn's, with bounds on heads, idle peers and slow readers.

uvicorn reads a head of any length for any time. Here a head that is too long gets 431, one that
takes too long gets 408, and a peer that does not read its answers is cut off.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trireme.serving.errors import CODES

MAX_HEAD_BYTES = 1 << 16
MAX_HEADERS = 256
HEAD_TIMEOUT_S = 10.0
"""Seconds from a connection's start, or a head's first byte, to the head's end."""

READ_TIMEOUT_S = 30.0
"""Seconds for which a peer may read nothing of what waits to be sent to it."""


class Connection(HttpToolsProtocol):  # type: ignore[misc]  # uvicorn is untyped here
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_bytes = self._unended = 0
        self._refusal = "invalid"
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._forget_timers()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_slow_head)

    def _forget_timers(self) -> None:
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._write_timer = None

    def _end_slow_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            return
        if self._head_bytes:
            self._refusal = "slow"
            self.send_400_response(f"the head did not arrive in {HEAD_TIMEOUT_S:g} s")
        else:
            self.transport.close()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._head_bytes = 1
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """Take a part of the head."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a part of the head."""
        self._count(len(name) + len(value))
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse_head()

    def _count(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def _refuse_head(self) -> None:
        self._refusal = "headers"
        raise ValueError("the head is too long")  # ends the parser; data_received answers

    def on_headers_complete(self) -> None:
        """End a head and begin to serve its request."""
        self._head_bytes = self._unended = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request."""
        super().on_message_complete()
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        super().data_received(data)
        if self._head_bytes and not self.transport.is_closing():
            self._unended += len(data)  # the parser keeps a header until its line ends
            if self._unended > MAX_HEAD_BYTES:
                self._refusal = "headers"
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, after the answers that are under way; then close."""
        cycle = self.cycle
        is_under_way = cycle is not None and not cycle.response_complete
        if is_under_way and (cycle.response_started or not cycle.more_body):
            cycle.keep_alive = False
            self.flow.pause_reading()
            return
        texts = {"headers": "the head of the request is too long", "invalid": "this is no HTTP"}
        body = json.dumps({"error": texts.get(self._refusal, msg)}).encode()
        head = [
            STATUS_LINE[CODES[self._refusal].http],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        super().pause_writing()
        self._watch_reader()

    def on_response_complete(self) -> None:
        """End an answer; see that the peer reads it."""
        super().on_response_complete()
        self._watch_reader()

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if not self._unsent or self._write_timer is not None:
            return
        self._write_timer = self.loop.call_later(READ_TIMEOUT_S, self._end_slow_reader)

    def _end_slow_reader(self) -> None:
        self._write_timer = None
        left = self.transport.get_write_buffer_size()
        if left and left >= self._unsent:
            self.transport.abort()
        else:
            self._watch_reader()
