"""If, Loop and Scan: bodies become graphs, and outer values they read become extra inputs.

The extra inputs, called captures, are a body's last inputs and its node's last inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trireme.converters.onnx.scope import NodeUse, Scope
from trireme.ir.graph import UNKNOWN, Graph, TensorType
from trireme.support.errors import BranchError, ConvertError, ModelFileError

Convert = Callable[[Scope, Any, bool], list[int]]
"""Adds a body's weights and nodes to a scope whose inputs are bound; `named` keeps output names."""


def if_node(use: NodeUse, convert: Convert) -> Sequence[int]:
    """If: a branch with a known condition is converted in place, else both become graphs."""
    branches = [use.take("then_branch"), use.take("else_branch")]
    if any(branch is None for branch in branches):
        raise use.error("a branch is missing")
    known = use.array(0)
    if known is not None and known.size == 1:
        taken = branches[0] if known.reshape(-1)[0] else branches[1]
        return convert(use.scope.inner(), taken, False)
    scopes = [use.scope.inner(own_builder=graph.name or "branch") for graph in branches]
    outputs = _converted(scopes, branches, convert)
    captures = list(dict.fromkeys(outer for scope in scopes for outer in scope.captured))
    then, other = (
        finish(scope, made, [], captures) for scope, made in zip(scopes, outputs, strict=True)
    )
    attrs = {"then_branch": then, "else_branch": other}
    return use.add_node("if", [use.need(0), *captures], attrs, len(then.outputs))


def _converted(
    scopes: Sequence[Scope], branches: Sequence[Any], convert: Convert
) -> list[list[int]]:
    """Return the outputs of each branch.

    Errors: BranchError, if one branch refuses the shapes; ConvertError, if both do
    """
    outputs: list[list[int]] = []
    refused: list[ConvertError] = []
    for scope, graph in zip(scopes, branches, strict=True):
        try:
            outputs.append(convert(scope, graph, False))
        except ConvertError as error:
            refused.append(error)
    if not refused:
        return outputs
    first = refused[0]
    if not outputs:
        raise first
    raise BranchError(first.summary, facts=first.facts, fix=first.fix) from first


def finish(
    scope: Scope, outputs: Sequence[int], formal: Sequence[int], captures: Sequence[int]
) -> Graph:
    """Return the graph of a body with its own inputs first and then the captures."""
    scope.builder.inputs = [*formal, *(_captured(scope, outer) for outer in captures)]
    return scope.builder.finish(*outputs)


def _captured(scope: Scope, outer: int) -> int:
    """Return the input of a body that stands for a captured value, even one that it never reads."""
    if outer not in scope.captured:
        scope.capture(outer)
    return scope.captured[outer]


def loop(use: NodeUse, convert: Convert) -> Sequence[int]:
    """Loop: the body takes the iteration number and a condition, which is always true there."""
    body = _body(use, 2)
    states = [use.need(i) for i in range(2, len(use.inputs))]
    carried = len(states)
    if len(body.input) != 2 + carried or len(body.output) < 1 + carried:
        raise use.error(f"the body has {len(body.input)} inputs, {carried} states are given")

    def build(types: Sequence[TensorType]) -> tuple[Graph, list[int]]:
        scope = use.scope.inner(own_builder=body.name or "body")
        turn = scope.builder.input(body.input[0].name, TensorType((), "int64"))
        condition = scope.builder.input(body.input[1].name, TensorType((), "bool"))
        scope.names[body.input[0].name] = turn
        scope.names[body.input[1].name] = scope.builder.constant("true", np.asarray(True))
        formal = [turn, condition, *_bind(scope, body.input[2:], types)]
        outputs = convert(scope, body, False)
        captures = list(scope.captured)
        return finish(scope, outputs, formal, captures), captures

    types = [use.scope.builder.type(state) for state in states]
    graph, captures = _settle(build, types, 1)
    inputs = [use.input(0), use.input(1), *states, *captures]
    attrs = {"body": graph, "carried": carried}
    return use.add_node("loop", inputs, attrs, len(graph.outputs) - 1)


def scan(use: NodeUse, convert: Convert) -> Sequence[int]:
    """Scan: the body takes the states and one slice of each scanned input."""
    if use.version < 9:
        raise use.error("Scan of opset 8 is not supported", "convert the model to opset 9")
    body, scanned = _body(use, 0), use.attrs["num_scan_inputs"]
    values = [use.need(i) for i in range(len(use.inputs))]
    carried = len(values) - scanned
    if not 0 <= carried <= len(body.output) or len(body.input) != len(values):
        raise use.error(f"{len(values)} inputs, {scanned} of them scanned, do not fit the body")
    axes = use.attrs.get("scan_input_axes") or (0,) * scanned
    types = [use.scope.builder.type(value) for value in values]
    if len(axes) != scanned or any(
        not -len(type.shape) <= axis < len(type.shape)
        for axis, type in zip(axes, types[carried:], strict=False)
    ):
        raise use.error(f"scan_input_axes {axes} do not fit the inputs")
    slices = [_cut(type, axis) for type, axis in zip(types[carried:], axes, strict=True)]

    def build(states: Sequence[TensorType]) -> tuple[Graph, list[int]]:
        scope = use.scope.inner(own_builder=body.name or "body")
        formal = _bind(scope, body.input, [*states, *slices])
        outputs = convert(scope, body, False)
        captures = list(scope.captured)
        return finish(scope, outputs, formal, captures), captures

    graph, captures = _settle(build, types[:carried], 0)
    attrs = {**use.attrs, "body": graph, "carried": carried}
    return use.add_node("scan", [*values, *captures], attrs, len(graph.outputs))


def _body(use: NodeUse, least: int) -> Any:
    body = use.take("body")
    if body is None or len(body.input) < least:
        raise use.error("the body is missing or has too few inputs")
    names = [value.name for value in body.input]
    if len(set(names)) != len(names):
        raise ModelFileError(f"{use.op} ({use.source}): the body has two inputs of one name")
    return body


def _bind(scope: Scope, inputs: Sequence[Any], types: Sequence[TensorType]) -> list[int]:
    for value, type in zip(inputs, types, strict=True):
        scope.names[value.name] = scope.builder.input(value.name, type)
    return [scope.names[value.name] for value in inputs]


def _cut(type: TensorType, axis: int) -> TensorType:
    shape = list(type.shape)
    del shape[axis]
    return TensorType(tuple(shape), type.dtype)


def _settle(
    build: Callable[[Sequence[TensorType]], tuple[Graph, list[int]]],
    types: Sequence[TensorType],
    first: int,
) -> tuple[Graph, list[int]]:
    """Build a body; build it again if its states change shape, with the changed dimensions unknown.

    `first` is the position of the first state among the body's outputs.
    """
    while True:
        graph, captures = build(types)
        made = [graph.type(value) for value in graph.outputs[first : first + len(types)]]
        wider = [_widened(old, new) for old, new in zip(types, made, strict=True)]
        if wider == list(types):
            return graph, captures
        types = wider


def _widened(old: TensorType, new: TensorType) -> TensorType:
    if not (old.has_rank and new.has_rank) or len(old.shape) != len(new.shape):
        return old
    dims = (a if a == b else UNKNOWN for a, b in zip(old.shape, new.shape, strict=True))
    return TensorType(tuple(dims), old.dtype)


CONTROL = {"If": if_node, "Loop": loop, "Scan": scan}
