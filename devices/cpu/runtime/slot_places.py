"""Where the slots of an open program's scratch memory lie, in any shape.

compile/scratch_slots.py says which slots lie below which, so that slots of common lives never
overlap. A shape gives their bytes, and each slot begins where the last of those below it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

SLOT_ALIGN = 64


def slot_places(room: Sequence[int], below: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Return the offset of each slot, and the bytes of all.

    room: the bytes of each slot; below: the numbers of the slots below it, each less than its own
    """
    begins: list[int] = []
    ends: list[int] = []
    for nbytes, under in zip(room, below, strict=True):
        begin = max([ends[k] for k in under], default=0)
        begins.append(begin)
        ends.append(begin + -(-nbytes // SLOT_ALIGN) * SLOT_ALIGN)
    return begins, max(ends, default=0)
