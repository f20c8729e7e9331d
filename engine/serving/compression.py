"""Compressed bodies: gzip and deflate, within a limit of what they may become.

Source: RFC 9110 (content codings), RFC 1950, 1951, 1952
"""

from __future__ import annotations

import zlib

from trireme.serving.errors import ServingError, invalid

ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The `wbits` of zlib for the content codings. "deflate" is the format of RFC 1950."""

LEVEL = 1
"""Tensors hardly shrink further at higher levels."""


def decompressed(body: bytes | bytearray, encoding: str, limit: int) -> bytes:
    """Return what a body says.

    Errors: ServingError encoding, if the encoding is not known; too_large, if more than `limit`
    bytes come out; invalid, if the body is damaged
    """
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise ServingError("encoding", f"Content-Encoding {encoding!r:.60}, expected {known}")
    parts: list[bytes] = []
    left, rest = limit, bytes(body)
    while rest:
        reader = zlib.decompressobj(ENCODINGS[encoding])
        try:
            parts.append(reader.decompress(rest, left + 1))
        except zlib.error as error:
            raise invalid("the request", f"its body is no {encoding}") from error
        left -= len(parts[-1])
        if left < 0:
            what = f"the body has more than {limit} bytes when it is decompressed"
            raise ServingError("too_large", what)
        if not reader.eof:
            raise invalid("the request", f"its {encoding} ends too early")
        if reader.unused_data and encoding != "gzip":
            raise invalid("the request", f"bytes follow its {encoding}")
        rest = reader.unused_data
    return b"".join(parts)


def compressed(body: bytes, encoding: str) -> bytes:
    """Return a body in an encoding of ENCODINGS."""
    writer = zlib.compressobj(LEVEL, wbits=ENCODINGS[encoding])
    return writer.compress(body) + writer.flush()


def accepted_encodings(header: str) -> list[str]:
    """Return the encodings of ENCODINGS that an Accept-Encoding allows, in its order."""
    found = []
    for row in header.lower().split(",")[:16]:
        name, _, weight = row.partition(";")
        is_refused = weight.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000")
        if name.strip() in ENCODINGS and not is_refused:
            found.append(name.strip())
    return found
