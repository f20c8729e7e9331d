"""TensorFlow Lite operators that call subgraphs, and those that read and write variables.

A body becomes a Graph. A state that a body reads is one of its inputs; a state that a body changes
is also one of its outputs. The condition of a WHILE is added twice: before the loop, and at the end
of its body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trireme.converters.fold import FoldingBuilder
from trireme.converters.tflite.file import FileGraph
from trireme.converters.tflite.scope import MOST_DEPTH, BodyScope
from trireme.converters.tflite.use import ConversionState, Converter, OperatorUse
from trireme.ir.graph import UNKNOWN, Graph, TensorType
from trireme.ir.interpreter import interpret
from trireme.ir.op import get_op
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import ModelFileError

Operand = int | str
"""A value, or the name of the state that a resource tensor stands for."""
_MOST_INITIAL_BYTES = 1 << 30
"""The most bytes of all values that the subgraph of a CALL_ONCE computes."""


def _graphs(use: OperatorUse) -> list[FileGraph]:
    return [use.state.scope.model.graphs[index] for index in use.operator.subgraphs]


def _operands(use: OperatorUse, first: int = 0) -> list[Operand]:
    """Return the operands of an operator from the input `first` on."""
    tensors = [use.tensor(i) for i in range(first, len(use.operator.inputs))]
    return [_operand(use.state, tensor.index, use.source) for tensor in tensors]


def _operand(state: ConversionState, tensor: int, where: str) -> Operand:
    if tensor in state.handles:
        return state.handles[tensor]
    return state.value(tensor, where)


def inline(
    use: OperatorUse, scope: BodyScope, graph: FileGraph, operands: Sequence[Operand]
) -> list[Operand]:
    """Add a subgraph's nodes to a scope and return its outputs.

    Errors: ModelFileError, if the operands are not those that the subgraph takes, or if calls are
        nested without end
    """
    where = f"{use.source}: subgraph {graph.index} '{graph.name}'"
    if len(operands) != len(graph.inputs):
        raise ModelFileError(f"{where} takes {len(graph.inputs)} inputs, {len(operands)} are given")
    if scope.depth >= MOST_DEPTH:
        raise ModelFileError(f"{where} is called over {MOST_DEPTH} calls deep")
    state = ConversionState(scope, graph)
    for index, operand in zip(graph.inputs, operands, strict=True):
        tensor = graph.tensors[index]
        if isinstance(operand, str):
            state.handles[index] = operand
            continue
        type = scope.builder.type(operand)
        if index in state.ids or tensor.data is not None or type.dtype != tensor.dtype:
            raise ModelFileError(f"{where}: input '{tensor.name}' does not take {type}")
        state.ids[index] = operand
    scope.depth += 1
    scope.model.convert(state)
    scope.depth -= 1
    return [_operand(state, index, where) for index in graph.outputs]


def _check_handles(use: OperatorUse, one: Sequence[Operand], other: Sequence[Operand]) -> None:
    """Check that two lists of outputs have the same resources at the same places."""
    for position, (a, b) in enumerate(zip(one, other, strict=True)):
        if (isinstance(a, str) or isinstance(b, str)) and a != b:
            raise use.fail(f"output {position} is not the same resource every time")


def _values(operands: Sequence[Operand]) -> list[int]:
    return [operand for operand in operands if isinstance(operand, int)]


def _give(use: OperatorUse, made: Sequence[Operand]) -> None:
    """Make values and resources the outputs of an operator, with the names of its tensors."""
    if len(made) != len(use.operator.outputs):
        count = len(use.operator.outputs)
        raise ModelFileError(f"{use.source} has {count} outputs, {len(made)} are made")
    for position, operand in enumerate(made):
        tensor = use.output(position)
        if isinstance(operand, str):
            use.state.handles[tensor.index] = operand
            continue
        use.give(position, operand)


def call(use: OperatorUse) -> None:
    """CALL and STABLEHLO_COMPOSITE: the nodes of the subgraph take the operator's place."""
    (graph,) = _graphs(use)
    _give(use, inline(use, use.state.scope, graph, _operands(use)))


def if_else(use: OperatorUse) -> None:
    """IF (condition, inputs): both subgraphs become graphs."""
    scope, operands = use.state.scope, _operands(use, 1)
    branches = [_branch(use, graph, operands) for graph in _graphs(use)]
    _check_handles(use, *(outputs for _, _, outputs in branches))
    entered = list(dict.fromkeys(name for inner, _, _ in branches for name in inner.entered))
    written = list(dict.fromkeys(name for inner, _, _ in branches for name in inner.written))
    graphs = []
    for inner, formal, outputs in branches:
        states = [inner.read(name, use.source) for name in written]
        for name in entered:
            inner.read(name, use.source)
        inner.builder.inputs = [*formal, *(inner.entered[name] for name in entered)]
        graphs.append(inner.builder.finish(*_values(outputs), *states))
    captures = [scope.read(name, use.source) for name in entered]
    attrs = {"then_branch": graphs[0], "else_branch": graphs[1]}
    inputs = [use.value(0), *_values(operands), *captures]
    _add(use, "if", inputs, attrs, graphs[0], branches[0][2], written)


def _branch(
    use: OperatorUse, graph: FileGraph, operands: Sequence[Operand]
) -> tuple[BodyScope, list[int], list[Operand]]:
    """Return the scope of a branch, its inputs, and its outputs."""
    inner = use.state.scope.inner(graph.name)
    types = [None if isinstance(o, str) else use.builder.type(o) for o in operands]
    formal = _formal(inner, graph, operands, types)
    return inner, _values(formal), inline(use, inner, graph, formal)


def _formal(
    inner: BodyScope,
    graph: FileGraph,
    operands: Sequence[Operand],
    types: Sequence[TensorType | None],
) -> list[Operand]:
    """Add the inputs of a body and return the operands that its subgraph takes."""
    formal: list[Operand] = []
    for position, (operand, type) in enumerate(zip(operands, types, strict=True)):
        inputs = graph.inputs
        name = graph.tensors[inputs[position]].name if position < len(inputs) else "surplus"
        formal.append(operand if type is None else inner.builder.input(name, type))
    return formal


def _add(
    use: OperatorUse,
    op: str,
    inputs: Sequence[int | None],
    attrs: dict[str, Any],
    body: Graph,
    outputs: Sequence[Operand],
    written: Sequence[str],
) -> None:
    """Add the node of an IF or a WHILE, whose last outputs are the states that are changed."""
    own = body.outputs[len(body.outputs) - len(_values(outputs)) - len(written) :]
    made = list(
        use.builder.add_node(
            op,
            inputs,
            attrs,
            outputs=len(own),
            quants=[body.type(value).quant for value in own],
            source=use.source,
        )
    )
    for name in reversed(written):
        use.state.scope.write(name, made.pop(), use.source)
    results = iter(made)
    _give(use, [operand if isinstance(operand, str) else next(results) for operand in outputs])


def while_loop(use: OperatorUse) -> None:
    """WHILE (carried values): the condition runs before the loop and at the end of its body."""
    scope, operands = use.state.scope, _operands(use)
    condition, graph = _graphs(use)
    start = _condition(use, scope, condition, operands)
    types = [None if isinstance(o, str) else use.builder.type(o) for o in operands]
    while True:
        inner = scope.inner(graph.name)
        turn = inner.builder.input("turn", TensorType((), "int64"))
        going = inner.builder.input("going", TensorType((), "bool"))
        formal = _formal(inner, graph, operands, types)
        outputs = inline(use, inner, graph, formal)
        if len(outputs) != len(operands):
            raise ModelFileError(
                f"{use.source}: the body makes {len(outputs)} values, {len(operands)} are carried"
            )
        _check_handles(use, operands, outputs)
        wider = [
            None if type is None or isinstance(made, str) else _widened(use, type, inner, made)
            for type, made in zip(types, outputs, strict=True)
        ]
        if wider == types:
            break
        types = wider
    again = _condition(use, inner, condition, outputs)
    written = list(inner.written)
    read = [name for name in inner.entered if name not in inner.written]
    entered = [*written, *read]
    inner.builder.inputs = [
        turn,
        going,
        *_values(formal),
        *(inner.entered[name] for name in entered),
    ]
    carried = _values(outputs)
    body = inner.builder.finish(again, *carried, *(inner.states[name] for name in written))
    attrs = {"body": body, "carried": len(carried) + len(written)}
    states = [scope.read(name, use.source) for name in entered]
    inputs = [None, start, *_values(operands), *states]
    _add(use, "loop", inputs, attrs, body, outputs, written)


def _condition(
    use: OperatorUse, scope: BodyScope, graph: FileGraph, operands: Sequence[Operand]
) -> int:
    """Add the condition of a WHILE and return its value."""
    made = inline(use, scope, graph, operands)
    if len(made) != 1 or isinstance(made[0], str) or scope.builder.type(made[0]).dtype != "bool":
        raise ModelFileError(f"{use.source}: the condition does not make one bool")
    return made[0]


def _widened(use: OperatorUse, type: TensorType, inner: BodyScope, value: int) -> TensorType:
    """Return the type of a carried value whose dimensions that change are unknown."""
    made = inner.builder.type(value)
    same = len(made.shape) == len(type.shape) and made.quant == type.quant
    if not same or made.dtype != type.dtype:
        raise use.fail(f"a carried value is {type} and becomes {made}")
    dims = (a if a == b else UNKNOWN for a, b in zip(type.shape, made.shape, strict=True))
    return TensorType(tuple(dims), type.dtype, type.quant)


def call_once(use: OperatorUse) -> None:
    """CALL_ONCE: the values that the subgraph assigns are the first values of the variables."""
    model = use.state.scope.model
    (graph,) = _graphs(use)
    if graph.index in model.initialised:
        return
    model.initialised.add(graph.index)
    before = set(model.touched)
    scope = BodyScope(model, FoldingBuilder(graph.name), depth=use.state.scope.depth)
    inline(use, scope, graph, ())
    late = [name for name in scope.written if name in before]
    if late:
        raise use.fail(f"variable '{late[0]}' is used before CALL_ONCE gives it a first value")
    made = scope.builder.finish(*(scope.states[name] for name in scope.written))
    _check_bounded(use, made)
    results = interpret(made, {})
    for name, value in zip(scope.written, made.outputs, strict=True):
        model.initial[name] = (results[value], made.type(value).quant)


def _check_bounded(use: OperatorUse, graph: Graph) -> None:
    """Check that the types bound the time and memory that a graph without inputs takes."""
    for node in graph.nodes:
        if not get_op(node.op).bounded or any(isinstance(v, Graph) for v in node.attrs.values()):
            raise use.fail(f"its subgraph has a {node.op}, which may run without end")
    total = 0
    for value in graph.values.values():
        if not value.type.is_static:
            raise use.fail(f"its subgraph makes {value.type}, whose shape is not known")
        total += value.type.elements * numpy_dtype(value.type.dtype).itemsize
    if total > _MOST_INITIAL_BYTES:
        raise use.fail(f"its subgraph makes {total} bytes, the limit is {_MOST_INITIAL_BYTES}")


def var_handle(use: OperatorUse) -> None:
    """VAR_HANDLE: variables of one container and shared name are one, in all subgraphs."""
    key = tuple(
        bytes(use.option(part, None) or b"").decode("utf-8", "replace")
        for part in ("Container", "SharedName")
    )
    name = use.state.scope.model.state_name(key, "/".join(filter(None, key)) or "variable")
    use.state.handles[use.output().index] = name


def _state(use: OperatorUse) -> str:
    tensor = use.tensor(0)
    if tensor.index not in use.state.handles:
        raise ModelFileError(f"{use.source}: input 0 '{tensor.name}' is no variable's handle")
    return use.state.handles[tensor.index]


def read_variable(use: OperatorUse) -> None:
    """READ_VARIABLE (handle): the declared shape of the output says nothing."""
    value, tensor = use.state.scope.read(_state(use), use.source), use.output()
    type = use.builder.type(value)
    if type.dtype != tensor.dtype:
        raise ModelFileError(f"{use.source}: the variable is {type}, not {tensor.dtype}")
    name = use.state.names.get(tensor.index, tensor.name)
    use.state.ids[tensor.index] = use.builder.add(
        "identity", value, names=[name], quants=[type.quant], source=use.source
    )


def assign_variable(use: OperatorUse) -> None:
    """ASSIGN_VARIABLE (handle, value)."""
    use.state.scope.write(_state(use), use.value(1), use.source)


CONTROL: dict[str, Converter] = {
    "ASSIGN_VARIABLE": assign_variable,
    "CALL": call,
    "CALL_ONCE": call_once,
    "IF": if_else,
    "READ_VARIABLE": read_variable,
    "STABLEHLO_COMPOSITE": call,
    "VAR_HANDLE": var_handle,
    "WHILE": while_loop,
}
