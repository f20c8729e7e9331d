"""A small writer of LLVM IR text: values with operators, loops that read like Python's.

    fn = Function("scale_f32__avx2", isa, ["ptr x", "ptr y"])
    for i in fn.range(0, 1024, isa.lanes):
        fn.store(fn.load(isa.vector, fn.at(x, i)) * 2.0, fn.at(y, i))

`fn.range` and `fn.when` emit a loop or a branch around the body that is emitted inside them.
State that a loop carries lives in a `Var`, a stack slot which LLVM promotes to a register. Index
arithmetic on Python ints is done at once, so constant addresses cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from trireme.devices.cpu.codegen.llvm_types import (
    FLOATS,
    element_of,
    lanes_of,
    literal,
    mangled,
    vector,
)
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.codegen.value import Index, Operand, Value, Var, Word, is_int

__all__ = ["Function", "Index", "Operand", "Value", "Var", "Word"]
Plan = TypeVar("Plan")


class Function:
    """One function under construction; `text()` is its IR, with the declarations it needs."""

    def __init__(
        self, name: str, isa: Isa, parameters: Sequence[str], returns: str = "void"
    ) -> None:
        self.name, self.isa, self.returns = name, isa, returns
        self.declarations: set[str] = set()
        self.constants: list[str] = []
        self.words: list[Value] = []
        self.words_at: Value | None = None
        self._parameters = [p.rpartition(" ") for p in parameters]
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    @property
    def arguments(self) -> list[Value]:
        """The parameters as values, in order."""
        return [Value(self, type, f"%{name}") for type, _, name in self._parameters]

    def text(self) -> str:
        """Return the function as LLVM IR, with an attribute group that keeps vectors whole."""
        parameters = ", ".join(
            f"{type} {'noundef ' if type != 'ptr' else ''}%{name}"
            for type, _, name in self._parameters
        )
        body = "\n".join(["entry:", *self._slots, "  br label %start", "start:", *self._lines])
        return "\n".join(
            [
                *self.constants,
                *sorted(self.declarations),
                f"define {self.returns} @{self.name}({parameters}) #0 {{\n{body}\n}}",
            ]
        )

    def known(self, plan: Plan) -> Plan:
        """Return a dataclass or tuple with the values that were read in place of its Words."""
        found: Any = plan
        if isinstance(plan, Word):
            found = self.words[plan.place]
        elif isinstance(plan, tuple):
            found = tuple(map(self.known, plan))
        elif is_dataclass(plan) and not isinstance(plan, type):
            parts = {f.name: self.known(getattr(plan, f.name)) for f in fields(plan)}
            found = replace(plan, **parts)
        return found  # type: ignore[no-any-return]

    # -- instructions -----------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {text}")

    def emit(self, type: str, text: str) -> Value:
        """Emit an instruction and return its result."""
        name = self._name("v")
        self._lines.append(f"  {name} = {text}")
        return Value(self, type, name)

    def slot(self, type: str) -> str:
        """Return the name of a new stack slot."""
        name = self._name("s")
        self._slots.append(f"  {name} = alloca {type}")
        return name

    def address(self, type: str) -> Value:
        """Return the address of a new stack slot."""
        return Value(self, "ptr", self.slot(type))

    def ret(self) -> None:
        """Return from a void function."""
        self.line("ret void")

    def as_value(self, type: str, value: Operand) -> Value:
        """Return an operand as a value of that type."""
        return value if isinstance(value, Value) else Value(self, type, literal(type, value))

    def binary(self, op: str, left: Value, right: Operand) -> Value:
        """Emit add, sub or mul of the operands' kind (integer or float)."""
        kind = "f" if element_of(left.type) in FLOATS else ""
        return self.emit(left.type, f"{kind}{op} {left.type} {left.text}, {left.text_of(right)}")

    def integer(self, op: str, left: Index, right: Index, type: str = "i64") -> Index:
        """Emit an integer instruction such as udiv, urem, and, shl; compute it for constants."""
        if isinstance(left, int) and isinstance(right, int):
            return _FOLD[op](left, right)
        if op == "udiv" and is_int(right, 1):
            return left
        if op == "urem" and is_int(right, 1):
            return 0
        first = self.as_value(right.type if isinstance(right, Value) else type, left)
        return self.emit(first.type, f"{op} {first.type} {first.text}, {first.text_of(right)}")

    def compare(self, relation: str, left: Value, right: Operand) -> Value:
        """Emit icmp or fcmp by the relation: olt, ult... for floats, slt, eq... for integers."""
        op = "fcmp" if element_of(left.type) in FLOATS else "icmp"
        type = vector(lanes_of(left.type), "i1")
        return self.emit(type, f"{op} {relation} {left.type} {left.text}, {left.text_of(right)}")

    def select(self, condition: Value, yes: Operand, no: Operand) -> Value:
        """Emit a choice between two values, lane by lane for a vector condition."""
        known = yes if isinstance(yes, Value) else no
        if not isinstance(known, Value):
            known = self.as_value(vector(lanes_of(condition.type), "float"), yes)
        first, second = self.as_value(known.type, yes), self.as_value(known.type, no)
        return self.emit(known.type, f"select {condition}, {first}, {second}")

    def minimum(self, left: Index, right: Index) -> Index:
        """Return the smaller of two i64."""
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        first = self.as_value("i64", left)
        return self.select(self.compare("slt", first, right), first, right)

    def maximum(self, left: Index, right: Index) -> Index:
        """Return the larger of two i64."""
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right)
        first = self.as_value("i64", left)
        return self.select(self.compare("sgt", first, right), first, right)

    def call(self, type: str, name: str, *arguments: Value, extra: str = "") -> Value:
        """Call an intrinsic or a library function, declaring it."""
        return self.emit(type, self._call(type, name, arguments, extra))

    def call_void(self, name: str, *arguments: Value) -> None:
        """Call a function that returns nothing, declaring it."""
        self.line(self._call("void", name, arguments, ""))

    def _call(self, type: str, name: str, arguments: Sequence[Value], extra: str) -> str:
        types = ", ".join([*(a.type for a in arguments), *extra.split()[:1]])
        self.declarations.add(f"declare {type} @{name}({types})")
        operands = ", ".join([*map(repr, arguments), *([extra] if extra else [])])
        return f"call {type} @{name}({operands})"

    def convert(self, op: str, value: Value, type: str) -> Value:
        """Emit a conversion: bitcast, sitofp, fptosi, sext, trunc..."""
        return self.emit(type, f"{op} {value} to {type}")

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """Return a * b + c, fused where the instruction set can."""
        name = f"llvm.fmuladd.{mangled(a.type)}"
        return self.call(a.type, name, a, self.as_value(a.type, b), self.as_value(a.type, c))

    def unary(self, name: str, value: Value) -> Value:
        """Call a unary float intrinsic: sqrt, fabs, floor, ceil, roundeven..."""
        return self.call(value.type, f"llvm.{name}.{mangled(value.type)}", value)

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a vector with the scalar in every lane."""
        if lanes == 1:
            return value
        type = vector(lanes, value.type)
        first = self.emit(type, f"insertelement {type} poison, {value}, i32 0")
        return self.shuffle(first, first, [0] * lanes)

    def shuffle(self, a: Value, b: Value, order: Sequence[int]) -> Value:
        """Return a vector of the chosen lanes of a then b; -1 leaves a lane undefined."""
        type = vector(len(order), element_of(a.type))
        lanes = ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in order)
        return self.emit(type, f"shufflevector {a}, {b}, <{len(order)} x i32> <{lanes}>")

    def extract(self, value: Value, lane: int) -> Value:
        """Return one lane of a vector."""
        return self.emit(element_of(value.type), f"extractelement {value}, i32 {lane}")

    # -- memory -----------------------------------------------------------------------------

    def at(self, pointer: Value, index: Index, element: str = "float") -> Value:
        """Return the address of an element."""
        if is_int(index, 0):
            return pointer
        offset = self.as_value("i64", index)
        return self.emit("ptr", f"getelementptr {element}, {pointer}, {offset}")

    def opaque(self, value: Value) -> Value:
        """Return the same address or number as one that LLVM cannot tell to be the same."""
        return self.emit(value.type, f'call {value.type} asm "", "=r,0"({value})')

    def load(self, type: str, pointer: Value, align: int = 4) -> Value:
        """Emit a load."""
        return self.emit(type, f"load {type}, {pointer}, align {align}")

    def store(self, value: Value, pointer: Value, align: int = 4) -> None:
        """Emit a store."""
        self.line(f"store {value}, {pointer}, align {align}")

    def prefetch(self, pointer: Value, level: int = 2) -> None:
        """Bring a line of memory into the cache of a level, 1 or 2; any address will do."""
        numbers = (Value(self, "i32", str(n)) for n in (0, 4 - level, 1))  # to read, where, data
        self.call_void("llvm.prefetch.p0", pointer, *numbers)

    def load_some(self, type: str, pointer: Value, count: Index, align: int = 4) -> Value:
        """Load the first `count` lanes and no byte beyond them; the other lanes get 0."""
        lanes = lanes_of(type)
        if is_int(count, lanes):
            return self.load(type, pointer)
        name = f"llvm.masked.load.{mangled(type)}.p0"
        rest = self.as_value(type, 0.0)
        unit = Value(self, "i32", str(align))
        return self.call(type, name, pointer, unit, self.mask(lanes, count), rest)

    def store_some(self, value: Value, pointer: Value, count: Index, align: int = 4) -> None:
        """Store the first `count` lanes and no byte beyond them."""
        lanes = lanes_of(value.type)
        if is_int(count, lanes):
            self.store(value, pointer)
            return
        name = f"llvm.masked.store.{mangled(value.type)}.p0"
        unit = Value(self, "i32", str(align))
        self.call_void(name, value, pointer, unit, self.mask(lanes, count))

    def mask(self, lanes: int, count: Index) -> Value:
        """Return which lanes come before `count`."""
        if isinstance(count, int):
            bits = ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(lanes))
            return Value(self, f"<{lanes} x i1>", f"<{bits}>")
        numbers = ", ".join(f"i32 {lane}" for lane in range(lanes))
        first = Value(self, f"<{lanes} x i32>", f"<{numbers}>")
        return self.compare("ult", first, self.splat(self.convert("trunc", count, "i32"), lanes))

    def gather(self, type: str, pointer: Value, stride: Value, count: int) -> Value:
        """Load `count` elements that lie `stride` elements apart, unaligned; 0 in other lanes."""
        lanes = lanes_of(type)
        steps = ", ".join(f"i64 {lane}" for lane in range(lanes))
        offsets = Value(self, f"<{lanes} x i64>", f"<{steps}>") * self.splat(stride, lanes)
        return self.gather_at(type, pointer, offsets, count)

    def gather_at(
        self, type: str, pointer: Value, offsets: Value, count: int | None = None
    ) -> Value:
        """Load elements at offsets, unaligned: all, or the first `count` with 0 in other lanes."""
        lanes, element = lanes_of(type), element_of(type)
        pointers = vector(lanes, "ptr")
        places = self.emit(pointers, f"getelementptr {element}, {pointer}, {offsets}")
        name = f"llvm.masked.gather.{mangled(type)}.v{lanes}p0"
        rest, unaligned = self.as_value(type, 0.0), Value(self, "i32", "1")
        mask = self.mask(lanes, lanes if count is None else count)
        return self.call(type, name, places, unaligned, mask, rest)

    # -- control ----------------------------------------------------------------------------

    def range(self, low: Index, high: Index, step: int = 1) -> Iterator[Index]:
        """Yield the index of a loop around the code that is emitted meanwhile; nothing when it is
        empty.
        """
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return
            if low + step >= high:
                yield low
                return
        index = Var(self, "i64", low)
        head, body, done = (self._label(name) for name in ("loop", "body", "done"))
        self._jump(head)
        here = index.get()
        self.line(f"br {self.compare('slt', here, high)}, label %{body}, label %{done}")
        self._begin(body)
        lines = len(self._lines)
        yield here
        next_ = here + step
        is_long = len(self._lines) - lines > _LONG_BODY
        index.set(self.opaque(next_) if is_long else next_)
        self.line(f"br label %{head}")
        self._begin(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Emit what follows only where the condition holds."""
        yes, done = self._label("then"), self._label("done")
        self.line(f"br {condition}, label %{yes}, label %{done}")
        self._begin(yes)
        yield
        self._jump(done)

    def either(self, condition: Value) -> Iterator[bool]:
        """Emit two branches: yields True, then False."""
        yes, no, done = (self._label(name) for name in ("then", "else", "done"))
        self.line(f"br {condition}, label %{yes}, label %{no}")
        self._begin(yes)
        yield True
        self.line(f"br label %{done}")
        self._begin(no)
        yield False
        self._jump(done)

    def _label(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def _name(self, name: str) -> str:
        self._count += 1
        return f"%{name}{self._count}"

    def _begin(self, label: str) -> None:
        self._lines.append(f"{label}:")

    def _jump(self, label: str) -> None:
        self.line(f"br label %{label}")
        self._begin(label)


_LONG_BODY = 300
"""Lines of a loop's body from which LLVM is not told how the index grows.

Loop strength reduction else weighs every address of the body against every other. For our unrolled
tiles that took a fifth of LLVM's time and made the code no faster. In short loops it does."""
_FOLD: dict[str, Callable[[int, int], int]] = {
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "and": lambda a, b: a & b,
    "shl": lambda a, b: a << b,
}
