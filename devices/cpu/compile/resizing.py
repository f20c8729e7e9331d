"""What a shape decides of a polymorphic program: words, chunks and memory, by groups of steps.

Steps that are alike have equal sizes at every shape, so one of them is asked for all. It is asked
again only when a symbol that it depends on has another size. Its answers become code
(recording.py). What did not change is the same object in the tables of both shapes, so a call
writes the rest alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from trireme.devices.cpu.codegen.aligned_memory import as_kernels_read
from trireme.devices.cpu.compile.alike_steps import (
    LOCAL_BYTES,
    MOST_WAYS,
    NOTHING,
    AlikeSteps,
    RowsByTurn,
    SizedRow,
    row_of,
)
from trireme.devices.cpu.compile.one_shape import sized_for
from trireme.devices.cpu.compile.recording import NotRecorded, SizeRecording
from trireme.devices.cpu.compile.region import RegionProgram
from trireme.devices.cpu.compile.sized_values import SizedType, SizedValues, UnreadValue
from trireme.devices.cpu.kernels.lowering import Step
from trireme.devices.cpu.runtime.slot_places import slot_places
from trireme.ir.alike import likeness
from trireme.ir.decided import DecidedValues
from trireme.ir.dim_values import (
    NumberRows,
    Numbers,
    evaluator,
    evaluator_of_many,
    most_bytes,
    picker,
)
from trireme.ir.dims import symbols_of
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.support.dtypes import Array
from trireme.support.errors import CompileError, TriremeError

_MOST_KEPT_BYTES = 1 << 16
"""The most bytes of operands that a shape keeps; more are computed when the shape comes again."""


@dataclass(eq=False)
class _SymbolGroups:
    """The groups whose sizes follow from the same symbols.

    pick: takes the sizes of these symbols; key: those that the groups were sized at
    """

    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    groups: list[AlikeSteps] = field(default_factory=list)
    key: Numbers | None = None


@dataclass(frozen=True, eq=False)
class CpuTables:
    """What one shape decides.

    sizes: of the symbols; rows: by group of alike steps
    room: the bytes of each slot of the scratch memory; scratch_bytes: of all
    decided: the operands that shapes decide, at aligned addresses and in the order of
        `Resizer.decided`; None where they are too large to keep
    block: where the rows are, of shape `turn` of a block of shapes that were expected
    """

    sizes: Numbers
    rows: tuple[SizedRow, ...]
    room: Numbers
    scratch_bytes: int
    local_bytes: int
    decided: tuple[Array, ...] | None
    block: RowsByTurn | None = None
    turn: int = 0


class Resizer:
    """Sizes the steps of a program, shape after shape; for one caller at a time.

    contents: what shapes decide; its names are the symbols, in the order in which sizes are given
    group_of: by step, the number of its group
    decided: the operands that shapes decide
    below: by slot of the scratch memory, the slots below it
    resized: how many steps Python sized, of all shapes
    recordings: how many steps are recorded at a shape; each takes a millisecond
    most_ways: how often a step is recorded, of all shapes
    """

    def __init__(
        self,
        program: RegionProgram,
        steps: Sequence[Step],
        contents: DecidedValues,
    ) -> None:
        self.resized = 0
        self._contents, names = contents, contents.names
        source = program.graph
        kept = tuple(n for n in source.nodes if not program.decided.issuperset(n.outputs))
        self.recordings, self._left, self._is_empty = 4, 0, False
        self.most_ways = MOST_WAYS
        self._source = source.values
        highs = [source.symbols.get(name, (0, None))[1] for name in names]
        self._most = [1 << 40 if high is None else high for high in highs]
        self._values = SizedValues(source.values, self._value_at)
        self._graph = replace(source, nodes=kept, values=self._values, symbols={})
        self._sizes: Numbers = ()
        self._dims: Numbers = ()
        dims = dict.fromkeys(dim for value in source.values.values() for dim in value.shape)
        self._numbers = evaluator(dims, names)
        self._numbers_of_many = evaluator_of_many(dims, names)
        self._is_open = [isinstance(dim, str) for dim in dims]
        self._pick_open = picker([k for k, is_open in enumerate(self._is_open) if is_open])
        places: dict[object, int] = {dim: k for k, dim in enumerate(dims)}
        types: dict[TensorType, SizedType] = {}
        self._types = {
            value.id: types.setdefault(value.type, SizedType(value.type, places))
            for value in source.values.values()
            if not value.is_constant
        }
        values = ([m for m in slot.members if isinstance(m, int)] for slot in program.slots)
        types_in = (dict.fromkeys(map(source.type, members)) for members in values)
        slots = [list(types) for types in types_in]
        self._slot_bytes = most_bytes(slots, names)
        self._slot_bytes_of_many = most_bytes(slots, names, of_many=True)
        self.below = [slot.below for slot in program.slots]
        self._temps = [
            (k, program.temps[member])
            for k, slot in enumerate(program.slots)
            for member in slot.members
            if isinstance(member, str)
        ]
        reads = (o for step in steps for o in step.reads if isinstance(o, int))
        self.decided = tuple(dict.fromkeys(o for o in reads if o in program.decided))
        self._laid: dict[int, tuple[Array, Array]] = {}
        self._group_steps(source, steps)

    def _group_steps(self, graph: Graph, steps: Sequence[Step]) -> None:
        """Find the groups of alike steps, and where their words begin."""
        told = {value: self._contents.key(value) for value in self._contents.ids}
        groups: dict[Hashable, AlikeSteps] = {}
        parts: dict[Numbers, _SymbolGroups] = {}
        order, places = [], dict[tuple[int, ...], int]()
        for step in steps:
            place = places[step.nodes] = places.get(step.nodes, -1) + 1
            nodes = [graph.node(node) for node in step.nodes]
            before = dict.fromkeys(
                made.id
                for node in nodes
                for value in node.used
                if (made := graph.producer(value)) is not None and made.id not in step.nodes
            )
            seen = [*(graph.node(node) for node in before), *nodes]
            symbols = tuple(code.symbol for code in step.codes)
            key = (place, len(before), symbols, likeness(graph, seen, told))
            if key not in groups:
                groups[key] = AlikeSteps(step, len(groups))
                own = self._symbols(graph, seen)
                parts.setdefault(own, _SymbolGroups(picker(own))).groups.append(groups[key])
            order.append(groups[key].number)
        self._groups, self._parts = list(groups.values()), list(parts.values())
        self._rows = [NOTHING] * len(groups)
        self.group_of = np.array(order, np.int64)

    def _symbols(self, graph: Graph, nodes: Sequence[Node]) -> Numbers:
        """Return the places of the symbols that decide the types of some nodes' values."""
        values = {value for node in nodes for value in (*node.used, *node.outputs)}
        symbols = {n for v in values for dim in graph.type(v).shape for n in symbols_of(dim)}
        symbols = symbols.union(*map(self._contents.symbols, values & self._contents.ids))
        return tuple([k for k, name in enumerate(self._contents.names) if name in symbols])

    def at(self, sizes: Numbers, has_decided: bool = True) -> CpuTables:
        """Return the tables of a shape.

        has_decided: whether they have the operands that shapes decide, where these are small
        Errors: CompileError, if the kernels do not serve it
        """
        numbers = self._numbers(*sizes)
        least = min(self._pick_open(numbers), default=1)
        if least < 0:
            raise CompileError("a dimension is below 0 in this shape")
        self._is_empty = least == 0
        self._values.clear()
        self._left = self.recordings
        self._sizes, self._dims = sizes, numbers
        for part in self._parts:
            key = part.pick(sizes)
            if key != part.key:
                part.key = None
                for group in part.groups:
                    self._rows[group.number] = self._sized(group, numbers)
                part.key = key
        room, scratch_bytes = self._room(sizes)
        decided = self.decided_of(sizes) if has_decided else ()
        is_kept = has_decided and sum([one.nbytes for one in decided]) <= _MOST_KEPT_BYTES
        return CpuTables(
            sizes,
            tuple(self._rows),
            room,
            scratch_bytes,
            max([row[LOCAL_BYTES] for row in self._rows], default=0),
            decided if is_kept else None,
        )

    def most_shapes(self, sizes: Numbers, growth: Numbers) -> int:
        """Return how many shapes there are from some sizes on before one is beyond its bound."""
        rows = zip(sizes, growth, self._most, strict=True)
        return min([(most - size) // step + 1 for size, step, most in rows if step > 0])

    @property
    def groups(self) -> Sequence[AlikeSteps]:
        """The groups of alike steps, by number."""
        return self._groups

    def groups_by(self, which: Sequence[bool]) -> list[AlikeSteps]:
        """Return the groups whose sizes follow from one of some symbols at least."""
        return [group for part in self._parts if any(part.pick(which)) for group in part.groups]

    def numbers_of_many(self, sizes: NumberRows) -> NumberRows:
        """Return the dimensions at many shapes, as the code of many of a group takes them."""
        return self._numbers_of_many(*sizes)

    def open_dims(self, numbers: NumberRows) -> NumberRows:
        """Return those of all dimensions that differ from shape to shape."""
        found: NumberRows = self._pick_open(numbers)
        return found

    def decided_grow(self, which: Sequence[bool]) -> list[bool]:
        """Return of each operand in `decided` whether one of some symbols decides it."""
        names = {name for name, is_one in zip(self._contents.names, which, strict=True) if is_one}
        return [not names.isdisjoint(self._contents.symbols(value)) for value in self.decided]

    @property
    def has_temps(self) -> bool:
        """Whether steps have memory whose size their Python tells, shape by shape."""
        return bool(self._temps)

    def most_room(self, sizes: NumberRows, each: Sequence[CpuTables]) -> Numbers:
        """Return the bytes of each slot of the scratch memory that serve many shapes.

        each: their tables, if the program `has_temps`
        """
        most = [int(np.max(nbytes)) for nbytes in self._slot_bytes_of_many(*sizes)]
        rooms = (tables.room for tables in each)
        return tuple([max(all_of_slot) for all_of_slot in zip(most, *rooms, strict=True)])

    def decided_at(self, tables: CpuTables) -> tuple[Array, ...]:
        """Return the operands that shapes decide, in the order of `decided`."""
        return self.decided_of(tables.sizes) if tables.decided is None else tables.decided

    def decided_of(self, sizes: Numbers) -> tuple[Array, ...]:
        """Return `decided_at` the sizes of the symbols."""
        array = self._contents.array
        return tuple([self._aligned(value, array(value, sizes)) for value in self.decided])

    def _sized(self, group: AlikeSteps, numbers: Numbers) -> SizedRow:
        """Return the sizes of a step, from recorded code where these numbers go its way."""
        if self._is_empty:  # what is recorded is of shapes with elements
            self.resized += 1
            return row_of(sized_for(group.step, self._graph))
        row = group.row(numbers)
        if row is None and self._left and group.is_recorded and len(group.codes) < self.most_ways:
            self._left -= 1
            self.resized += 1
            self._record(group, numbers)
            row = group.row(numbers)
        if row is None:
            self.resized += 1
            row = row_of(group.step.sized(self._graph))
        return row

    def _record(self, group: AlikeSteps, numbers: Numbers) -> None:
        """Record the sizes of a step on the way that these numbers go."""
        recording = SizeRecording()
        dims = tuple(
            recording.number(k, number) if is_open else number
            for k, (number, is_open) in enumerate(zip(numbers, self._is_open, strict=True))
        )
        made = partial(self._noted_value, dims)
        try:
            sized = group.step.sized(replace(self._graph, values=SizedValues(self._source, made)))
            row = row_of(sized)
            code, of_many = recording.finish(row), recording.finish_of_many(row)
        except NotRecorded:
            group.is_recorded = False
            return
        except TriremeError:  # the kernels do not serve this shape
            return
        group.codes.append(code)
        group.of_many.append(of_many)

    def _noted_value(self, dims: Numbers, value: Value) -> Value:
        """Return a value at some dimensions, which may note what is done to them."""
        if value.is_constant:
            return value
        type = self._types[value.id].noted(dims)
        if value.id in self._contents.ids:
            return UnreadValue(value, type)
        return Value(value.id, value.name, type)

    def _value_at(self, value: Value) -> Value:
        """Return a value at the sizes that are asked for."""
        if value.is_constant:
            return value
        decided = value.id in self._contents.ids
        data = self._contents.array(value.id, self._sizes) if decided else None
        return Value(value.id, value.name, self._types[value.id].at(self._dims), data)

    def _room(self, sizes: Numbers) -> tuple[Numbers, int]:
        """Return the bytes of each slot of the scratch memory, and of all."""
        room: Numbers = self._slot_bytes(*sizes)
        if self._temps:
            most = list(room)
            for slot, temp in self._temps:
                most[slot] = max(most[slot], temp.bytes_at(self._graph))
            room = tuple(most)
        return room, slot_places(room, self.below)[1]

    def _aligned(self, value: int, data: Array) -> Array:
        """Return data as kernels read it; the same array while the data is the same."""
        laid = self._laid.get(value)
        if laid is None or laid[0] is not data:
            laid = self._laid[value] = data, as_kernels_read(data)
        return laid[1]
