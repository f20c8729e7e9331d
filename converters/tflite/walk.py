"""Convert a TensorFlow Lite model (.tflite) to a Graph; called by `trireme.model_file.convert`.

`entries` and `file` read the file into records, and a table of each family of operators turns one
into nodes. This module joins the tables, refuses what they lack, and binds the inputs and outputs.
The layout stays NHWC, constants stay views of the file, and quantisation stays in the types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.converters.fold import FoldingBuilder
from trireme.converters.tflite.control import CONTROL
from trireme.converters.tflite.entries import FileModel, read_file
from trireme.converters.tflite.file import FileGraph, FileTensor, open_bytes, reading
from trireme.converters.tflite.linear import LINEAR
from trireme.converters.tflite.mediapipe import MEDIAPIPE
from trireme.converters.tflite.movement import MOVERS
from trireme.converters.tflite.ops import COMPUTERS
from trireme.converters.tflite.order import ORDERERS
from trireme.converters.tflite.python_call import python_calls
from trireme.converters.tflite.recurrent import RECURRENT
from trireme.converters.tflite.scatter import SCATTERS
from trireme.converters.tflite.scope import BodyScope, ModelScope
from trireme.converters.tflite.segments import SEGMENTS
from trireme.converters.tflite.sixteen import sixteen_reason
from trireme.converters.tflite.use import ConversionState, Converter, OperatorUse
from trireme.ir.dims import symbol_name
from trireme.ir.graph import Dim, Graph, TensorType
from trireme.ir.python_op import PythonOp
from trireme.model_file.notes import OnNote, log_note
from trireme.support.errors import ConvertError, GraphError, ModelFileError
from trireme.support.mapped import OnOpen, ignore_file

OPERATORS: dict[str, Callable[[OperatorUse], None]] = (
    COMPUTERS | CONTROL | LINEAR | MEDIAPIPE | MOVERS | ORDERERS | RECURRENT | SCATTERS | SEGMENTS
)
"""The TensorFlow Lite operators that can be converted, by builtin (or custom) name."""


REFUSED: dict[str, Callable[[FileTensor], bool]] = {
    "of strings": lambda t: t.dtype == "string",
    "of packed int4": lambda t: t.dtype == "int4",
}
"""Tensors that no operator here supports, in the words of the error."""
_SHOWN = 8
"""Facts that an error lists."""


def convert(
    source: str | Path | bytes,
    *,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    open_inputs: Collection[str] = (),
    signature: str | None = None,
    use_mmap: bool = True,
    on_open: OnOpen = ignore_file,
    on_note: OnNote = log_note,
    python_ops: Mapping[str, PythonOp] | None = None,
) -> Graph:
    """Return the Graph of a .tflite model, given as a path or as its bytes.

    float32, float16 weights, int8, uint8 and 16x8 (int16 activations, int8 weights) quantised
    models are converted. Int8 weights under float activations ("dynamic range") quantise the input
    at run time, as LiteRT does.

    The constants are views of the file, which is mapped into memory. Replace the file atomically,
    never truncate it, or pass use_mmap=False.

    shapes: replaces the shapes of inputs by name
    open_inputs: inputs whose open dimensions become symbols, "name_axis". Others have the sizes
        that LiteRT gives them first: a batch of 1. Where an axis behind the first is open, the
        file has no useful sizes, and every open dimension of the input becomes a symbol
    signature: selects one of several graphs by its key; inputs and outputs then have its names.
        None takes the first graph
    on_open: called with the file
    on_note: called with the names of the other graphs, without `signature`
    python_ops: functions of the user that stand for operators, by name
    Errors: ModelFileError, naming the field, if the file is damaged; ConvertError with all
        operators that are not supported, or with the signatures where there is no such one
    """
    file = read_file(open_bytes(source, use_mmap, on_open), signature)
    if signature is None and file.others:
        on_note(_others_note(file))
    operators = {**OPERATORS, **python_calls(python_ops or {})}
    _check_supported(list(file.graphs.values()), operators)
    graph = file.main
    add_operators = partial(_convert_operators, operators)
    fallback = Path(source).stem if isinstance(source, str | Path) else graph.name
    scope = BodyScope(
        ModelScope(file.graphs, not (shapes or open_inputs), add_operators),
        FoldingBuilder(name or fallback),
    )
    state = ConversionState(scope, graph)
    try:
        names = {} if signature is None else file.entry.names
        _add_inputs(graph, state, shapes or {}, open_inputs, names)
        add_operators(state)
        outputs = [state.value(index, "SubGraph.outputs") for index in graph.outputs]
        scope.finish()
        return scope.builder.finish(*outputs)
    except GraphError as error:
        if shapes:
            raise ConvertError(error.summary, facts=error.facts, fix=error.fix) from error
        raise ModelFileError(
            f"the .tflite file contradicts itself: {error.summary}",
            facts=error.facts,
            fix=error.fix,
        ) from error


def _convert_operators(operators: Mapping[str, Converter], state: ConversionState) -> None:
    """Add the nodes of a subgraph whose inputs are bound."""
    state.scope.model.count(state.graph)
    for operator in state.graph.operators:
        with reading(operator.source), np.errstate(all="ignore"):
            operators[operator.code](OperatorUse(state, operator))


def _others_note(file: FileModel) -> str:
    others = ", ".join(map(repr, file.others))
    return (
        f"the .tflite file holds {len(file.others) + 1} graphs: {file.entry.name!r} is taken, not "
        f"{others}; choose with --signature NAME, or signature=NAME in Python"
    )


def _check_supported(graphs: Sequence[FileGraph], known: Collection[str]) -> None:
    """Raise one ConvertError with every operator that has no converter."""
    operators = [op for graph in graphs for op in graph.operators]
    missing = Counter(op.code for op in operators if op.code not in known)
    if missing:
        first = {op.code: op.source for op in reversed(operators)}
        code = next(iter(missing))
        raise ConvertError(
            f"{sum(missing.values())} of {len(operators)} operators are not supported",
            facts=[f"{n} x {code} (first {first[code]})" for code, n in missing.most_common()],
            fix=f'python_ops={{"{code}": function}} calls a Python operator instead',
        )
    tensors = [tensor for graph in graphs for tensor in _plain_tensors(graph)]
    for trouble, refused in REFUSED.items():
        names = [t.name for t in tensors if refused(t)]
        if names:
            raise ConvertError(f"tensors {trouble} are not supported", facts=_first(names))
    _check_sixteen(graphs)


def _check_sixteen(graphs: Sequence[FileGraph]) -> None:
    """Raise one ConvertError with every operator that cannot work on quantised int16."""
    refused = [
        f"{op.source}: {reason}"
        for graph in graphs
        for op in graph.operators
        if op.code not in RECURRENT and (reason := sixteen_reason(graph, op))
    ]
    if refused:
        raise ConvertError(
            f"{len(refused)} operators on tensors quantised to int16 are not supported",
            facts=_first(refused),
        )


def _first(facts: Sequence[str]) -> list[str]:
    """Return the first facts, and how many more there are."""
    more = [f"and {len(facts) - _SHOWN} more"] if len(facts) > _SHOWN else []
    return [*facts[:_SHOWN], *more]


def _plain_tensors(graph: FileGraph) -> list[FileTensor]:
    """Return the tensors that an operator reads or makes, but for the parts of recurrent layers.

    The converters of recurrent layers check the weights, states and intermediates themselves.
    """
    used = set(graph.inputs) | set(graph.outputs)
    for op in graph.operators:
        used.update(op.inputs[:1] if op.code in RECURRENT else op.inputs, op.outputs)
    return [tensor for tensor in graph.tensors if tensor.index in used]


def _add_inputs(
    file: FileGraph,
    state: ConversionState,
    shapes: Mapping[str, Sequence[int]],
    open_inputs: Collection[str],
    given: Mapping[int, str],
) -> None:
    """Add the inputs and name the outputs; `given` are names by tensor, before the tensors' own."""

    def name_of(tensor: int) -> str:
        return given.get(tensor) or file.tensors[tensor].name

    names = _unique([name_of(i) for i in file.inputs])
    unknown = sorted({*shapes, *open_inputs} - set(names))
    if unknown:
        raise ConvertError(
            f"no input is called {', '.join(map(repr, unknown))}",
            facts=[f"inputs: {', '.join(names)}"],
        )
    for index, name in zip(file.inputs, names, strict=True):
        tensor = file.tensors[index]
        if index in state.ids or tensor.data is not None:
            raise ModelFileError(f"input '{name}' is listed twice or is a constant")
        shape: tuple[Dim, ...] = tuple(int(dim) for dim in shapes.get(name, tensor.shape))
        if name not in shapes and (name in open_inputs or -1 in tensor.signature[1:]):
            shape = tuple(
                f"{symbol_name(name)}_{axis}" if dim < 0 else dim
                for axis, dim in enumerate(tensor.signature)
            )
        state.ids[index] = state.builder.input(name, TensorType(shape, tensor.dtype, tensor.quant))
    outputs = _unique([*names, *(name_of(i) for i in file.outputs)])[len(names) :]
    state.names = dict(zip(file.outputs, outputs, strict=True))


def _unique(names: list[str]) -> list[str]:
    """Return the names, with a suffix where one came before."""
    seen: set[str] = set()
    unique = []
    for name in names:
        base, count = name, 1
        while name in seen:
            name, count = f"{base}_{count}", count + 1
        seen.add(name)
        unique.append(name)
    return unique
