"""Values of a graph with symbols at the sizes of one shape, made when somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from trireme.devices.cpu.compile.recording import NotRecorded
from trireme.ir.dim_values import Numbers, picker
from trireme.ir.graph import TensorType, Value
from trireme.support.dtypes import Array


class SizedType:
    """A type with symbols, at the sizes that it was asked for last."""

    def __init__(self, type: TensorType, dims: Mapping[object, int]) -> None:
        self._type = type
        self._pick = picker([dims[dim] for dim in type.shape])
        self._shape: tuple[int, ...] | None = None
        self.now = type

    def noted(self, numbers: Numbers) -> TensorType:
        """Return the type of numbers that note what is done to them."""
        shape = self._pick(numbers)
        type = replace(self._type, shape=shape)
        type.__dict__["dims"] = shape  # numbers that leave a recording end it, as `int` does
        type.__dict__["is_static"] = True
        return type

    def at(self, numbers: Numbers) -> TensorType:
        """Return the type, given the numbers of all dimensions; the same object while it can."""
        shape = self._pick(numbers)
        if shape != self._shape:
            self.now, self._shape = replace(self._type, shape=shape), shape
        return self.now


class SizedValues(dict[int, Value]):
    """The values of a graph, each made when somebody looks at it."""

    def __init__(self, source: Mapping[int, Value], make: Callable[[Value], Value]) -> None:
        super().__init__()
        self._source, self._make = source, make

    def __missing__(self, value: int) -> Value:
        made = self[value] = self._make(self._source[value])
        return made


class UnreadValue(Value):
    """A value that shapes decide, of which a recording knows the type alone."""

    def __init__(self, value: Value, type: TensorType) -> None:
        for name, part in (("id", value.id), ("name", value.name), ("type", type)):
            object.__setattr__(self, name, part)

    @property
    def is_constant(self) -> bool:
        """Whether the value is known before a run: it is."""
        return True

    @property
    def data(self) -> Array:
        """The contents, which no recording has."""
        raise NotRecorded
