"""Drop what nothing reads from a captured graph: nodes, outputs of branches, carried values.

Every variable that a path assigns is an output of its branch or loop at first, although the program
may never read it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, Node
from trireme.ir.op import get_op
from trireme.ops.repeats import Repeat, repeat_of


@dataclass(frozen=True)
class _Step:
    """A node that stays: its inputs and attributes now, and the outputs that stay."""

    node: Node
    inputs: tuple[int | None, ...]
    attrs: dict[str, Any]
    outputs: tuple[int, ...]


def tidy(graph: Graph) -> Graph:
    """Return the graph with the same inputs and outputs, and only what they need between."""
    return _trimmed(graph, graph.outputs, graph.inputs)


def _trimmed(graph: Graph, outputs: Sequence[int], inputs: Sequence[int]) -> Graph:
    live, steps = set(outputs), []
    for node in reversed(graph.nodes):
        kept = [i for i, value in enumerate(node.outputs) if value in live]
        if kept or _has_effect(node):
            step = _TRIMS.get(node.op, _whole)(node, kept)
            live.update(value for value in step.inputs if value is not None)
            steps.append(step)
    return _built(graph, outputs, inputs, steps[::-1])


def _built(
    graph: Graph, outputs: Sequence[int], inputs: Sequence[int], steps: Iterable[_Step]
) -> Graph:
    b = GraphBuilder(graph.name)
    b.symbols = dict(graph.symbols)
    ids = {old: b.input(graph.values[old].name, graph.type(old)) for old in inputs}

    def find(old: int) -> int:
        value = graph.values[old]
        if old not in ids and value.data is not None:
            ids[old] = b.constant(value.name, value.data, value.quant)
        return ids[old]

    for step in steps:
        values = [graph.values[old] for old in step.outputs]
        made = b.add_node(
            step.node.op,
            [None if old is None else find(old) for old in step.inputs],
            step.attrs,
            outputs=len(values),
            names=[value.name for value in values],
            quants=[value.quant for value in values],
            source=step.node.source,
            pin=step.node.pin,
        )
        ids |= dict(zip(step.outputs, made, strict=True))
    return b.finish(*map(find, outputs))


def _has_effect(node: Node) -> bool:
    bodies = [value for value in node.attrs.values() if isinstance(value, Graph)]
    return bool(get_op(node.op).effect) or any(
        _has_effect(n) for body in bodies for n in body.nodes
    )


def _whole(node: Node, kept: Sequence[int]) -> _Step:
    return _Step(node, node.inputs, dict(node.attrs), node.outputs)


def _reads(graph: Graph) -> set[int]:
    """Return the positions of the inputs that a body reads."""
    read = {value for node in graph.nodes for value in node.used} | set(graph.outputs)
    return {i for i, value in enumerate(graph.inputs) if value in read}


def _cut(graph: Graph, outputs: Sequence[int], inputs: Iterable[int] | None = None) -> Graph:
    """Return a body with the outputs and inputs at some positions."""
    keep = range(len(graph.inputs)) if inputs is None else inputs
    return _trimmed(graph, [graph.outputs[i] for i in outputs], [graph.inputs[i] for i in keep])


def _if(node: Node, kept: Sequence[int]) -> _Step:
    names = ("then_branch", "else_branch")
    bodies = [_cut(node.attrs[name], kept) for name in names]
    read = sorted(set().union(*map(_reads, bodies)))
    cut = [_cut(body, range(len(kept)), read) for body in bodies]
    inputs = (node.inputs[0], *(node.inputs[1 + i] for i in read))
    attrs = {**node.attrs, **dict(zip(names, cut, strict=True))}
    return _Step(node, inputs, attrs, tuple(node.outputs[i] for i in kept))


def _needed(form: Repeat, kept: Sequence[int]) -> list[int]:
    """Return the outputs of a repeat that stay: those that are read, and what these need."""
    needed = set(kept)
    while True:
        ends = [*range(form.made), *(form.made + i for i in sorted(needed))]
        read = _reads(_cut(form.body, ends))
        more = {i - form.first for i in read if 0 <= i - form.first < form.carried} - needed
        if not more:
            return sorted(needed)
        needed |= more


def _repeat(node: Node, kept: Sequence[int]) -> _Step:
    form = repeat_of(node.attrs)
    assert form is not None
    needed = _needed(form, kept)
    states = [form.first + i for i in needed if i < form.carried]
    trimmed = _cut(form.body, [*range(form.made), *(form.made + i for i in needed)])
    after = form.first + form.carried
    slices = range(after, after + len(form.slices))
    read = [i for i in sorted(_reads(trimmed)) if i >= slices.stop]
    formal = [*range(form.first), *states, *slices, *read]
    attrs = {**node.attrs, "carried": len(states)}
    attrs["body"] = _cut(trimmed, range(len(trimmed.outputs)), formal)
    inputs = tuple(node.inputs[i] for i in formal)
    return _Step(node, inputs, attrs, tuple(node.outputs[i] for i in needed))


_TRIMS: dict[str, Callable[[Node, Sequence[int]], _Step]] = {
    "if": _if,
    "loop": _repeat,
    "scan": _repeat,
}
