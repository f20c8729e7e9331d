"""Where the kernels of a call note what they find wrong: two int64 for each of their faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from trireme.devices.cpu.compile.program import Reader
from trireme.devices.cpu.kernels.lowering import KernelFault
from trireme.support.errors import RunError


class FaultWords:
    """The words of the faults of some steps, in the order in which they are told."""

    def __init__(self, steps: Iterable[Reader]) -> None:
        reads = (operand for step in steps for operand in step.reads)
        self.faults = [operand for operand in reads if isinstance(operand, KernelFault)]
        self._words = np.zeros((max(len(self.faults), 1), 2), np.int64)
        self._view = self._words.reshape(-1).data

    def __len__(self) -> int:
        return len(self.faults)

    def address(self, position: int) -> int:
        """Return where the kernel of a fault writes."""
        return int(self._words[position].ctypes.data)

    def run(self, call: Callable[[], None]) -> None:
        """Run a call, and raise what its kernels found wrong; their results mean nothing then.

        Errors: RunError
        """
        try:
            call()
        except BaseException:
            self.clear()  # else the next run would tell what this one found
            raise
        self.check()

    def check(self) -> None:
        """Raise the first fault that is noted; forget all.

        Errors: RunError
        """
        if not any(self._view):
            return
        wrong = self._words.tolist()
        self.clear()
        for fault, (flag, number) in zip(self.faults, wrong, strict=False):
            if flag:
                raise RunError(fault.message(number))

    def clear(self) -> None:
        """Forget what is noted."""
        self._words[:] = 0
