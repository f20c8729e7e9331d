"""Bodies of HTTP requests and answers: limits, encodings, errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar

from starlette.responses import Response

from trireme.serving.admission import ServingLimits
from trireme.serving.compression import accepted_encodings, compressed, decompressed
from trireme.serving.errors import ServingError

T = TypeVar("T")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

LINGER_S = 2.0
"""Seconds for which the rest of a refused body is read, so that its sender sees the answer."""

INLINE_BYTES = 1 << 16
"""Work on more bytes than these leaves the event loop for a thread."""

SMALLEST_COMPRESSED = 1024
"""Bytes of an answer from which compressing pays."""


async def off_loop(nbytes: int, work: Callable[[], T]) -> T:
    """Do work that grows with some bytes; in a thread where they are many."""
    return work() if nbytes <= INLINE_BYTES else await asyncio.to_thread(work)


async def read_body(request: Any, limits: ServingLimits) -> bytes | bytearray:
    """Return the body of a request, decompressed.

    Errors: ServingError too_large, slow, encoding, invalid
    """
    limit = limits.max_body_bytes
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        what = f"the body did not arrive in {limits.body_timeout_s:g} s"
        raise ServingError("slow", what) from None
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return body
    return await off_loop(
        limit if len(body) > 1024 else 0, lambda: decompressed(body, encoding, limit)
    )


def _too_large(limit: int) -> ServingError:
    return ServingError("too_large", f"the body has more than {limit} bytes")


def json_response(content: Any) -> Any:
    """Return an answer in JSON."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return Response(body, media_type="application/json")


class ErrorResponse(Response):  # type: ignore[misc]  # starlette is untyped here
    """The answer to a request that failed: {"error": text}.

    Where the body is refused before its end, the rest is read and forgotten for LINGER_S, then the
    connection is closed: closing it at once would take the answer from the client as well.
    """

    def __init__(self, error: ServingError) -> None:
        text = json.dumps({"error": str(error)}).encode()
        super().__init__(text, error.code.http, media_type="application/json")
        self._lingers = error.kind in ("too_large", "slow", "unauthenticated")
        if error.retry_after_s is not None:
            self.headers["retry-after"] = f"{error.retry_after_s:.0f}"
        if error.kind == "unauthenticated":
            self.headers["www-authenticate"] = "Bearer"
        if error.kind in ("too_large", "slow"):
            self.headers["connection"] = "close"

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        """Send the answer."""
        if self.status_code >= 400 and b"expect" in dict(scope["headers"]):
            self.headers["connection"] = "close"  # the client may send the body yet, or not
        if not self._lingers:
            await super().__call__(scope, receive, send)
            return
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


async def encoded(request: Any, parts: list[bytes], is_raw: bool) -> Any:
    """Return an answer to a request, compressed where the client asks for that.

    Raw tensors hardly shrink. They are compressed for a client that accepts one encoding alone,
    not for one that lists whatever its library knows.
    """
    accepts = request.headers.get("accept-encoding", "")
    known = accepted_encodings(accepts)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if not known or len(body) < SMALLEST_COMPRESSED or (is_raw and "," in accepts):
        return Response(body)
    answer = Response(await off_loop(len(body), lambda: compressed(body, known[0])))
    answer.headers["content-encoding"] = known[0]
    answer.headers["vary"] = "accept-encoding"
    return answer
