"""A graph as the text of a Python function: a line for each node, blocks for branches and loops.

The text runs, given `trireme`, numpy as `np`, `trireme.eager` as `eager` and the constants that it
names.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.op import get_op
from trireme.ops.repeats import Repeat, repeat_of
from trireme.support.dtypes import FLOATS

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "mod": "%",
    "floor_div": "//",
    "pow": "**",
    "matmul": "@",
    "less": "<",
    "less_or_equal": "<=",
    "greater": ">",
    "greater_or_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "and": "&",
    "or": "|",
    "xor": "^",
}
_PREFIX = {"neg": "-", "not": "~"}
_MOST_SHOWN = 8
"""The most elements of a constant that the text spells out."""


def source_of(graph: Graph) -> str:
    """Return a graph as the text of a function."""
    return _Text(graph).text


class _Text:
    """The lines of a function, with a name for each value."""

    def __init__(self, graph: Graph) -> None:
        self._lines: list[str] = []
        self._taken: set[str] = set()
        names = {value: self._new(graph.values[value].name) for value in graph.inputs}
        arguments = ", ".join(f'{names[v]}: "{_short(graph.type(v))}"' for v in graph.inputs)
        self._add(0, f"def {_word(graph.name)}({arguments}):")
        self._nodes(graph, names, 1)
        results = ", ".join(self._operand(graph, names, value) for value in graph.outputs)
        self._add(1, f"return {results}")
        self.text = "\n".join(self._lines)

    def _add(self, depth: int, text: str, node: Node | None = None) -> None:
        place = f"  # {node.source}" if node is not None and node.source else ""
        self._lines.append(f"{'    ' * depth}{text}{place}")

    def _new(self, name: str) -> str:
        base = found = _word(name)
        count = 1
        while found in self._taken:
            count += 1
            found = f"{base}_{count}"
        self._taken.add(found)
        return found

    def _nodes(self, graph: Graph, names: dict[int, str], depth: int) -> None:
        """Add the nodes of a graph; those in a row that are pinned alike have a `with` around."""
        for pin, nodes in groupby(graph.nodes, lambda node: node.pin):
            if pin is not None:
                self._add(depth, f"with trireme.device({pin!r}):")
            self._run(graph, names, nodes, depth + (pin is not None))

    def _run(self, graph: Graph, names: dict[int, str], nodes: Iterable[Node], depth: int) -> None:
        for node in nodes:
            for value in node.outputs:
                names[value] = self._new(graph.values[value].name)
            special = {"if": self._if, "loop": self._repeat, "scan": self._repeat}.get(node.op)
            if special is not None:
                special(graph, names, node, depth)
                continue
            made = ", ".join(names[value] for value in node.outputs)
            self._add(depth, f"{made} = {self._expression(graph, names, node)}", node)

    def _expression(self, graph: Graph, names: dict[int, str], node: Node) -> str:
        operands = ["None" if i is None else self._operand(graph, names, i) for i in node.inputs]
        usual = get_op(node.op).attrs
        attrs = {k: v for k, v in node.attrs.items() if v is not usual[k].default}
        attrs = {k: v for k, v in attrs.items() if v != usual[k].default}
        if node.op in _INFIX and len(operands) == 2 and not any(attrs.values()):
            return f"{operands[0]} {_INFIX[node.op]} {operands[1]}"
        if node.op == "div" and graph.type(node.outputs[0]).dtype in FLOATS and not attrs:
            return f"{operands[0]} / {operands[1]}"
        if node.op in _PREFIX:
            return f"{_PREFIX[node.op]}{operands[0]}"
        if node.op == "python":
            return f"{node.attrs['operator']!r}({', '.join(operands)})"
        if node.op == "cast":
            return f"eager.cast({operands[0]}, to={attrs['to']!r})"
        return f"eager.{node.op}({', '.join([*operands, *map(_attribute, attrs.items())])})"

    def _operand(self, graph: Graph, names: dict[int, str], value: int) -> str:
        data = graph.values[value].data
        if data is None or value in names:
            return names[value]
        if data.size > _MOST_SHOWN or data.dtype.kind not in "biuf":
            name = _word(graph.values[value].name or "weights")
            return f"constants[{name!r}]"
        if data.shape == () and data.dtype.name in ("int64", "float64", "bool"):
            return repr(data.item()) if np.isfinite(data) else f'float("{data.item()}")'
        listed = np.array2string(data, separator=", ", threshold=100, floatmode="unique")
        kind = "np.array" if data.shape else f"np.{data.dtype.name}"
        return f'{kind}({listed}, "{data.dtype.name}")' if data.shape else f"{kind}({listed})"

    def _assign(self, depth: int, targets: Sequence[str], values: Sequence[str]) -> None:
        pairs = [(t, v) for t, v in zip(targets, values, strict=True) if t != v]
        if pairs:
            left, right = (", ".join(side) for side in zip(*pairs, strict=True))
            self._add(depth, f"{left} = {right}")

    def _inner(self, outer: Sequence[str], body: Graph, own: int) -> dict[int, str]:
        """Return the names of a body's captures, its inputs after its own ones."""
        captures = body.inputs[own:]
        return dict(zip(captures, outer[len(outer) - len(captures) :], strict=True))

    def _body(
        self,
        body: Graph,
        names: dict[int, str],
        targets: Sequence[str],
        first: int,
        depth: int,
        lists: Sequence[str] = (),
    ) -> None:
        """Add a body's nodes, and what its outputs from a position on become.

        targets: the variables that the first of them are assigned to
        lists: the lists to which the others are appended
        """
        before = len(self._lines)
        self._nodes(body, names, depth)
        values = [self._operand(body, names, value) for value in body.outputs[first:]]
        for name, value in zip(lists, values[len(targets) :], strict=True):
            self._add(depth, f"{name}.append({value})")
        self._assign(depth, targets, values[: len(targets)])
        if len(self._lines) == before:
            self._add(depth, "pass")

    def _if(self, graph: Graph, names: dict[int, str], node: Node, depth: int) -> None:
        targets = [names[value] for value in node.outputs]
        outer = ["" if i is None else self._operand(graph, names, i) for i in node.inputs]
        self._add(depth, f"if {outer[0]}:", node)
        for part in ("then_branch", "else_branch"):
            if part == "else_branch":
                self._add(depth, "else:")
            body = node.attrs[part]
            self._body(body, self._inner(outer, body, 0), targets, 0, depth + 1)

    def _repeat(self, graph: Graph, names: dict[int, str], node: Node, depth: int) -> None:
        form = repeat_of(node.attrs)
        assert form is not None
        body, own = form.body, form.first + form.carried + len(form.slices)
        outer = ["" if i is None else self._operand(graph, names, i) for i in node.inputs]
        targets = [names[value] for value in node.outputs[: form.carried]]
        lists = [names[value] for value in node.outputs[form.carried :]]
        inner = self._inner(outer, body, own)
        states = slice(form.first, form.first + form.carried)
        inner |= dict(zip(body.inputs[states], targets, strict=True))
        self._assign(depth, targets, outer[states])
        for name in lists:
            self._add(depth, f"{name} = []")
        begin = self._begin_loop if form.counts else self._begin_scan
        going = begin(form, outer, inner, node, depth)
        first = form.made - len(going)
        self._body(body, inner, [*going, *targets], first, depth + 1, lists)
        for name in lists:
            self._add(depth, f"{name} = np.array({name})")

    def _begin_loop(
        self, form: Repeat, outer: Sequence[str], inner: dict[int, str], node: Node, depth: int
    ) -> list[str]:
        """Add the head of a loop; return the variable that says whether it goes on, if one does."""
        ends = form.body.values[form.body.outputs[0]].data is None
        turn, going = self._new("turn"), self._new("going") if ends else "True"
        inner |= {form.body.inputs[0]: turn, form.body.inputs[1]: going}
        if ends:
            self._add(depth, f"{going} = {outer[1] or 'True'}")
        if node.inputs[0] is None:
            self._add(depth, f"while {going}:", node)
            return [going] * ends
        self._add(depth, f"for {turn} in range(int({outer[0]})):", node)
        if ends:
            self._add(depth + 1, f"if not {going}:")
            self._add(depth + 2, "break")
        return [going] * ends

    def _begin_scan(
        self, form: Repeat, outer: Sequence[str], inner: dict[int, str], node: Node, depth: int
    ) -> list[str]:
        """Add the head of a loop over rows."""
        own = slice(form.carried, form.carried + len(form.slices))
        rows = [self._new(form.body.values[value].name) for value in form.body.inputs[own]]
        inner |= dict(zip(form.body.inputs[own], rows, strict=True))
        tensors = outer[own]
        over = tensors[0] if len(tensors) == 1 else f"zip({', '.join(tensors)})"
        self._add(depth, f"for {', '.join(rows)} in {over}:", node)
        return []


def _word(name: str) -> str:
    """Return a name as an identifier of Python."""
    found = re.sub(r"\W", "_", name) or "t"
    return f"_{found}" if found[0].isdigit() or keyword.iskeyword(found) else found


def _short(type: TensorType) -> str:
    return f"{type.dtype}[{', '.join(map(str, type.shape))}]"


def _attribute(item: tuple[str, Any]) -> str:
    return f"{item[0]}={item[1]!r}"
