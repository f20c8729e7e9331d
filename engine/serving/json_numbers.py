"""Long lists of numbers in JSON, read without a Python object for each number.

`hold_numbers` takes the flat lists behind "data" out of a text, `read_numbers` reads one. Both work
in pieces, so that other threads run in between: json.loads would stop them for a second.
A list that is no plain list of numbers stays where it is, and json.loads says what is wrong.
"""

from __future__ import annotations

import re
import secrets

import numpy as np

from trireme.support.dtypes import Array

SHORTEST = 1 << 15
"""Bytes of a text, and of a list in it, from which this pays."""

PIECE = 1 << 16
"""Bytes that are read at once: about a millisecond."""

_BEGIN = re.compile(rb'[{,][ \t\r\n]*"data"[ \t\r\n]*:[ \t\r\n]*\[')
_SPACE = rb"[ \t\r\n]*+"
_WHOLE = _SPACE + rb"-?+(?:0|[1-9][0-9]{0,17}+)" + _SPACE
_REAL = _SPACE + rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+" + _SPACE
_LISTS = {
    np.dtype(np.int64): re.compile(_WHOLE + rb"(?:," + _WHOLE + rb")*+"),
    np.dtype(np.float64): re.compile(_REAL + rb"(?:," + _REAL + rb")*+"),
}
"""Lists of numbers that the dtype holds, as JSON spells them (RFC 8259). 18 digits fit in int64."""

HeldLists = dict[str, memoryview]


def hold_numbers(text: memoryview) -> tuple[bytes, HeldLists]:
    """Return a text with its long lists replaced by names, and the lists by name.

    A name cannot be guessed, so no text of a client is one. Inside a JSON text a quote is escaped,
    so what the pattern finds is a key, or the text is no JSON with or without its list.
    """
    whole, held = bytes(text), HeldLists()
    parts, at = [], 0
    for begin in _BEGIN.finditer(whole):
        end = whole.find(b"]", begin.end())
        if begin.end() < at or end - begin.end() < SHORTEST:
            continue
        if whole.find(b"[", begin.end(), end) >= 0 or whole.find(b'"', begin.end(), end) >= 0:
            continue
        name = secrets.token_hex(16)
        held[name] = text[begin.end() : end]
        parts += [whole[at : begin.end() - 1], b'"%s"' % name.encode()]
        at = end + 1
    return b"".join([*parts, whole[at:]]), held


def read_numbers(
    text: memoryview, dtype: np.dtype[np.int64] | np.dtype[np.float64]
) -> Array | None:
    """Return the numbers of a held list; None where it has anything else, or too long a number."""
    found, whole, at = [], bytes(text), 0
    while at <= len(whole):
        end = whole.find(b",", at + PIECE)
        end = len(whole) if end < 0 else end
        piece = whole[at:end]
        if _LISTS[dtype].fullmatch(piece) is None:
            return None
        found.append(np.fromstring(piece, dtype, sep=","))
        at = end + 1
    return np.concatenate(found)
