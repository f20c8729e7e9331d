"""Any kernel for every batch: the kernel of one item runs for one item after another.

Items lie along the axes up to the last that varies, and the node treats them alike. The node is
lowered as for one shape, with one item. A loop around each kernel moves its operands from item to
item, so the results have the bits of the kernel of one item. Rows of a product with large weights
go sixteen at a time, then four, then one: kernels for so many rows read the weights once for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Concatenate

import numpy as np

from trireme.devices.cpu.codegen.kernel_cache import Code, P, R, code_of
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    At,
    Context,
    Operand,
    Rule,
    Sized,
    SizedTemp,
    Step,
    Temp,
    begin,
    dims_of,
    finish,
    open_step,
)
from trireme.devices.cpu.kernels.sample import deal_evenly, varies
from trireme.ir.graph import Graph, Node, TensorType, Value
from trireme.placement.shards.rules import Piece, Span, refusal, stretched, type_of
from trireme.support.dtypes import itemsize
from trireme.support.errors import InternalError, PlacementError

_MOST_OPERANDS = 32
_SUFFIX = "_each_sized"
_WORDS = 5
"""Units of a chunk, all units, units of an item, first item, operands: words before the strides."""
_GROUPS = (16, 4, 1)
"""Rows that are multiplied at a time."""
_LARGE = 4
"""Weights are large that have so many times the bytes of a row's input and output."""


def some_items(
    graph: Graph, node: Node, group: int = 1
) -> tuple[Graph, Node, Mapping[int, int]] | str:
    """Return a node of a sample with `group` items, and how many leading axes of its values vary.

    The axes before the last that varies count too. A sentence where the node does not treat the
    items alike.
    """
    leading = {value: _leading(graph.type(value)) for value in (*node.used, *node.outputs)}
    if len({leading[value] for value in node.outputs}) > 1:
        return "its outputs vary along different axes"
    if any(own > leading[node.outputs[0]] for own in leading.values()):
        return "it works along an axis that varies"
    count = leading[node.outputs[0]]
    shortened: dict[int, set[int]] = {}
    inputs: list[int | None] = list(node.inputs)
    values = {value: graph.values[value] for value in leading}
    for axis in range(count):
        try:
            found = _needs(graph, node, axis)
        except PlacementError as error:
            return error.summary
        if found.changed:
            return "another item has other attributes"
        for place, (value, need) in enumerate(zip(node.inputs, found.inputs, strict=True)):
            if isinstance(need, np.ndarray):
                fresh = -1 - place
                type = TensorType(need.shape, str(need.dtype))
                values[fresh], inputs[place] = Value(fresh, f"of {place}", type, need), fresh
            elif value is not None and need is not None:
                shortened.setdefault(value, set()).add(need.axis)
    items = math.prod(dims_of(graph, node.outputs[0])[:count])
    for value in node.used:
        own = leading[value]
        is_whole = shortened.get(value, set()) != set(range(own))
        if is_whole or (own and math.prod(dims_of(graph, value)[:own]) != items):
            return "an input does not have an item for each of the output"
    for value, own in leading.items():
        type = graph.type(value)
        for axis in range(own):
            type = type_of(type, Span(axis, 0, group if axis == own - 1 else 1))
        values[value] = replace(values[value], type=type)
    node = replace(node, inputs=tuple(inputs))
    flowing = tuple(v for v in dict.fromkeys(node.used) if not values[v].is_constant)
    return Graph(graph.name, flowing, node.outputs, (node,), values), node, leading


def _needs(graph: Graph, node: Node, axis: int) -> Piece:
    """Return what the first item of the outputs along an axis needs.

    Errors: PlacementError, if it needs more than an item of the inputs
    """
    rule = _ALIKE.get(node.op)
    if rule is None:
        return stretched(graph, node, Span(axis, 0, 1))
    if axis >= rule.before(graph, node):
        raise refusal(node, "it works along an axis that varies")
    span = Span(axis, 0, 1)
    return Piece(tuple(span if k < rule.inputs else None for k in range(len(node.inputs))))


@dataclass(frozen=True)
class _Alike:
    """How many axes come before those that an op works along, and how many inputs have them."""

    before: Callable[[Graph, Node], int]
    inputs: int = 1


def _axis(graph: Graph, node: Node) -> int:
    return int(node.attrs["axis"]) % len(graph.type(node.used[0]).dims)


def _axis_of_output(graph: Graph, node: Node) -> int:
    return int(node.attrs["axis"]) % len(graph.type(node.outputs[0]).dims)


def _axis_given(graph: Graph, node: Node) -> int:
    data = graph.values[node.used[1]].data
    return 0 if data is None else int(data.reshape(-1)[0]) % len(graph.type(node.used[0]).dims)


def _last_two(graph: Graph, node: Node) -> int:
    return len(graph.type(node.used[0]).dims) - 2


def _last(graph: Graph, node: Node) -> int:
    return len(graph.type(node.used[0]).dims) - 1


def _batch(graph: Graph, node: Node) -> int:
    return 1


_ALIKE = {
    "arg_max": _Alike(_axis),
    "arg_min": _Alike(_axis),
    "conv_transpose": _Alike(_batch),
    "cum_prod": _Alike(_axis_given),
    "cum_sum": _Alike(_axis_given),
    "detection_post_process": _Alike(_batch, 2),
    "grid_sample": _Alike(_batch, 2),
    "group_normalization": _Alike(_batch),
    "instance_normalization": _Alike(_batch),
    "lrn": _Alike(_batch),
    "matmul_nbits": _Alike(_last),
    "one_hot": _Alike(_axis_of_output),
    "rfft2d": _Alike(_last_two),
    "scatter_elements": _Alike(_axis, 3),
    "top_k": _Alike(_axis),
    "trilu": _Alike(_last_two),
}
"""Ops that have no rule of shards, and treat the axes before those that they work along alike."""


def _leading(type: TensorType) -> int:
    """Return how many axes there are up to the last that varies."""
    return max((axis + 1 for axis, dim in enumerate(type.dims) if varies(dim)), default=0)


def each_item_kernel(
    isa: Isa, make: Callable[..., Any], args: tuple[Any, ...], named: tuple[tuple[str, Any], ...]
) -> Any:
    """Return what a maker of kernels returns, with a kernel for every number of items.

    Operands: words, then those of the kernel; a word for each tells how far its items are apart
    """
    made = make(isa, *args, **dict(named))
    if isinstance(made, Code):
        return _for_each(isa, made)
    return (_for_each(isa, made[0]), *made[1:])


def _for_each(isa: Isa, code: Code) -> Code:
    base = code.name.removesuffix(f"__{isa.name}")
    fn, (words,), chunk, local = begin(base + _SUFFIX, isa, 1)
    args = fn.arguments[0]
    size, units, each, start, count = (
        fn.load("i64", fn.at(words, k, "i64"), 8) for k in range(_WORDS)
    )
    moved = fn.address(f"[{_MOST_OPERANDS} x ptr]")
    first = chunk * size
    for unit in fn.range(first, fn.minimum(first + size, units)):
        item, part = (fn.as_value("i64", fn.integer(op, unit, each)) for op in ("udiv", "urem"))
        for k in fn.range(0, count):
            pointer = fn.load("ptr", fn.at(args, k + 1, "ptr"), 8)
            stride = fn.load("i64", fn.at(words, k + _WORDS, "i64"), 8)
            fn.store(fn.at(pointer, (item + start) * stride, "i8"), fn.at(moved, k, "ptr"), 8)
        fn.line(f"call void @item({moved}, {part}, {local})")
    outer = finish(fn)
    inner = code.text.replace(f"@{code.name}(", "@item(")
    inner = inner.replace("define void @item(", "define internal void @item(")
    return code_of(outer.name, f"{inner}\n{outer.text}")


@dataclass(frozen=True)
class _ItemContext(Context):
    """Makes kernels for one item that serve any number of them."""

    def kernel(self, make: Callable[Concatenate[Isa, P], R], *args: P.args, **named: P.kwargs) -> R:
        """Return make(isa, *args), with a loop over the items around the kernel."""
        made: R = super().kernel(each_item_kernel, make, args, tuple(named.items()))
        return made


@dataclass(frozen=True)
class Batch:
    """The items of a node that are done `group` at a time, after larger groups were done."""

    output: int
    axes: int
    group: int = 1
    larger: int = 0

    def items(self, graph: Graph) -> int:
        """Return the items of a shape."""
        return math.prod(dims_of(graph, self.output)[: self.axes])

    def span(self, graph: Graph) -> tuple[int, int]:
        """Return the first group, and how many there are."""
        total = self.items(graph)
        done = total - total % self.larger if self.larger else 0
        return done // self.group, (total - done) // self.group


def _lower(context: Context, node: Node) -> Sequence[Step]:
    groups = _GROUPS if _shares_large_weights(context.graph, node) else (1,)
    steps: list[Step] = []
    for larger, group in zip((0, *groups), groups, strict=False):
        found = some_items(context.graph, node, group)
        if isinstance(found, str):
            raise InternalError(f"{node.label}: {found}")
        graph, item, leading = found
        rule = TABLE.find(graph, item)
        if rule is None:
            raise InternalError(f"{node.label} has no kernel of one item")
        batch = Batch(node.outputs[0], leading[node.outputs[0]], group, larger)
        lower = partial(_lowered, rule, item)
        steps += steps_of_items(context, graph, leading, batch, (node.id,), lower)
    return steps


def _lowered(rule: Rule, node: Node, context: Context) -> Sequence[Step]:
    return rule.lower(context, node)


def steps_of_items(
    context: Context,
    graph: Graph,
    leading: Mapping[int, int],
    batch: Batch,
    nodes: tuple[int, ...],
    lower: Callable[[Context], Sequence[Step]],
) -> list[Step]:
    """Return the steps of one item, each with a loop over the items of a shape.

    graph: the nodes with one item, which `lower` lowers
    leading: how many leading axes of a value vary, by value
    """
    inner = _ItemContext(
        graph,
        context.isa,
        context.threads,
        context.winograd,
        packed=context.packed,
        later=context.later,
        recipes=context.recipes,
    )
    steps = []
    for step in lower(inner):
        if _SUFFIX not in step.code.name:
            step = replace(step, code=_for_each(context.isa, step.code))
        steps.append(_step(graph, step, leading, batch, nodes))
    return steps


def _shares_large_weights(graph: Graph, node: Node) -> bool:
    """Whether each item is a row, and constants have many times its bytes."""
    flowing = [graph.type(v) for v in (*node.used, *node.outputs) if _leading(graph.type(v))]
    if not flowing or any(len(type.dims) - _leading(type) != 1 for type in flowing):
        return False
    row = sum(type.dims[-1] * itemsize(type.dtype) for type in flowing)
    kept = (graph.values[value] for value in node.used if graph.values[value].is_constant)
    return sum(value.type.nbytes for value in kept) > _LARGE * row


def _step(
    graph: Graph, step: Step, leading: Mapping[int, int], batch: Batch, nodes: tuple[int, ...]
) -> Step:
    operands = (*step.reads, *step.writes)
    if len(operands) > _MOST_OPERANDS:
        raise InternalError(f"{step.code.name}: {len(operands)} operands of a kernel")

    def stride(operand: Operand) -> int:
        if isinstance(operand, At):
            return stride(operand.of)
        if isinstance(operand, Temp):
            return -(-operand.nbytes // 64) * 64
        is_item = isinstance(operand, int) and leading.get(operand, 0)
        return graph.type(operand).nbytes if isinstance(operand, int) and is_item else 0

    strides = tuple(map(stride, operands))

    def size(graph: Graph) -> Sized:
        first, groups = batch.span(graph)
        units, seconds = groups * step.chunks, groups * step.seconds
        part, chunks = deal_evenly(units, seconds)
        words = (part, units, step.chunks, first, len(operands), *strides)
        return Sized(words, chunks if groups else 0, seconds, step.local_bytes)

    def sized(operand: Operand) -> Operand:
        if not isinstance(operand, Temp):
            return operand
        each = stride(operand)
        name = f"{operand.key} of {batch.group}"

        def bytes_at(graph: Graph) -> int:
            return max(sum(batch.span(graph)) * each, 64)

        return SizedTemp(name, operand.nbytes, bytes_at)

    reads, writes = (tuple(map(sized, ends)) for ends in (step.reads, step.writes))
    return open_step((step.code,), reads, writes, size, nodes, step.family)


def _reason(graph: Graph, node: Node) -> str | None:
    found = some_items(graph, node)
    if isinstance(found, str):
        return f"{node.op} has no kernel for every shape where {found}"
    item, node, _ = found
    rule = TABLE.find(item, node)
    return TABLE.miss(item, node) if rule is None else rule.reason(item, node)


EACH_ITEM = Rule(_reason, _lower)
"""The rule for every node that treats the items of a batch alike."""


def open_rule(graph: Graph, node: Node) -> Rule | str:
    """Return the rule that lowers a node of a sample for every shape, or why there is none."""
    rule, why = TABLE.find(graph, node), None
    if rule is not None and rule.open_reason is not None:
        why = None if rule.open_alone else rule.reason(graph, node)
        why = why or rule.open_reason(graph, node)
        if why is None:
            return rule
    batch = _reason(graph, node)
    return EACH_ITEM if batch is None else why or batch
