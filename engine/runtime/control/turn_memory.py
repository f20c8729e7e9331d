"""Memory for the operands of a loop's turns, whose sizes differ from turn to turn."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from trireme.backend.device import host_alloc
from trireme.support.dtypes import Array, numpy_dtype


class TurnMemory:
    """Memory for one operand, at one address until it needs more room.

    buffer: what there is now
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = numpy_dtype(dtype)
        self.buffer = host_alloc(0)

    @property
    def address(self) -> int:
        """Where it begins."""
        place: int = self.buffer.handle.ctypes.data
        return place

    @property
    def nbytes(self) -> int:
        """The bytes that there is room for."""
        return self.buffer.nbytes

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""
        return self._dtype.itemsize

    def bytes_of(self, shape: Sequence[int]) -> int:
        """Return the bytes of an array of a shape."""
        return prod(shape) * self._dtype.itemsize

    def reserve(self, nbytes: int) -> None:
        """Have room for so many bytes, with what is there; elsewhere if there is too little."""
        before = self.buffer
        if nbytes > before.nbytes or not before.nbytes:
            after = host_alloc(max(nbytes, 64, before.nbytes * 3 // 2))
            after.handle[: before.nbytes] = before.handle
            self.buffer = after  # an interrupt leaves the one or the other

    def view(self, shape: Sequence[int]) -> Array:
        """Return what lies here, as an array of a shape."""
        array: Array = self.buffer.handle[: self.bytes_of(shape)].view(self._dtype)
        return array.reshape(shape)
