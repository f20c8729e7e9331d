"""Run a graph on the ops' numpy references: slow, obviously right, and the yardstick."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from trireme.ir.graph import Graph, Node
from trireme.ir.op import call_of, get_op
from trireme.support.cancel import check_cancelled
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import GraphError, RunError, ShapeError, TriremeError

Watch = Callable[[Node, tuple[Array, ...]], None]


def interpret(
    graph: Graph,
    feeds: Mapping[int, Array],
    watch: Watch | None = None,
    states: MutableMapping[str, Array] | None = None,
) -> dict[int, Array]:
    """Return the values of the graph's outputs, by id.

    feeds: an array for each input id
    watch: called after each node with its outputs
    states: the states by name, which the run changes; None starts with initial states
    Errors: RunError, naming the node in which a reference failed
    """
    env: dict[int, Array] = {v.id: v.data for v in graph.values.values() if v.data is not None}
    env.update(feeds)
    states = {} if states is None else states
    uses_left = {value: len(graph.users(value)) for value in graph.values}
    for value in graph.outputs:
        uses_left[value] += 1
    for node in graph.nodes:
        arrays = [None if i is None else env[i] for i in node.inputs]
        results = evaluate(graph, node, arrays, states)
        env.update(zip(node.outputs, results, strict=True))
        if watch is not None:
            watch(node, results)
        for value in set(node.used):
            uses_left[value] -= 1
            if not uses_left[value]:
                del env[value]
    return {value: env[value] for value in graph.outputs}


def evaluate(
    graph: Graph,
    node: Node,
    arrays: list[Array | None],
    states: MutableMapping[str, Array] | None = None,
) -> tuple[Array, ...]:
    """Return the outputs of one node on the reference, quantised if its first input is."""
    with np.errstate(all="ignore"):
        return evaluator(graph, node, states)(arrays)


def evaluator(
    graph: Graph, node: Node, states: MutableMapping[str, Array] | None = None
) -> Callable[[list[Array | None]], tuple[Array, ...]]:
    """Return what computes the outputs of one node from its operands, as often as asked.

    The caller switches numpy's warnings off.
    """
    reference = _reference(graph, node, states)
    dtypes = [numpy_dtype(graph.type(out).dtype) for out in node.outputs]

    def run(arrays: list[Array | None]) -> tuple[Array, ...]:
        check_cancelled()
        try:
            results = reference(*arrays)
        except (RunError, ShapeError) as error:
            summary = f"{node.label}: {error.summary}"
            raise type(error)(summary, facts=error.facts, fix=error.fix) from error
        except TriremeError:
            raise
        except Exception as error:
            refusal = _refusal(graph, node, arrays)
            raise _failed(node, arrays, refusal or error) from refusal or error
        if not isinstance(results, tuple):
            results = (results,)
        pairs = zip(results, dtypes, strict=False)
        return tuple([_as_array(made, dtype) for made, dtype in pairs])

    return run


def _as_array(made: Any, dtype: np.dtype[Any]) -> Array:
    """Return what a reference made as an array: the array itself where it is one."""
    if type(made) is np.ndarray and made.dtype == dtype:
        return made
    return np.asarray(made, dtype)


def _reference(
    graph: Graph, node: Node, states: MutableMapping[str, Array] | None
) -> Callable[..., Any]:
    """Return the reference of a node with its attributes, its quantised form if it has one."""
    op = get_op(node.op)
    if is_quantized(graph, node) and not op.moves and not _has_body(node):
        if op.quantized is None:
            return partial(_refuse_quantised, op.name)
        return partial(op.quantized, call_of(graph, node))
    if op.effect in ("reads", "writes") or op.has_body:
        return partial(op.reference, **node.attrs, states={} if states is None else states)
    return partial(op.reference, **node.attrs)


def _refuse_quantised(name: str, *arrays: Array | None) -> None:
    raise GraphError(f"{name} has no quantised form")


def _failed(node: Node, arrays: list[Array | None], error: Exception) -> RunError:
    seen = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
    why = error.summary if isinstance(error, TriremeError) else f"the reference failed: {error}"
    return RunError(f"{node.label}: {why}", facts=[f"inputs {seen}"])


def _refusal(graph: Graph, node: Node, arrays: list[Array | None]) -> TriremeError | None:
    """Return the error of type inference with all inputs' data, None if there is none."""
    known = [
        None
        if value is None or array is None
        else replace(
            graph.values[value], type=replace(graph.type(value), shape=array.shape), data=array
        )
        for value, array in zip(node.inputs, arrays, strict=True)
    ]
    try:
        get_op(node.op).infer(*known, **node.attrs)
    except TriremeError as error:
        return error
    return None


def is_quantized(graph: Graph, node: Node) -> bool:
    """Whether a node reads or makes a quantised value, and so works on stored integers."""
    values = [*node.used, *node.outputs]
    return any(graph.type(value).quant is not None for value in values)


def _has_body(node: Node) -> bool:
    """Whether an attribute is a graph, which takes stored integers as they are."""
    return any(isinstance(value, Graph) for value in node.attrs.values())


def run_reference(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs by name, given inputs by name: `interpret` for people."""
    by_name: dict[int, Any] = {}
    for value in graph.input_values():
        if value.name not in feeds:
            raise RunError(f"input '{value.name}' ({value.type}) is missing")
        by_name[value.id] = np.asarray(feeds[value.name], dtype=numpy_dtype(value.dtype))
    results = interpret(graph, by_name)
    return {graph.values[i].name: results[i] for i in graph.outputs}
