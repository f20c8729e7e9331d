"""Kernels as the rest of the device sees them, and the table of lowerings that makers fill.

A lowering turns one node (or several fused) into Steps: a kernel's code, the operands it reads and
writes, and the number of chunks it is cut into. Chunks may run on any thread in any order. So the
cut never changes the order of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Concatenate

import numpy as np

from trireme.backend.kernel_table import KernelTable
from trireme.devices.cpu.codegen.ir import Function, Value
from trireme.devices.cpu.codegen.kernel_cache import Code, KernelCache, P, R, code_of
from trireme.devices.cpu.codegen.target import Isa
from trireme.ir.graph import Graph, Node, TensorType
from trireme.support.dtypes import Array
from trireme.support.errors import InternalError
from trireme.support.mapped import release
from trireme.support.records import dataclass

ALONE_S = 1.5e-6
"""A step that takes less is one chunk: handing work over and back costs 0.2 to 0.8 us."""
_HAND_S = 5e-8
"""Seconds of a chunk beside its work."""


@dataclass(frozen=True)
class Temp:
    """Memory that lives from one step of a node to another."""

    key: str
    nbytes: int


@dataclass(frozen=True)
class At:
    """Memory of a value or a Temp from some byte on."""

    of: int | Temp
    offset: int


@dataclass(frozen=True, eq=False)
class KernelFault:
    """A place where a kernel reports wrong data: two i64, a flag and a number.

    message: the sentence of the RunError that the run ends with, made of the number
    """

    message: Callable[[int], str]


@dataclass(frozen=True, eq=False)
class InPlace:
    """A constant that a kernel reads where it lies, by its strides and at any alignment.

    Nothing of a mapped file is copied. Unread parts take no memory.
    """

    data: Array


@dataclass(frozen=True, eq=False)
class Packed:
    """A constant in a kernel's layout, packed when all code is made.

    Compiling takes memory that is free again by then.
    """

    nbytes: int
    make: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class Extents:
    """Sizes that a polymorphic kernel reads: int64 words, from a place on."""

    words: Array
    at: int


@dataclass(frozen=True)
class StateMemory:
    """The memory of a state, which stays from run to run."""

    state: str


CONSTANTS = (np.ndarray, Packed)
"""Operands that a step reads and nobody writes."""
Operand = int | Array | Packed | InPlace | Temp | At | KernelFault | Extents | StateMemory
"""A place whose address a kernel gets: a value by id, packed constants, a Temp, a KernelFault..."""
_OPERANDS = (int, *CONSTANTS, InPlace, Temp, At, KernelFault, Extents, StateMemory)


ELEMENTWISE, ELEMENTWISE_Q8 = "elementwise_f32", "elementwise_q8"
"""Families of kernels that take their elements one by one: on floats, and on stored integers."""


@dataclass(frozen=True)
class Sized:
    """A step for one shape: its words, chunks and seconds, as in `Step`.

    chunks: 0 where there is nothing to do
    variant: which of the step's codes runs
    arrays: tables of the shape, operands between the words and what the step reads
    """

    words: tuple[int, ...]
    chunks: int = 1
    seconds: float = 1e-5
    local_bytes: int = 0
    columns: int = 1
    variant: int = 0
    arrays: tuple[Array, ...] = ()


@dataclass(frozen=True, eq=False)
class Step:
    """One native step.

    reads, writes: addresses are passed in this order, reads first
    chunks: how often the kernel is called, with chunk = 0, 1, ...
    local_bytes: memory of its own that each thread needs meanwhile
    seconds: an estimate for one thread, within a factor of two where it matters: it decides the
        number of chunks, whether workers are woken, and how often Python looks after signals
    columns: parts of the columns (output channels) that chunks of the same rows do; 1 where a chunk
        does all of its rows, or where that is not known
    stores_s: of the seconds, those in which outputs are finished and stored, where that is known
    family: steps of kernels that grow alike, which calibration fits together
    is_copy: whether it copies what it reads byte for byte, so that it is left out in place
    size: gives what a shape decides, where sizes vary; then the words are an operand before those
        that the step reads
    variants: other codes of such a step, for other ranges of sizes
    """

    code: Code
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    chunks: int = 1
    local_bytes: int = 0
    seconds: float = 1e-5
    nodes: tuple[int, ...] = ()
    columns: int = 1
    stores_s: float = 0.0
    family: str = ELEMENTWISE
    is_copy: bool = False
    size: Callable[[Graph], Sized] | None = None
    variants: tuple[Code, ...] = ()

    def __post_init__(self) -> None:
        operands: tuple[object, ...] = (*self.reads, *self.writes)
        for operand in operands:
            if not isinstance(operand, _OPERANDS):
                kind = type(operand).__name__
                raise InternalError(
                    f"{self.code.name}: an operand is a {kind}, neither a value's id nor data"
                )

    @property
    def codes(self) -> tuple[Code, ...]:
        """The code, and its variants."""
        return (self.code, *self.variants)

    def sized(self, graph: Graph) -> Sized:
        """Return what a shape decides.

        Errors: CompileError, if no code serves the shape
        """
        if self.size is None:
            return Sized((), self.chunks, self.seconds, self.local_bytes, self.columns)
        return self.size(graph)

    @property
    def is_dealt_by_columns(self) -> bool:
        """Whether each chunk reads all rows, and makes a part of each."""
        return self.columns == self.chunks > 1


@dataclass(frozen=True, eq=False)
class SizedTemp(Temp):
    """Memory that lives from one step of a node to another.

    nbytes: of a usual shape; bytes_at: of each shape
    """

    bytes_at: Callable[[Graph], int]


def open_step(
    codes: Sequence[Code],
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    size: Callable[[Graph], Sized],
    nodes: tuple[int, ...],
    family: str = ELEMENTWISE,
) -> Step:
    """Return a step for every shape; codes: kernels for different ranges of sizes."""
    code, *variants = codes
    ends = tuple(reads), tuple(writes)
    return Step(code, *ends, nodes=nodes, family=family, size=size, variants=tuple(variants))


@dataclass(frozen=True)
class Context:
    """The surroundings of a lowering: the graph, the instruction set, the number of threads.

    winograd: whether 3x3 convolutions may use Winograd's algorithm
    is_open: whether sizes of the graph vary, and steps serve every shape
    """

    graph: Graph
    isa: Isa
    threads: int
    winograd: bool = True
    is_open: bool = False
    packed: dict[tuple[int, str], Array] = field(default_factory=dict)
    later: dict[tuple[int, str], Packed] = field(default_factory=dict)
    """Constants packed so far, or to be, by value id and layout, so that users share them."""
    recipes: KernelCache | None = None
    """Kernels made before; None to make all anew."""

    def kernel(self, make: Callable[Concatenate[Isa, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Return make(isa, *args), a kernel and numbers; one made before is not made again.

        make: sees nothing that decides about the IR but its arguments, which are plain values
        """
        if self.recipes is None:
            return make(self.isa, *args, **named)
        return self.recipes.kernel(make, *args, **named)

    def type(self, value: int) -> TensorType:
        """Return the type of a value."""
        return self.graph.values[value].type

    def constant(self, value: int) -> Array:
        """Return the data of a constant."""
        data = self.graph.values[value].data
        if data is None:
            raise InternalError(f"%{value} is not a constant")
        return data

    def operand(self, value: int) -> Operand:
        """Return a value as an operand: its data when it is a constant."""
        data = self.graph.values[value].data
        return value if data is None else data

    def pack(self, value: int, layout: str, make: Callable[[], Array]) -> Array:
        """Return a constant in a kernel's layout, made now and once for all its users."""
        key = (value, layout)
        if key not in self.packed:
            self.packed[key] = self._made(value, make)
        return self.packed[key]

    def pack_later(self, value: int, layout: str, nbytes: int, make: Callable[[], Array]) -> Packed:
        """Return a large constant in a kernel's layout as an operand."""
        made = Packed(nbytes, lambda: self._made(value, make))
        return self.later.setdefault((value, layout), made)

    def _made(self, value: int, make: Callable[[], Array]) -> Array:
        made = make()
        data = self.graph.values[value].data
        if data is not None:
            release(data)
        return made


Reason = Callable[[Graph, Node], str | None]
"""Returns the sentence of a refusal, or None."""


@dataclass(frozen=True)
class Rule:
    """The lowering of an op.

    reason: why no kernel runs a node
    open_reason: why none does in a graph whose sizes vary, beside `reason`; None where the rule
        lowers for one shape only
    open_alone: whether it says all by itself, as parameters may be unknown there
    """

    reason: Reason
    lower: Callable[[Context, Node], Sequence[Step]]
    open_reason: Reason | None = None
    open_alone: bool = False


HUGE = 1 << 40
"""No size of a real shape is as large, nor a stride or a number of elements."""


def varies(size: object) -> bool:
    """Whether a number of a plan depends on the shape: sizes that vary are huge in a sample."""
    return isinstance(size, int) and abs(size) >= HUGE


def in_every_shape(graph: Graph, node: Node) -> None:
    """Refuse nothing: the `open_reason` of kernels that serve whatever sizes vary."""


TABLE: KernelTable[Rule] = KernelTable("cpu")
"""The native kernels; filled by the modules that table.py imports."""


def begin(name: str, isa: Isa, operands: int) -> tuple[Function, list[Value], Value, Value]:
    """Return a new kernel function, its operands' addresses, the chunk and the thread's memory."""
    fn = Function(f"{name}__{isa.name}", isa, ["ptr args", "i64 chunk", "ptr local"])
    args, chunk, local = fn.arguments
    pointers = [fn.load("ptr", fn.at(args, i, "ptr"), 8) for i in range(operands)]
    return fn, pointers, chunk, local


def finish(fn: Function) -> Code:
    """Return the code of a kernel function that is written to its end."""
    fn.ret()
    return code_of(fn.name, fn.text())


def native_reason(graph: Graph, node: Node) -> str | None:
    """Return why no native kernel runs the node here, None when one does."""
    rule = TABLE.find(graph, node)
    return TABLE.miss(graph, node) if rule is None else rule.reason(graph, node)


def float_reason(graph: Graph, node: Node) -> str | None:
    """Say why a node cannot run on a float32 kernel; None when all its values are float32."""
    for value in (*node.used, *node.outputs):
        type = graph.type(value)
        if type.quant is not None:
            return f"{node.op} has no native kernel for quantised {type.dtype}"
        if type.dtype != "float32":
            return f"{node.op} has no native kernel for {type.dtype}"
        if not type.elements:
            return f"{node.op} has no native kernel for empty tensors"
    return None


def split_evenly(total: int, most: int) -> tuple[int, int]:
    """Cut `total` into equal parts of at most `most`: returns (size of a part, parts)."""
    parts = -(-total // max(most, 1))
    size = -(-total // parts)
    return size, -(-total // size)


MOST_PARTS = 1 << 14
"""Chunks that a kernel is cut into, but for half as many again: cuts are tried one by one."""


def deal(total: int, seconds: float) -> tuple[int, int]:
    """Cut `total` equal units of work, which take that long together, into chunks.

    Returns the units of a chunk (the last may have fewer) and the number of chunks, which does not
    depend on the threads, so neither does the code: one chunk where threads do not pay, else some
    of about 1 us, longer ones for long steps, and a cut that two threads share evenly.
    """
    if seconds < ALONE_S or total < 2:
        return max(total, 1), 1
    wanted = min(seconds / 1e-6, max(16.0, seconds / 25e-6), MOST_PARTS)
    least, most = max(2, math.ceil(wanted / 2)), max(2, math.floor(wanted * 1.5))

    def length(size: int) -> float:
        chunks = -(-total // size)
        mine = min(-(-chunks // 2) * size, total) / total * seconds
        return mine + chunks * _HAND_S

    sizes = sorted({-(-total // parts) for parts in range(least, most + 1)}, reverse=True)
    size = min(sizes, key=length)
    return size, -(-total // size)


def dims_of(graph: Graph, value: int) -> tuple[int, ...]:
    """Return the sizes of a value's axes."""
    return graph.values[value].type.dims
