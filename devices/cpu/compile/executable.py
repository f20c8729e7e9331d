"""A program of the cpu device with its code, and the same on memory, as a session launches it.

Runs of native steps become one table each, which native code walks in one call; steps on the numpy
reference come between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

from trireme.backend.device import BoundCall, Buffer, Executable
from trireme.backend.image import TaskImage
from trireme.devices.cpu.codegen.jit import Jit
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.compile.bound import Bound
from trireme.devices.cpu.compile.image import image_of
from trireme.devices.cpu.compile.listing import listings
from trireme.devices.cpu.compile.region import OpenOrigin, RegionProgram
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.devices.cpu.runtime.server import ServedCall, Server
from trireme.ir.effects import States
from trireme.ir.graph import Graph
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.resizable import CpuResizable
    from trireme.ir.decided import DecidedValues


class CpuExecutable(Executable):
    """A compiled program; immutable, shared by sessions.

    Where sizes vary, `at` and `resizable` give what runs; else the executable is bound itself.
    server: what runs its calls; the thread that launches them when None
    of: the open program that it is one shape of
    """

    def __init__(
        self,
        program: RegionProgram,
        jit: Jit,
        pool: StepPool,
        server: Server | None = None,
        of: OpenOrigin | None = None,
    ) -> None:
        self._of = of
        self._program, self._pool, self._server = program, pool, server
        self._states: States | None = None
        self._contents: DecidedValues | None = None
        found = jit.addresses(list(program.codes))
        self._jit = jit
        self._code = [found[step.code.symbol] for step in program.steps]
        self.scratch_bytes = program.scratch_bytes
        self.constant_bytes = sum(array.nbytes for array in program.constants.values())
        self.kernels = program.kernels
        pool.reserve(program.local_bytes)

    @property
    def codes(self) -> tuple[Code, ...]:
        """The IR of the kernels, in the order of the steps."""
        return self._program.codes

    def listings(self, form: str) -> Mapping[str, str]:
        """Return the kernels as text by file name, as LLVM IR ("ir") or machine code ("asm")."""
        return listings(self._program.graph, self._program.steps, self._jit, form)

    def with_states(self, states: States) -> CpuExecutable:
        """Return the executable on the states of a session."""
        if not self._program.states.names:
            return self
        made = copy(self)
        made._states = states
        return made

    def image(self) -> TaskImage | None:
        """See Executable; calls that another thread runs have none."""
        if self._server is not None:
            return None
        return image_of(self._program, self._jit, self._pool, self._of)

    def at(self, graph: Graph) -> CpuExecutable:
        """Return the executable of one shape; see PolymorphicExecutable."""
        from trireme.devices.cpu.compile.one_shape import program_at

        contents = self._contents
        of = None if contents is None else OpenOrigin(self._program, contents)
        program = program_at(self._program, graph)
        return CpuExecutable(program, self._jit, self._pool, self._server, of)

    def resizable(self, contents: DecidedValues) -> CpuResizable | None:
        """Return a call that serves one shape after another; None where numpy runs a node."""
        from trireme.devices.cpu.compile.resizable import CpuResizable

        if len(self._program.steps) < len(self._program.items):
            return None
        self._contents = contents
        return CpuResizable(self._program, self._jit, self._pool, self._server, contents)

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> BoundCall:
        """Return a call on these places: the graph's inputs in order, then its outputs."""
        graph = self._program.graph
        ids = (*graph.inputs, *graph.outputs)
        if len(args) != len(ids):
            raise InternalError(f"cpu: {len(args)} buffers bound, the graph has {len(ids)}")
        if self.scratch_bytes and (scratch is None or scratch.nbytes < self.scratch_bytes):
            raise InternalError(f"cpu: scratch memory of {self.scratch_bytes} bytes is missing")
        bound = Bound(self._program, self._code, self._pool, args, scratch, self._memory())
        if self._server is None:
            return bound
        return ServedCall(bound, self._server, bound.pointer, bound.stamped)

    def _memory(self) -> dict[str, Array]:
        """Return the memory of each state."""
        names, states = self._program.states.names, self._states
        if not names:
            return {}
        if states is None:
            raise InternalError(f"cpu: no memory for the states {', '.join(names)}")
        return {name: states.memory(name) for name in names}
