"""The error of feeds whose shapes a graph does not take."""

from __future__ import annotations

from trireme.ir.graph import Value
from trireme.runtime.dynamic.kept import Shapes
from trireme.support.errors import RunError, ShapeError


class ShapesRefused:
    """Turns the ShapeError of binding into a RunError that lists the shapes of the feeds.

    A generator would take some microseconds of every run.
    """

    __slots__ = ("_inputs", "_shapes")

    def __init__(self, inputs: list[Value], shapes: Shapes) -> None:
        self._inputs, self._shapes = inputs, shapes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ShapeError):
            return
        given = zip(self._inputs, self._shapes, strict=True)
        fed = ", ".join(f"{value.name} {list(shape)}" for value, shape in given)
        facts = [f"the inputs' shapes: {fed}", *error.facts]
        raise RunError(error.summary, facts=facts, fix=error.fix) from error
