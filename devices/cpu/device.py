"""The cpu device: the engine's contract on top of generated programs and the worker pool."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from trireme.backend.capabilities import PolymorphicExecutable
from trireme.backend.core_latency import CoreLatency
from trireme.backend.device import DeviceSpec, Executable, KernelCost, Progress, no_progress
from trireme.backend.device_kind import DeviceInstance
from trireme.backend.host_memory import HostMemoryDevice
from trireme.backend.refusal import host_reason
from trireme.devices.cpu.codegen.jit import Jit, ObjectCache
from trireme.devices.cpu.codegen.target import Isa, choose_isa, cpu_name, relative_time
from trireme.devices.cpu.compile import table
from trireme.devices.cpu.compile.buffer_aliases import is_alias
from trireme.devices.cpu.compile.cost_features import TERM_LIMITS, cost_features_of
from trireme.devices.cpu.compile.executable import CpuExecutable
from trireme.devices.cpu.compile.half import kernel_reason
from trireme.devices.cpu.compile.program import LoweredGroups, build, pack
from trireme.devices.cpu.compile.region import REFERENCE
from trireme.devices.cpu.compile.states import why_host_keeps
from trireme.devices.cpu.options import NO_CACHE, CpuOptions
from trireme.devices.cpu.runtime.compiled import LaterNative
from trireme.devices.cpu.runtime.core_latency import HandoverProbe
from trireme.devices.cpu.runtime.cores import all_cores, no_instances, share_of, too_many
from trireme.devices.cpu.runtime.native import has_futex
from trireme.devices.cpu.runtime.pool import StepPool
from trireme.devices.cpu.runtime.server import DRIVER_QUEUE, Server
from trireme.devices.cpu.runtime.workers import SPINS
from trireme.ir.effects import uses_state
from trireme.ir.graph import Graph, Node
from trireme.support.errors import DeviceError
from trireme.support.limits import MOST_THREADS
from trireme.support.user_files import cache_folder

if TYPE_CHECKING:
    from trireme.devices.cpu.compile.open_sizes import OpenSizes

_log = logging.getLogger(__name__)


_HANDOVER_S = 10e-6
"""Seconds that a task of an instance takes beyond one of cpu: 9 to 13 us were measured."""


class CpuDevice(HostMemoryDevice):
    """CPU threads running native programs; see CpuOptions."""

    kernel_table = table.TABLE

    term_limits = TERM_LIMITS
    guesses_kernels = True

    def __init__(
        self,
        isa: Isa,
        spec: DeviceSpec,
        jit: Jit,
        native: LaterNative,
        pool: StepPool,
        *,
        winograd: bool = True,
        server: Server | None = None,
    ) -> None:
        self.isa, self.spec, self.threads, self.winograd = isa, spec, pool.threads, winograd
        self._jit, self._native, self._pool, self._server = jit, native, pool, server
        self.driver_queue = None if server is None else DRIVER_QUEUE
        self.repeats_calls = server is None
        if server is None:
            self.calls_at_once, self.busy_calls = pool.calls_at_once, pool.threads
        self._lowered: LoweredGroups | None = None
        self._opened: OpenSizes | None = None
        self._probe: HandoverProbe | None = None

    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the device can run the node, natively or on the numpy reference."""
        found = why_host_keeps(graph, node) if uses_state(node) else host_reason(node, "cpu")
        if found is not None:
            return found
        for value in (*node.used, *node.outputs):
            type = graph.type(value)
            if not type.is_static:
                return f"shape {list(type.shape)} is dynamic; cpu compiles exact shapes"
            if type.dtype == "string":
                return "cpu has no memory for strings"
        return None

    def kernel_note(self, graph: Graph, node: Node) -> str:
        """Return "numpy reference" and why, when no native kernel runs the node."""
        if is_alias(graph, node):
            return ""
        reason = kernel_reason(graph, node)
        return f"{REFERENCE}: {reason}" if reason else ""

    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph."""
        return self.compile_with_progress(graphs, no_progress)

    def compile_with_progress(
        self, graphs: Sequence[Graph], progress: Progress
    ) -> list[Executable]:
        """Return an executable for each graph; tell how many kernels are compiled."""
        lowered, self._lowered = self._lowered, None
        return [*self._compiled([(graph, None) for graph in graphs], lowered, progress)]

    def polymorphic_reason(self, graph: Graph, node: Node) -> str | None:
        """Return why a node of a graph with symbols has no kernel for every shape, else None."""
        if found := host_reason(node, "cpu"):
            return found
        if any(graph.type(value).dtype == "string" for value in (*node.used, *node.outputs)):
            return "cpu has no memory for strings"
        from trireme.devices.cpu.compile.open_sizes import open_sizes

        if self._opened is None or self._opened.graph is not graph:
            self._opened = open_sizes(graph)
        return self._opened.reason(node)

    def compile_polymorphic(self, graphs: Sequence[Graph]) -> list[PolymorphicExecutable]:
        """Return an executable for each graph, which serves every shape.

        Errors: CompileError
        """
        from trireme.devices.cpu.compile.open_sizes import open_sizes

        return [*self._compiled([(graph, open_sizes(graph)) for graph in graphs])]

    def _compiled(
        self,
        graphs: Sequence[tuple[Graph, OpenSizes | None]],
        lowered: LoweredGroups | None = None,
        progress: Progress = no_progress,
    ) -> list[CpuExecutable]:
        """Return the executables of graphs; constants are packed while kernels are compiled."""
        from concurrent.futures import ThreadPoolExecutor

        how = self.isa, self.threads, self.winograd, self._jit.recipes, lowered
        with self._jit.ahead() as ahead:
            self._native.begin(ahead)
            programs = [
                build(graph, *how, lowered_code=ahead.begin, opened=opened)
                for graph, opened in graphs
            ]
            codes = [code for program in programs for code in program.codes]
            with ThreadPoolExecutor(1, "trireme-pack") as pool:
                packing = [pool.submit(pack, program) for program in programs]
                self._native.load(ahead)
                self._jit.addresses(codes, progress, ahead)
            packed = [one.result() for one in packing]
        with self._server.still() if self._server else nullcontext():
            return [CpuExecutable(one, self._jit, self._pool, self._server) for one in packed]

    def cost_features(self, graph: Graph) -> list[KernelCost]:
        """Return the kernels that the graph is lowered to; the next `compile` uses them."""
        lowered = LoweredGroups(graph)
        recipes = self._jit.recipes
        program = build(graph, self.isa, self.threads, self.winograd, recipes, lowered)
        self._lowered = lowered
        return cost_features_of(program, self.isa, self.threads, relative_time(self.isa))

    def core_latency(self) -> CoreLatency | None:
        """Return what passing data between its threads costs now, measured in a millisecond.

        None with one thread, of an instance (whose calls another thread runs), and while a core is
        given to other work.
        """
        if self.threads < 2 or self._server is not None:
            return None
        if self._probe is None:
            self._probe = HandoverProbe(self._jit, self._pool)
        return self._probe.measure()

    def finish(self) -> None:
        """Return when no call is under way in an instance's thread; others return when over."""
        if self._server is not None:
            with self._server.still():
                pass

    def close(self) -> None:
        """End the threads."""
        if self._server is not None:
            self._server.close()
        self._pool.close()


def _spec(isa: Isa, threads: int, instance: DeviceInstance, cores: Sequence[int]) -> DeviceSpec:
    """Describe the device by rule of thumb; calibration measures better."""
    flops = 2 * isa.lanes * isa.fma_per_cycle * 3e9 * threads
    handover_s = _HANDOVER_S if instance.number else 0.0
    return DeviceSpec(
        name=instance.name,
        description=f"{threads} threads of {cpu_name()}, {isa.name}",
        flops={"float32": flops, "int8": flops, "uint8": flops},
        bandwidth=15e9 * min(threads, 2),
        launch_s=4e-6 + handover_s,
        resource_group=instance.name,
        cores=frozenset(cores),
        handover_s=handover_s,
    )


def open_cpu(options: CpuOptions, instance: DeviceInstance) -> CpuDevice:
    """Open the cpu device, or an instance of it: "cpu#1", with threads and cores of its own.

    Errors: DeviceError
    """
    name = instance.name
    if options.cores is not None and not instance.number:
        raise DeviceError(f"{name}: cores are given to an instance", fix=f'devices=["{name}#1"]')
    mine = share_of(instance, options.cores) if instance.number else all_cores()
    count = len(mine) if options.threads is None else options.threads
    if not 1 <= count <= MOST_THREADS:
        raise DeviceError(f"cpu: {count} threads, expected 1 to {MOST_THREADS}")
    if instance.number and (count > len(mine) or options.futex is False):
        raise too_many(name, count, mine) if count > len(mine) else no_instances(name)
    if count > len(mine):
        _warn_of_turns(count, len(mine))
    chosen = choose_isa(options.isa)
    folder = cache_folder("cpu") if options.cache_dir is None else Path(options.cache_dir)
    jit = Jit(chosen, ObjectCache(None if folder == NO_CACHE else folder))
    spins = SPINS if options.spins is None else options.spins
    cores = mine if instance.number else ()
    futex = has_futex() if options.futex is None else options.futex
    native = LaterNative(jit, futex)
    pool = StepPool(native, count, spins=spins, futex=futex, cores=cores)
    server = Server(native, name, mine, spins) if instance.number else None
    spec = _spec(chosen, count, instance, mine)
    return CpuDevice(chosen, spec, jit, native, pool, winograd=options.winograd, server=server)


@functools.cache
def _warn_of_turns(threads: int, cores: int) -> None:
    """Say once that there are more threads than cores."""
    _log.warning("cpu: %d threads take turns on %d cores, and are not faster", threads, cores)
