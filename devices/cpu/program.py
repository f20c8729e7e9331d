"""A region of a graph as one program: steps in order, memory for what flows between them.

`build` lowers each node to native steps, or to a step on the numpy reference where there is no
kernel, and plans the scratch memory. `Program.bind` turns it into a table of addresses that native
code walks; runs of native steps between two reference steps are one call each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from trireme.device import BoundCall, Buffer, Done, Event, Executable, NodeSpan
from trireme.devices.cpu import runtime
from trireme.devices.cpu.fuse import Group, grouped, lower_group
from trireme.devices.cpu.homes import find_homes, is_alias
from trireme.devices.cpu.jit import Code, Jit
from trireme.devices.cpu.kernels import Context, Fault, Operand, Step, Temp, begin, finish
from trireme.devices.cpu.listing import listings
from trireme.devices.cpu.memory import address, aligned_copy, view
from trireme.devices.cpu.pool import Call, Pool
from trireme.devices.cpu.target import Isa
from trireme.dtypes import Array
from trireme.errors import InternalError, RunError
from trireme.graph import Graph, Node
from trireme.interpret import evaluate
from trireme.mapped import release
from trireme.memory import LiveRange, pack

REFERENCE = "numpy reference"
_POLL_S = 2e-3
_WAKE_S = 1e-4
"""Work for workers, in estimated seconds, that makes waking them worth while."""


@dataclass(frozen=True, eq=False)
class ReferenceStep:
    """A node that numpy runs between native steps."""

    node: Node

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The values it reads."""
        return self.node.used

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The values it writes."""
        return self.node.outputs


Item = Step | ReferenceStep


@dataclass(frozen=True)
class Program:
    """What `build` makes: everything about a region but addresses."""

    graph: Graph
    items: tuple[Item, ...]
    symbols: tuple[str, ...]
    homes: Mapping[int, int]
    """The value in whose memory each value lies; itself where it has memory of its own."""
    offsets: Mapping[int | str, int]
    """Byte offsets in the scratch memory, by value or temp."""
    scratch_bytes: int
    local_bytes: int
    kernels: Mapping[int, str]
    constants: Mapping[int, Array] = field(default_factory=dict)
    """Constants by the identity of the array that steps name; aligned and contiguous."""

    @property
    def codes(self) -> tuple[Code, ...]:
        """The kernels, in the order of the steps."""
        return tuple(item.code for item in self.items if isinstance(item, Step))


def build(graph: Graph, isa: Isa, threads: int, winograd: bool = True) -> Program:
    """Lower a graph to a program."""
    context = Context(graph, isa, threads, winograd)
    homes, copies = find_homes(graph)
    items: list[Item] = []
    kernels: dict[int, str] = {}
    for group in grouped(graph):
        if len(group.nodes) > 1 or not is_alias(graph, group.node):
            made = _lower(context, group)
        elif group.node.id in copies:
            made = [_copy_step(context, group.node, *copies[group.node.id])]
        else:
            kernels[group.node.id] = "alias"
            continue
        items += made
        kernels |= {node.id: _kernel_name(made) for node in group.nodes}
    offsets, nbytes = _place(graph, items, homes)
    constants = _constants(items)
    _release(graph, constants)
    return Program(
        graph, tuple(items), tuple(i.code.symbol for i in items if isinstance(i, Step)),
        homes, offsets, nbytes,
        max((i.local_bytes for i in items if isinstance(i, Step)), default=0),
        kernels, constants,
    )  # fmt: skip


def _kernel_name(items: Sequence[Item]) -> str:
    names = dict.fromkeys(i.code.name for i in items if isinstance(i, Step))
    return " + ".join(names) or REFERENCE


def _lower(context: Context, group: Group) -> list[Item]:
    if not group.native:
        return [ReferenceStep(group.node)]
    nodes = tuple(node.id for node in group.nodes)
    return [replace(step, nodes=nodes) for step in lower_group(context, group)]


def _copy_step(context: Context, node: Node, source: int, target: int) -> Step:
    nbytes = context.type(source).nbytes
    fn, (x, y), _, _ = begin(f"copy_{nbytes}", context.isa, 2)
    fn.line(f"call void @llvm.memcpy.p0.p0.i64({y}, {x}, i64 {nbytes}, i1 false)")
    fn.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    return Step(
        finish(fn), (context.operand(source),), (target,), seconds=nbytes / 1e10, nodes=(node.id,)
    )


def _place(
    graph: Graph, items: Sequence[Item], homes: Mapping[int, int]
) -> tuple[dict[int | str, int], int]:
    """Return offsets in the scratch memory of what is neither input, output nor constant."""
    outside = {*graph.inputs, *graph.outputs}
    spans: dict[int | str, tuple[int, int, int]] = {}
    for position, item in enumerate(items):
        for operand in (*item.reads, *item.writes):
            key: int | str
            if isinstance(operand, Temp):
                key, nbytes = operand.key, operand.nbytes
            elif isinstance(operand, int) and homes[operand] not in outside:
                if graph.values[operand].is_constant:
                    continue
                key, nbytes = homes[operand], graph.type(homes[operand]).nbytes
            else:
                continue
            first = spans[key][0] if key in spans else position
            spans[key] = (first, position, nbytes)
    keys = list(spans)
    packing = pack([LiveRange(k, *spans[key]) for k, key in enumerate(keys)])
    return {key: packing.offsets[k] for k, key in enumerate(keys)}, packing.nbytes


def _constants(items: Iterable[Item]) -> dict[int, Array]:
    """Return aligned, contiguous constants by the identity of the array that a step names."""
    found: dict[int, Array] = {}
    for item in items:
        for operand in item.reads:
            if isinstance(operand, np.ndarray) and id(operand) not in found:
                aligned = operand.ctypes.data % 64 == 0 and operand.flags.c_contiguous
                found[id(operand)] = operand if aligned else aligned_copy(operand)
    return found


def _release(graph: Graph, constants: Mapping[int, Array]) -> None:
    """Give back the pages of weights that were packed; those that kernels read in place stay."""
    for value in graph.values.values():
        if value.data is not None and constants.get(id(value.data)) is not value.data:
            release(value.data)


class CpuExecutable(Executable):
    """A compiled program; immutable, shared by sessions."""

    def __init__(self, program: Program, jit: Jit, pool: Pool) -> None:
        self._program, self._pool = program, pool
        native = [item for item in program.items if isinstance(item, Step)]
        found = jit.addresses([step.code for step in native])
        self._jit = jit
        self._code = [found[symbol] for symbol in program.symbols]
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
        steps = (item for item in self._program.items if isinstance(item, Step))
        return listings(self._program.graph, steps, self._jit, form)

    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> BoundCall:
        """Return a call on these places: the graph's inputs in order, then its outputs."""
        graph = self._program.graph
        ids = (*graph.inputs, *graph.outputs)
        if len(args) != len(ids):
            raise InternalError(f"cpu: {len(args)} buffers bound, the graph has {len(ids)}")
        if self.scratch_bytes and (scratch is None or scratch.nbytes < self.scratch_bytes):
            raise InternalError(f"cpu: scratch memory of {self.scratch_bytes} bytes is missing")
        return _Bound(self._program, self._code, self._pool, args, scratch)


class _Bound:
    """A program on memory: tables of steps and pointers, and closures for reference steps."""

    def __init__(
        self, program: Program, code: Sequence[int], pool: Pool, args: Sequence[Buffer],
        scratch: Buffer | None,
    ) -> None:  # fmt: skip
        self._program, self._code, self._pool = program, code, pool
        self._keep = (args, scratch)
        graph = program.graph
        self._buffers: dict[int, Buffer] = {}
        self._faults: list[tuple[Fault, Array]] = []
        again = []  # outputs that are inputs, constants or listed twice
        for value, buffer in zip((*graph.inputs, *graph.outputs), args, strict=True):
            if value in self._buffers or graph.values[value].is_constant:
                again.append((value, buffer))
            else:
                self._buffers[value] = buffer
        self._parts = list(self._segments())
        self._copies = [self._copy(value, buffer) for value, buffer in again]
        calls = [part.run for part in self._parts] + self._copies
        calls += [self._check] if self._faults else []
        self.run: Callable[[], None] = calls[0] if len(calls) == 1 else _in_order(calls)

    def launch(self, profile: bool = False) -> Event:
        """Run the program; it is complete when this returns."""
        if profile:
            return Done(self._profiled())
        self.run()
        return _DONE

    def _profiled(self) -> list[NodeSpan]:
        spans = [span for part in self._parts for span in part.profile()]
        for call in self._copies:
            call()
        self._check()
        return spans

    def _check(self) -> None:
        """Raise what the kernels found wrong; their results mean nothing then."""
        for fault, words in self._faults:
            wrong, number = words.tolist()
            words[:] = 0
            if wrong:
                raise RunError(fault.message(number))

    def _copy(self, value: int, target: Buffer) -> Callable[[], None]:
        source, place = self._array(value), view(target, self._program.graph.type(value))

        def call() -> None:
            place[...] = source

        return call

    def _segments(self) -> Iterable[_Native | _Reference]:
        """Yield runs of native steps and single reference steps, in order."""
        native: list[tuple[Step, int]] = []
        code = iter(self._code)
        for item in self._program.items:
            if isinstance(item, Step):
                native.append((item, next(code)))
                continue
            if native:
                yield _Native(self._pool, native, self._pointers(native))
                native = []
            yield self._reference(item.node)
        if native:
            yield _Native(self._pool, native, self._pointers(native))

    def _pointers(self, steps: Sequence[tuple[Step, int]]) -> list[list[int]]:
        return [[self._address(o) for o in (*step.reads, *step.writes)] for step, _ in steps]

    def _reference(self, node: Node) -> _Reference:
        graph = self._program.graph
        inputs = [None if i is None else self._array(i) for i in node.inputs]
        outputs = [self._array(i) for i in node.outputs]

        def call() -> None:
            for out, result in zip(outputs, evaluate(graph, node, inputs), strict=True):
                out[...] = result

        return _Reference(node.id, call)

    def _buffer(self, value: int) -> Buffer:
        home = self._program.homes[value]
        if home in self._buffers:
            return self._buffers[home]
        scratch = self._keep[1]
        if scratch is None:
            raise InternalError(f"cpu: %{value} has no memory")
        nbytes = self._program.graph.type(home).nbytes
        return scratch.at(self._program.offsets[home], nbytes)

    def _array(self, value: int) -> Array:
        constant = self._program.graph.values[value].data
        if constant is not None:
            return constant
        return view(self._buffer(value), self._program.graph.type(value))

    def _address(self, operand: Operand) -> int:
        if isinstance(operand, np.ndarray):
            where: int = self._program.constants[id(operand)].ctypes.data
            return where
        if isinstance(operand, Temp):
            scratch = self._keep[1]
            if scratch is None:
                raise InternalError(f"cpu: temp {operand.key} has no memory")
            return address(scratch) + self._program.offsets[operand.key]
        if isinstance(operand, Fault):
            words = np.zeros(2, np.int64)
            self._faults.append((operand, words))
            return words.ctypes.data
        return address(self._buffer(operand))


class _Native:
    """Native steps that run one after another: one call of the pool."""

    def __init__(
        self, pool: Pool, steps: Sequence[tuple[Step, int]], pointers: Sequence[Sequence[int]]
    ) -> None:
        self._pointers = np.array([p for row in pointers for p in row] or [0], np.int64)
        self._steps: list[Step] = []  # by row of the table
        rows: list[tuple[int, ...]] = []
        at, since_poll = self._pointers.ctypes.data, 0.0
        for (step, code), row in zip(steps, pointers, strict=True):
            since_poll += step.seconds
            polls = since_poll > _POLL_S
            since_poll = 0.0 if polls else since_poll
            for base in range(0, step.chunks, runtime.MOST_CHUNKS):
                chunks = min(step.chunks - base, runtime.MOST_CHUNKS)
                rows.append((code, at, chunks, base, polls))
                self._steps.append(step)
            at += 8 * len(row)
        table = np.zeros((len(rows), runtime.STEP_WORDS), np.int64)
        table[:, :5] = rows
        self._stamps = np.zeros((len(rows), 2), np.int64)
        self.run = pool.bind(self._call(table, None))
        self._stamped = pool.bind(self._call(table, self._stamps))

    def _call(self, table: Array, stamps: Array | None) -> Call:
        shared = [step.seconds for step in self._steps if step.chunks > 1]
        polls = bool(table[:, runtime.STEP_POLL].any())
        wakes = sum(shared) > _WAKE_S
        return Call(table, shared=bool(shared), wakes=wakes, polls=polls, stamps=stamps)

    def profile(self) -> Iterable[NodeSpan]:
        """Run, and yield when each step ran."""
        self._stamped()
        for step, (start_ns, end_ns) in zip(self._steps, self._stamps.tolist(), strict=True):
            yield NodeSpan(step.nodes, step.code.name, start_ns * 1e-9, end_ns * 1e-9)


@dataclass(frozen=True)
class _Reference:
    """A node that numpy runs."""

    node: int
    run: Callable[[], None]

    def profile(self) -> Iterable[NodeSpan]:
        """Run, and yield when it ran."""
        start = perf_counter()
        self.run()
        yield NodeSpan((self.node,), REFERENCE, start, perf_counter())


def _in_order(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for call in calls:
            call()

    return run


_DONE = Done()
