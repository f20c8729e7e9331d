"""Values of LLVM IR under construction, with operators that emit instructions."""

from __future__ import annotations

from typing import Any, Protocol

from trireme.devices.cpu.codegen.llvm_types import literal


class InstructionWriter(Protocol):
    """What values emit instructions into: a function under construction (ir.py)."""

    def line(self, text: str) -> None:
        """Add an instruction."""

    def slot(self, type: str) -> str:
        """Return the name of a new stack slot."""

    def emit(self, type: str, text: str) -> Value:
        """Add an instruction and return its value."""

    def as_value(self, type: str, value: Operand) -> Value:
        """Return an operand as a value of a type."""

    def binary(self, op: str, left: Value, right: Operand) -> Value:
        """Return an operation on two operands."""


class Value:
    """An SSA value: its type and its name, with arithmetic that emits instructions."""

    __slots__ = ("fn", "text", "type")

    def __init__(self, fn: InstructionWriter, type: str, text: str) -> None:
        self.fn, self.type, self.text = fn, type, text

    def __add__(self, other: Operand) -> Value:
        return self if is_int(other, 0) else self.fn.binary("add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self if is_int(other, 0) else self.fn.binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.fn.binary("sub", self.fn.as_value(self.type, other), self)

    def __mul__(self, other: Operand) -> Value:
        return self if is_int(other, 1) else self.fn.binary("mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.fn.emit(self.type, f"fdiv {self.type} {self.text}, {self.text_of(other)}")

    def __rtruediv__(self, other: Operand) -> Value:
        return self.fn.as_value(self.type, other) / self

    def __neg__(self) -> Value:
        return self.fn.emit(self.type, f"fneg {self.type} {self.text}")

    __radd__ = __add__
    __rmul__ = __mul__

    def text_of(self, other: Operand) -> str:
        """Return another operand as text of this value's type."""
        return other.text if isinstance(other, Value) else literal(self.type, other)

    def __repr__(self) -> str:
        return f"{self.type} {self.text}"


class Word(Value):
    """A size that a kernel reads when it runs; a maker's arguments hold one where sizes vary."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place, self.type, self.text = place, "i64", f"word {place}"


Operand = Value | int | float
Index = Value | int


def is_int(value: Any, wanted: int) -> bool:
    """Whether an operand is this number, known when the kernel is written."""
    return type(value) is int and value == wanted


class Var:
    """A variable of a function, in a stack slot that LLVM turns into a register."""

    def __init__(self, fn: InstructionWriter, type: str, value: Operand) -> None:
        self._fn, self._type = fn, type
        self._slot = fn.slot(type)
        self.set(value)

    def get(self) -> Value:
        """Return the present value."""
        return self._fn.emit(self._type, f"load {self._type}, ptr {self._slot}")

    def set(self, value: Operand) -> None:
        """Assign a value."""
        value = self._fn.as_value(self._type, value)
        self._fn.line(f"store {value}, ptr {self._slot}")
