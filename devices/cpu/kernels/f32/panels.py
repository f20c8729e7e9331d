"""Panels: how the constant B of a product lies in memory, so that a tile reads it in order."""

from __future__ import annotations

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.support.dtypes import Array


def panel_bytes(batch: int, depth: int, columns: int, width: int) -> int:
    """Return the bytes of what `pack_panels` returns."""
    return 4 * batch * -(-columns // width) * depth * width


def pack_panels(b: Array, width: int) -> Array:
    """Return B [batch, depth, columns] as panels [batch, panel, depth, width], zero-padded."""
    batch, depth, columns = b.shape
    whole, rest = divmod(columns, width)
    room = aligned_bytes(panel_bytes(batch, depth, columns, width))
    packed = room.view(np.float32).reshape(batch, -1, depth, width)
    cut = b[:, :, : whole * width].reshape(batch, depth, whole, width)
    packed[:, :whole] = cut.transpose(0, 2, 1, 3)
    if rest:
        packed[:, whole, :, :rest] = b[:, :, whole * width :]
    return packed
