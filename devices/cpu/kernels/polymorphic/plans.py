"""Plans of kernels at one shape, made by a compiled function instead of the code that plans.

Planning takes tens of microseconds a step, and a decoder has a new shape for every token. Most
numbers of a plan are products of sizes. Sizes of a sample (sample.py) are huge numbers, so the
factors of a plan's numbers tell which sizes they are products of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from trireme.devices.cpu.kernels.polymorphic.sample import varies
from trireme.ir.graph import Graph

Plan = TypeVar("Plan")


def quick_plan(
    sample: Graph, values: Iterable[int], plan: Plan, slow: Callable[[Graph], Plan]
) -> Callable[[Graph], Plan]:
    """Return a function of the graph of one shape that returns the plan for it.

    sample: the graph that `plan` was made for; values: those whose sizes the plan may follow from
    slow: plans for one shape; returned itself where a number of the plan is no product of sizes
    """
    given = (value for value in dict.fromkeys(values) if not sample.values[value].is_constant)
    by_value = {value: sample.type(value).dims for value in given}
    wanted = sorted(by_value, key=lambda value: -sum(map(varies, set(by_value[value]))))
    places: dict[int, tuple[int, int]] = {}
    for value in wanted:
        for axis, dim in enumerate(by_value[value]):
            if varies(dim):
                places.setdefault(dim, (value, axis))
    writer = _Writer(places)
    text = writer.text(plan)
    if text is None:
        return slow
    used = list(dict.fromkeys(value for value, _ in writer.read))
    names = {value: f"v{k}" for k, value in enumerate(used)}
    sizes = {name: f"{names[value]}[{axis}]" for (value, axis), name in writer.read.items()}
    arguments = "".join(f"{name}, " for name in sizes)
    code = f"lambda {', '.join(names.values())}: (lambda {arguments}: {text})"
    code += f"({''.join(f'{size}, ' for size in sizes.values())})"
    make = eval(code, writer.known)  # noqa: S307  only numbers and the names of our classes

    def at(graph: Graph) -> Plan:
        found = graph.values
        made: Plan = make(*[found[value].type.dims for value in used])
        return made

    return at


class _Writer:
    """Writes a plan as an expression; read: names of the sizes that it reads, by value and axis."""

    def __init__(self, places: Mapping[int, tuple[int, int]]) -> None:
        self._places = places
        self.read: dict[tuple[int, int], str] = {}
        self.known: dict[str, Any] = {"inf": float("inf"), "nan": float("nan")}

    def text(self, plan: Any) -> str | None:
        """Return an expression for a plan; None where a number is no product of sizes."""
        if varies(plan):
            return self._product(plan)
        if plan is None or isinstance(plan, int | float | str):
            return repr(plan)
        if isinstance(plan, tuple):
            parts = [self.text(part) for part in plan]
            return None if None in parts else f"({''.join(f'{part}, ' for part in parts)})"
        if not is_dataclass(plan):
            return None
        name = type(plan).__name__
        self.known[name] = type(plan)
        parts = [self.text(getattr(plan, field.name)) for field in fields(plan)]
        return None if None in parts else f"{name}({', '.join(map(str, parts))})"

    def _product(self, number: int) -> str | None:
        factors, rest = [], number
        for size, place in self._places.items():
            while rest and rest % size == 0:
                rest //= size
                factors.append(self.read.setdefault(place, f"s{len(self.read)}"))
        return None if varies(rest) else " * ".join([*factors, str(rest)])
