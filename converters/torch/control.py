"""cond, while_loop and scan of torch: bodies become graphs, and what they read becomes inputs.

A while_loop becomes a loop without a trip count: its condition is added before the loop, and once
more at the end of its body. A constant that a body is given is a constant of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.converters.torch.source import source_of, whereabouts
from trireme.converters.torch.use import NumberRef, TensorRef, TorchScope
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.support.errors import ConvertError

Convert = Callable[[TorchScope, Any], list[Any]]
"""Adds the nodes of a body to a scope whose inputs are bound."""


@dataclass
class _Body:
    """A body while it is made: its scope and the inputs that it has so far."""

    scope: TorchScope
    inputs: list[int]

    def take(self, outer: TorchScope, given: Any, shape: tuple[Any, ...] | None = None) -> Any:
        """Return a value of the outer graph as an input here, a constant as itself.

        shape: of the input, where it is not the value's
        """
        if not isinstance(given, (TensorRef, NumberRef)):
            return given
        value = outer.builder.values[given.id]
        if value.data is not None and shape is None:
            return type(given)(self.scope.builder.constant(value.name, value.data))
        own = TensorType(value.shape if shape is None else shape, value.dtype)
        self.inputs.append(self.scope.builder.input(value.name, own))
        return type(given)(self.inputs[-1])

    def run(self, module: Any, arguments: Sequence[Any], convert: Convert) -> list[Any]:
        """Add the nodes of a module, given its arguments, and return its outputs."""
        return inlined(self.scope, module, arguments, convert)

    def finish(self, outputs: Sequence[int]) -> Graph:
        """Return the graph of the body."""
        self.scope.builder.inputs = list(self.inputs)
        return self.scope.builder.finish(*outputs)


def _body(outer: TorchScope, name: str) -> _Body:
    return _Body(TorchScope(GraphBuilder(name), outer.bound, outer.names), [])


def inlined(
    scope: TorchScope, module: Any, arguments: Sequence[Any], convert: Convert
) -> list[Any]:
    """Add the nodes of a module to a scope's graph, and return the module's outputs."""
    inner = TorchScope(scope.builder, scope.bound, scope.names)
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, value in zip(places, arguments, strict=True):
        inner.values[node.name] = value
    return convert(inner, module)


def convert_control(scope: TorchScope, node: Any, convert: Convert) -> Any:
    """Return what a cond, while_loop or scan makes: a tuple of TensorRefs and NumberRefs."""
    return _RULES[node.target.name()](scope, node, convert)


def _captured(given: Sequence[Any], scope: TorchScope) -> list[int]:
    """Return the values that become inputs of a body."""
    tensors = [one.id for one in given if isinstance(one, (TensorRef, NumberRef))]
    return [one for one in tensors if scope.builder.values[one].data is None]


def _value(scope: TorchScope, given: Any, node: Any) -> int:
    """Return an output of a body as a value: a tensor, or a number of shape [1]."""
    if isinstance(given, (TensorRef, NumberRef)):
        return given.id
    if isinstance(given, (bool, int, float)):
        dtype = {bool: "bool", int: "int64", float: "float64"}[type(given)]
        return scope.builder.constant("number", np.array([given], dtype))
    raise ConvertError(f"{whereabouts(node)}: a body returns {given!r}, expected tensors")


def _results(made: Sequence[int], kinds: Sequence[Any]) -> tuple[Any, ...]:
    """Return values as NumberRefs where a body returns numbers, else as TensorRefs."""
    return tuple(
        TensorRef(value) if isinstance(kind, TensorRef) else NumberRef(value)
        for value, kind in zip(made, kinds, strict=True)
    )


def _cond(scope: TorchScope, node: Any, convert: Convert) -> Any:
    """cond: a branch with a known predicate is converted in place."""
    predicate, then_module, else_module, given = map(scope.argument, node.args)
    if isinstance(predicate, bool):
        return tuple(inlined(scope, then_module if predicate else else_module, given, convert))
    graphs, kinds = [], []
    for name, module in (("then", then_module), ("else", else_module)):
        body = _body(scope, name)
        outputs = body.run(module, [body.take(scope, one) for one in given], convert)
        kinds = outputs
        graphs.append(body.finish([_value(body.scope, one, node) for one in outputs]))
    made = scope.builder.add_node(
        "if",
        [predicate.id, *_captured(given, scope)],
        {"then_branch": graphs[0], "else_branch": graphs[1]},
        outputs=len(kinds),
        source=source_of(node),
    )
    return _results(made, kinds)


def _while(scope: TorchScope, node: Any, convert: Convert) -> Any:
    """while_loop: carried values, then values that both its functions read."""
    condition, step, carried, extra = map(scope.argument, node.args)
    first = [one if _is_tensor(one) else NumberRef(_value(scope, one, node)) for one in carried]
    going = inlined(scope, condition, [*first, *extra], convert)
    body = _body(scope, "body")
    turn = body.scope.builder.input("turn", TensorType((), "int64"))
    before = body.scope.builder.input("going", TensorType((), "bool"))
    body.inputs += [turn, before]
    shapes = [scope.builder.type(one.id).shape for one in first]
    own = [body.take(scope, one, shape) for one, shape in zip(first, shapes, strict=True)]
    read = [body.take(scope, one) for one in extra]
    made = body.run(step, [*own, *read], convert)
    values = [_value(body.scope, one, node) for one in made]
    kept = [type(old)(value) for old, value in zip(first, values, strict=True)]
    again = inlined(body.scope, condition, [*kept, *read], convert)
    graph = body.finish([_value(body.scope, again[0], node), *values])
    inputs = [None, _value(scope, going[0], node), *(one.id for one in first)]
    results = scope.builder.add_node(
        "loop",
        [*inputs, *_captured(extra, scope)],
        {"body": graph, "carried": len(first)},
        outputs=len(first),
        source=source_of(node),
    )
    return _results(results, first)


def _is_tensor(given: Any) -> bool:
    return isinstance(given, (TensorRef, NumberRef))


def _scan(scope: TorchScope, node: Any, convert: Convert) -> Any:
    """scan: states, tensors cut along their first axis, and values that every step reads."""
    step, states, scanned, extra = map(scope.argument, node.args)
    body = _body(scope, "step")
    own = [body.take(scope, one, scope.builder.type(one.id).shape) for one in states]
    slices = [body.take(scope, one, scope.builder.type(one.id).shape[1:]) for one in scanned]
    read = [body.take(scope, one) for one in extra]
    made = body.run(step, [*own, *slices, *read], convert)
    graph = body.finish([_value(body.scope, one, node) for one in made])
    results = scope.builder.add_node(
        "scan",
        [*(one.id for one in (*states, *scanned)), *_captured(extra, scope)],
        {"body": graph, "carried": len(states), "num_scan_inputs": len(scanned)},
        outputs=len(made),
        source=source_of(node),
    )
    return _results(results, made)


_RULES = {"cond": _cond, "while_loop": _while, "scan": _scan}
