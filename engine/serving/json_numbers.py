"""Long lists of numbers in JSON, read without a Python object for each number.

`hold_numbers` takes the lists behind "data" out of a text, flat or nested; `read_numbers` reads
one. Both work in pieces, so that other threads run in between: json.loads would stop them for
seconds. A list that is no plain list of numbers stays where it is, and json.loads says what is
wrong. `count_values` says beforehand how much json.loads would have to do.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterator

import numpy as np

from trireme.support.dtypes import Array

SHORTEST = 1 << 15
"""Bytes of a text, and of a list in it, from which this pays."""

PIECE = 1 << 16
"""Bytes that are read at once: about a millisecond."""

_KEY = b'"data"'
_OPENING = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+\[")
_PLAIN = re.compile(rb"[-+.0-9eE, \t\r\n\[\]]*+")
_SPACE = rb"[ \t\r\n]*+"
_WHOLE = _SPACE + rb"-?+(?:0|[1-9][0-9]{0,17}+)" + _SPACE
_REAL = _SPACE + rb"-?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+" + _SPACE
_LISTS = {
    np.dtype(np.int64): re.compile(_WHOLE + rb"(?:," + _WHOLE + rb")*+"),
    np.dtype(np.float64): re.compile(_REAL + rb"(?:," + _REAL + rb")*+"),
}
"""Lists of numbers that the dtype holds, as JSON spells them (RFC 8259). 18 digits fit in int64."""
_MISPLACED = re.compile(rb"[^\[, \t\r\n][ \t\r\n]*+\[|\][ \t\r\n]*+[^\], \t\r\n]")
"""A list that begins behind something, or something behind a list that ends."""
_FLAT = bytes.maketrans(b"[]", b"  ")

HeldLists = dict[str, memoryview]


def hold_numbers(text: memoryview) -> tuple[bytes, HeldLists]:
    """Return a text with its long lists replaced by names, and the insides of the lists by name.

    A name cannot be guessed, so no text of a client is one. Inside a JSON text a quote is escaped,
    so what is found is a key, or the text is no JSON with or without its list.
    """
    whole, held = bytes(text), HeldLists()
    parts, at, found = [], 0, whole.find(_KEY)
    while found >= 0:
        opening = _OPENING.match(whole, found + len(_KEY))
        following = found + len(_KEY)
        if opening is not None and whole[found - 1] in b"{, \t\r\n":
            begin = opening.end()
            end = _end_of_list(whole, begin)
            if end - begin >= SHORTEST:
                name = secrets.token_hex(16)
                held[name] = text[begin:end]
                parts += [whole[at : begin - 1], b'"%s"' % name.encode()]
                at = following = end + 1
        found = whole.find(_KEY, following)
    return b"".join([*parts, whole[at:]]), held


def _end_of_list(whole: bytes, begin: int) -> int:
    """Return where the list ends whose inside begins at `begin`; -1 where it may hold no numbers.

    The last bracket before the first byte that is in no list of numbers.
    """
    end = begin
    while (match := _PLAIN.match(whole, end, end + PIECE)) is not None and match.end() > end:
        end = match.end()
    return whole.rfind(b"]", begin, end)


def read_numbers(
    text: memoryview,
    dtype: np.dtype[np.int64] | np.dtype[np.float64],
    shape: tuple[int, ...] = (-1,),
) -> Array | None:
    """Return the numbers of a held list, flat.

    shape: how nested lists have to be nested
    Return None where the list has anything else, too long a number, or another nesting.
    """
    found, nesting = [], _Nesting()
    for piece in _pieces(bytes(text)):
        if not nesting.add(piece):
            return None
        flat = piece.translate(_FLAT)
        if _LISTS[dtype].fullmatch(flat) is None:
            return None
        found.append(np.fromstring(flat, dtype, sep=","))
    return np.concatenate(found) if nesting.fits(shape) else None


def _pieces(whole: bytes) -> Iterator[bytes]:
    """Yield a text in pieces that commas divide."""
    at = 0
    while at <= len(whole):
        end = whole.find(b",", at + PIECE)
        end = len(whole) if end < 0 else end
        yield whole[at:end]
        at = end + 1


class _Nesting:
    """How the lists of a text are nested, which comes in pieces that commas divide."""

    def __init__(self) -> None:
        self._depth, self._is_flat = 1, True
        self._commas: list[Array] = []
        self._opened: dict[int, int] = {}

    def add(self, piece: bytes) -> bool:
        """Count a piece in; False where its lists cannot be."""
        if self._commas or b"[" in piece or b"]" in piece:
            self._is_flat = False
        elif self._is_flat:
            return True
        if _MISPLACED.search(piece):
            return False
        codes = np.frombuffer(piece + b",", np.uint8)
        opens = codes == ord("[")
        depths = self._depth + np.cumsum(opens.astype(np.int32) - (codes == ord("]")))
        self._depth = int(depths[-1])
        if depths.min() < 1 or depths.max() > np.iinfo(np.int8).max:
            return False
        self._commas.append(depths[codes == ord(",")].astype(np.int8))
        for depth, count in enumerate(np.bincount(depths[opens]).tolist()):
            self._opened[depth] = self._opened.get(depth, 0) + count
        return True

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the lists are flat, or nested as a shape."""
        if self._is_flat:
            return True
        rank = len(shape)
        opened = {depth: count for depth, count in self._opened.items() if count}
        if opened != {depth: math.prod(shape[: depth - 1]) for depth in range(2, rank + 1)}:
            return False
        commas = np.concatenate(self._commas)
        if len(commas) != math.prod(shape):
            return False
        expected = np.full(math.prod(shape), rank, np.int8)
        for depth in range(1, rank):
            expected[math.prod(shape[depth:]) - 1 :: math.prod(shape[depth:])] -= 1
        expected[-1] = 1  # the comma that `add` puts behind the last piece
        return np.array_equal(commas, expected)


def count_values(text: memoryview | bytes, most: int) -> int:
    """Return how many values a text has at least, or a number above `most`.

    Counts commas and openings, those in texts too.
    """
    count = 0
    for at in range(0, len(text), PIECE):
        codes = np.frombuffer(text, np.uint8, min(PIECE, len(text) - at), at)
        marks = (codes == ord(",")) | (codes == ord("[")) | (codes == ord("{"))
        count += int(np.count_nonzero(marks))
        if count > most:
            break
    return count
