"""A device that works in the host's memory."""

from __future__ import annotations

import numpy as np

from trireme.backend.device import Buffer, Device, host_alloc
from trireme.support.dtypes import Array


class HostMemoryDevice(Device):
    """A device that works in the host's memory, where reads and writes are plain copies."""

    def alloc(self, nbytes: int) -> Buffer:
        """Return new memory, aligned to spec.alignment."""
        return host_alloc(nbytes, self.spec.alignment)

    def write(self, target: Buffer, source: Array) -> None:
        """Copy a C-contiguous array into memory."""
        end = target.offset + source.nbytes
        target.handle[target.offset : end] = source.reshape(-1).view(np.uint8)

    def read(self, source: Buffer, target: Array) -> None:
        """Copy memory into a C-contiguous array."""
        end = source.offset + target.nbytes
        target.reshape(-1).view(np.uint8)[...] = source.handle[source.offset : end]
