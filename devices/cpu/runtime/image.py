"""Run the image of a compiled region: its code and tables from a file, on memory of this process.

`compile/image.py` makes images. This module compiles and lowers nothing, and imports neither
kernels nor LLVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trireme.backend.image import TaskImage
from trireme.devices.cpu.codegen.aligned_memory import aligned_bytes
from trireme.devices.cpu.codegen.link import Layout, Linked
from trireme.devices.cpu.runtime import native as runtime
from trireme.devices.cpu.runtime.fault_words import FaultWords
from trireme.devices.cpu.runtime.pool import PoolCall, StepPool
from trireme.devices.cpu.runtime.workers import SPINS, Native
from trireme.support.dtypes import Array

if TYPE_CHECKING:
    from trireme.devices.cpu.runtime.sized_image import SizedImage


class CpuImage:
    """An image on memory; see `backend.image.ImageCall`."""

    _sized: SizedImage | None

    def __init__(self, image: TaskImage, args: Sequence[Array], spins: int | None = None) -> None:
        facts, tables = image.facts, image.tables
        self._whole, self._sized = image, None
        linked = Linked(
            Layout(
                tables["code"],
                tables["moved"],
                tuple((at, kind, name, add) for at, kind, name, add in facts["externals"]),
                facts["symbols"],
            )
        )
        native = Native([linked.addresses[name] for name in facts["runtime"]], linked)
        spins = SPINS if spins is None else spins
        self._pool = StepPool(native, facts["threads"], spins=spins, futex=facts["futex"])
        self._pool.reserve(facts["local_bytes"])
        self.calls_at_once: int = self._pool.calls_at_once
        self.busy_calls: int = self._pool.threads
        self._bind(image, linked, args)

    def _bind(self, image: TaskImage, linked: Linked, args: Sequence[Array]) -> None:
        """Lay out the tables on memory."""
        facts, tables = image.facts, image.tables
        self._of = image, linked
        scratch = aligned_bytes(facts["scratch_bytes"])
        self._faults = FaultWords([partial(_told, sentence) for sentence in facts["faults"]])
        homes = [*args, scratch, *self._faults.words, *image.constants]
        bases = np.array([home.ctypes.data for home in homes], np.int64)
        self._places = tables["pointers"]
        self.pointers = bases[self._places[:, 0]] + self._places[:, 1]
        call = self._call(tables["steps"], linked, facts, homes)
        self._native = self._pool.bind(call)
        checked = partial(self._faults.run, self._native)
        self.run: Callable[[], None] = checked if len(self._faults) else self._native

    def _call(
        self, steps: Array, linked: Linked, facts: Mapping[str, bool], homes: Sequence[Array]
    ) -> PoolCall:
        table = np.zeros((len(steps), runtime.STEP_WORDS), np.int64)
        table[:, :5] = steps
        table[:, runtime.STEP_FN] += linked.base
        table[:, runtime.STEP_ARGS] += self.pointers.ctypes.data
        return PoolCall(
            table,
            shared=facts["shared"],
            wakes=facts["wakes"],
            tries=facts["tries"],
            polls=facts["polls"],
            alive=(self.pointers, linked, homes),
        )

    def at(self, sizes: tuple[int, ...]) -> Callable[[Sequence[Array]], CpuImage] | None:
        """See ImageCall."""
        if "sized" not in self._whole.facts:
            return None
        from trireme.devices.cpu.runtime.sized_image import SizedImage

        self._sized = self._sized or SizedImage(self._whole)
        found = self._sized.at(sizes)
        if found is None:
            return None

        def opened(args: Sequence[Array]) -> CpuImage:
            made = copy(self)
            self._pool.reserve(found.facts["local_bytes"])
            made._bind(found, self._of[1], args)
            return made

        return opened

    def rebind(self, argument: int) -> Callable[[int], None]:
        """See ImageCall."""
        pointers = self.pointers
        moving = np.flatnonzero(self._places[:, 0] == argument)
        places = [(k, int(self._places[k, 1])) for k in moving.tolist()]

        def move(to: int) -> None:
            for k, offset in places:
                pointers[k] = to + offset

        return move

    def beside(self, args: Sequence[Array]) -> CpuImage:
        """See ImageCall."""
        made = copy(self)
        made._bind(*self._of, args)
        return made

    def close(self) -> None:
        """See ImageCall."""
        self._pool.close()


NUMBER = "\0"
"""Stands for the number in the sentence of a fault."""


def _told(sentence: str, number: int) -> str:
    return sentence.replace(NUMBER, str(number))
