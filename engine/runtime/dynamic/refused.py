"""The error of feeds whose shapes a graph does not take."""

from __future__ import annotations

from trireme.ir.bind_shapes import other_sizes
from trireme.ir.graph import Value
from trireme.runtime.dynamic.kept import Shapes
from trireme.support.errors import RunError, ShapeError, TriremeError


class ShapesRefused:
    """Turns the error of a node that refuses shapes into a RunError that lists those of the feeds.

    A generator would take some microseconds of every run.
    """

    __slots__ = ("_inputs", "_shapes")

    def __init__(self, inputs: list[Value], shapes: Shapes) -> None:
        self._inputs, self._shapes = inputs, shapes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, ShapeError | RunError) or not _is_of_shapes(error):
            return
        pairs = list(zip(self._inputs, self._shapes, strict=True))
        fed = ", ".join(f"{value.name} {list(shape)}" for value, shape in pairs)
        facts = [f"the inputs' shapes: {fed}", *error.facts]
        fix = error.fix or other_sizes(pairs)
        raise RunError(error.summary, facts=facts, fix=fix) from error


def _is_of_shapes(error: TriremeError) -> bool:
    """Whether an error is a ShapeError, or a node's in a run that comes of one."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ShapeError):
        found = found.__cause__
    return found is not None
