"""The device that a `with trireme.device(...)` block names for the ops written inside it.

`GraphBuilder` pins the nodes that are added in the block, and eager calls run there. Code that
builds graphs by itself, such as converters, leaves the block with `device(None)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from trireme.support.errors import PlacementError

_named: ContextVar[str | None] = ContextVar("device", default=None)


@contextmanager
def device(name: str | None) -> Iterator[None]:
    """Run the ops written in a `with` block on a device: an inner block wins, None ends it.

    A node of a graph or trace gets the device as its pin. Where the device refuses the node,
    placing raises PlacementError with the reason; an eager call raises it at once. A model that is
    converted or opened in the block is not pinned. Other threads are not in the block.
    Errors: PlacementError, if the name is no text
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise PlacementError(f"device({name!r}): expected the name of a device")
    before = _named.set(name)
    try:
        yield
    finally:
        _named.reset(before)


def named_device() -> str | None:
    """Return the device of the innermost block around the caller, None outside of any."""
    return _named.get()
