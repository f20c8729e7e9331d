"""Convert a decomposed program: bind inputs, weights and state, convert nodes, name outputs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from trireme.converters.torch.control import convert_control
from trireme.converters.torch.program import DecomposedProgram
from trireme.converters.torch.source import op_of, whereabouts
from trireme.converters.torch.support import control_of, needed, on_complex, refuse_unsupported
from trireme.converters.torch.table import ATEN, ATEN_COMPLEX, SCALARS
from trireme.converters.torch.use import (
    ComplexRef,
    NumberRef,
    TensorRef,
    TorchScope,
    Use,
    array_of,
    dtype_name,
    is_complex,
    part_dtype,
)
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Dim, Graph, TensorType
from trireme.support.dtypes import Array
from trireme.support.errors import ConvertError, InternalError, TriremeError

_STATIC = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")


def convert_program(program: DecomposedProgram, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """Return the graph of a program; see `trireme.converters.torch.convert`."""
    module = program.exported.graph_module
    refuse_unsupported(module)
    inputs = _user_inputs(program.exported)
    bound = _bound(inputs, shapes)
    scope = TorchScope(GraphBuilder(program.name), bound, program.names)
    _bind_inputs(scope, program, inputs)
    _bind_weights(scope, program)
    try:
        made = convert_nodes(scope, module)
        outputs = _outputs(scope, program.exported, made)
        return scope.builder.finish(*outputs)
    except (ConvertError, InternalError):
        raise
    except TriremeError as error:
        raise ConvertError(error.summary, facts=error.facts, fix=error.fix) from error


def _user_inputs(exported: Any) -> dict[str, Any]:
    """Return what torch knows of each input that is a tensor or a number, by name."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    found = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT" and spec.arg.name in nodes:
            value = nodes[spec.arg.name].meta.get("val")
            if isinstance(value, (torch.Tensor, torch.SymInt)):
                found[spec.arg.name] = value
    return found


def _bound(inputs: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> dict[Any, int]:
    """Return the sizes of symbols by the shapes that are given."""
    bound: dict[Any, int] = {}
    for name, shape in shapes.items():
        if not isinstance(inputs.get(name), torch.Tensor):
            known = ", ".join(inputs)
            raise ConvertError(f"no input is called '{name}'", facts=[f"inputs: {known}"])
        dims = inputs[name].shape
        if len(dims) != len(shape):
            raise ConvertError(f"input '{name}': shape {list(shape)} was given for {list(dims)}")
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, torch.SymInt) and dim.node.expr.is_Symbol:
                symbol = dim.node.expr
                if bound.setdefault(symbol, int(size)) != size:
                    raise ConvertError(
                        f"input '{name}': symbol {symbol} is bound to {bound[symbol]} and to {size}"
                    )
            elif isinstance(dim, int) and dim != size:
                raise ConvertError(
                    f"input '{name}': shape {list(shape)} was given for {list(dims)}"
                )
    return bound


def _bind_inputs(scope: TorchScope, program: DecomposedProgram, inputs: Mapping[str, Any]) -> None:
    bounds = program.exported.range_constraints
    for name, value in inputs.items():
        if isinstance(value, torch.SymInt):
            given = scope.builder.input(name, TensorType((), "int64"))
            shape = scope.builder.constant("one", np.ones(1, np.int64))
            made = scope.builder.add("reshape", given, shape, source=f"torch:{name}")
            scope.values[name] = NumberRef(made)
            continue
        if is_complex(value):
            fix = "take the parts as [..,2] and begin with torch.view_as_complex"
            raise ConvertError(f"input '{name}' is of complex numbers", fix=fix)
        dims = tuple(_dim(scope, size, bounds) for size in value.shape)
        type = TensorType(dims, dtype_name(value.dtype))
        scope.values[name] = TensorRef(scope.builder.input(name, type))
    for node in program.exported.graph.nodes:
        if node.op == "placeholder":
            scope.values.setdefault(node.name, node.meta.get("val"))


def _dim(scope: TorchScope, size: Any, bounds: Mapping[Any, Any]) -> Dim:
    """Return a dimension of an input; a symbol's bounds are kept in the graph."""
    extent = scope.extent(size)
    if isinstance(extent, int):
        return extent
    text = str(extent).replace(" ", "")
    name = scope.names.get(text, text)
    found = bounds.get(extent)
    least, most = (0, None) if found is None else (found.lower, found.upper)
    limits = (int(least), int(most) if most is not None and most.is_Integer else None)
    scope.builder.symbols[name] = limits
    return name


def _bind_weights(scope: TorchScope, program: DecomposedProgram) -> None:
    """Bind parameters, buffers and constants; a buffer that changes is a variable."""
    exported = program.exported
    signature, cache = exported.graph_signature, {}
    changed = set(signature.buffers_to_mutate.values())
    for spec in signature.input_specs:
        kind, name, target = spec.kind.name, spec.arg.name, spec.target
        if kind == "TOKEN":
            continue
        if kind not in (*_STATIC, "USER_INPUT"):
            raise ConvertError(f"input '{name}' is a {kind}, expected a tensor or a number")
        if kind == "USER_INPUT":
            continue
        tensor = _tensor(exported, target)
        kind_of_bits = (tensor.dtype, tensor.is_conj(), tensor.is_neg())
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), kind_of_bits)
        if key not in cache or not tensor.numel() or target in changed:
            cache[key] = _constant(scope, target, array_of(tensor, not program.is_own))
        value = cache[key]
        if target in changed:
            if isinstance(value, ComplexRef):
                raise ConvertError(f"buffer '{target}' changes and is of complex numbers")
            source = f"torch:{target}"
            made = scope.builder.add("variable", value.id, state=target, source=source)
            value = TensorRef(made)
        scope.values[name] = value


def _constant(scope: TorchScope, name: str, data: Array) -> TensorRef | ComplexRef:
    """Add a constant; one of complex numbers is two."""
    if data.dtype.kind != "c":
        return TensorRef(scope.builder.constant(name, data))
    parts = {"real": data.real, "imag": data.imag}
    return ComplexRef(
        *(
            scope.builder.constant(f"{name}.{key}", np.ascontiguousarray(part))
            for key, part in parts.items()
        )
    )


def _tensor(exported: Any, target: str) -> Any:
    for store in (exported.state_dict, exported.constants):
        if target in store:
            return store[target]
    raise ConvertError(f"the program has no tensor for '{target}'")


def convert_nodes(scope: TorchScope, module: Any) -> list[Any]:
    """Convert the nodes of a graph and return its outputs: TensorRefs, NumberRefs, numbers."""
    outputs: Any = None
    for node in needed(module.graph):
        if node.op == "output":
            outputs = scope.argument(node.args[0])
        elif node.op == "get_attr":
            scope.values[node.name] = _attribute(scope, module, node)
        elif node.op == "call_function":
            scope.values[node.name] = _converted(scope, node)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _attribute(scope: TorchScope, module: Any, node: Any) -> Any:
    found = operator.attrgetter(node.target)(module)
    if not isinstance(found, torch.Tensor):
        return found
    return _constant(scope, node.target, array_of(found, True))


def _converted(scope: TorchScope, node: Any) -> Any:
    """Return what one node makes; an error names the node and its line."""
    first = len(scope.builder.values)
    try:
        made = _value(scope, node)
    except (ConvertError, InternalError):
        raise
    except TriremeError as error:
        summary = f"{whereabouts(node)}: {error.summary}"
        raise ConvertError(summary, facts=error.facts, fix=error.fix) from error
    if isinstance(made, TensorRef):
        _verify(scope, node, made.id)
        if made.id >= first:
            scope.rename(made.id, node.name)
    elif isinstance(made, ComplexRef):
        for key, part in (("real", made.real), ("imag", made.imag)):
            _verify(scope, node, part)
            if part >= first:
                scope.rename(part, f"{node.name}.{key}")
    return made


def _value(scope: TorchScope, node: Any) -> Any:
    if control_of(node):
        return convert_control(scope, node, convert_nodes)
    if node.target is operator.getitem:
        whole, place = node.args
        return scope.values[whole.name][place]
    if op_of(node) in SCALARS:
        return _number(scope, node)
    use = Use(scope, node, _arguments(scope, node))
    rules = ATEN_COMPLEX if on_complex(node) else ATEN
    made = rules[str(node.target)](use)
    return tuple(map(_ref, made)) if isinstance(made, (tuple, list)) else _ref(made)


def _ref(made: Any) -> Any:
    """Return what a rule made, an id as a TensorRef."""
    return TensorRef(made) if isinstance(made, int) else made


def _number(scope: TorchScope, node: Any) -> Any:
    """Return a number: itself where the shapes that are given settle it."""
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        extent = scope.extent(value)
        if isinstance(extent, int):
            return extent
    elif isinstance(value, (int, float)):
        return value
    args = [scope.argument(arg) for arg in node.args]
    return SCALARS[op_of(node)](Use(scope, node, {}), args)


def _arguments(scope: TorchScope, node: Any) -> dict[str, Any]:
    """Return the arguments of an op by name, with the defaults of its schema."""
    args: dict[str, Any] = {}
    for place, formal in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            args[formal.name] = scope.argument(node.args[place])
        elif formal.name in node.kwargs:
            args[formal.name] = scope.argument(node.kwargs[formal.name])
        else:
            args[formal.name] = formal.default_value
    return args


def _verify(scope: TorchScope, node: Any, made: int) -> None:
    """Raise InternalError if a rule makes another type than torch."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return
    type, dtype = scope.builder.type(made), part_dtype(value.dtype)
    shape = [scope.extent(dim) for dim in value.shape]
    fits = len(shape) == len(type.shape) and all(
        not isinstance(ours, int) or not isinstance(theirs, int) or ours == theirs
        for ours, theirs in zip(type.shape, shape, strict=True)
    )
    if not fits or type.dtype != dtype:
        wanted = f"{dtype}{shape}"
        raise InternalError(f"{whereabouts(node)}: converted to {type}, torch makes {wanted}")


def _outputs(scope: TorchScope, exported: Any, made: Sequence[Any]) -> list[int]:
    """Write buffers that change and return the outputs with names."""
    signature = exported.graph_signature
    users = iter(_output_names(exported.call_spec.out_spec))
    outputs: list[int] = []
    taken: set[str] = set()
    for spec, value in zip(signature.output_specs, made, strict=True):
        kind = spec.kind.name
        if kind == "TOKEN":
            continue
        if kind == "BUFFER_MUTATION":
            source = f"torch:{spec.target}"
            scope.builder.add("assign", value.id, state=spec.target, source=source)
            continue
        name = f"{spec.target}.new" if kind == "USER_INPUT_MUTATION" else next(users)
        if kind not in ("USER_OUTPUT", "USER_INPUT_MUTATION"):
            raise ConvertError(f"output '{name}' is a {kind}, expected a tensor or a number")
        if isinstance(value, ComplexRef):
            fix = "return torch.view_as_real(y)"
            raise ConvertError(f"output '{name}' is of complex numbers", fix=fix)
        if isinstance(value, (int, float)):
            value = TensorRef(scope.builder.constant(name, torch.tensor(value).numpy()))
        if isinstance(value, NumberRef):
            scalar = scope.builder.constant(f"{name}.shape", np.zeros(0, np.int64))
            value = TensorRef(scope.builder.add("reshape", value.id, scalar, source="torch:output"))
        if isinstance(value, TensorRef):
            outputs.append(_named(scope, value.id, _unique(name, taken), outputs))
    return outputs


def _unique(name: str, taken: set[str]) -> str:
    number, first = 1, name
    while name in taken:
        number += 1
        name = f"{first}#{number}"
    taken.add(name)
    return name


def _named(scope: TorchScope, value: int, name: str, given: Sequence[int]) -> int:
    """Return an output with its name; one that has a name already becomes a copy."""
    builder = scope.builder
    is_made = any(value in node.outputs for node in builder.nodes)
    if value in given or not is_made:
        return builder.add("identity", value, names=[name], source="torch:output")
    scope.rename(value, name)
    return value


def _output_names(spec: Any) -> Iterator[str]:
    """Yield a name for each output: its path in the structure that forward returns."""
    if spec.is_leaf():
        yield "output"
        return
    for path in _paths(spec):
        yield path if not path[0].isdigit() else f"output.{path}"


def _paths(spec: Any) -> Iterator[str]:
    if spec.is_leaf():
        yield ""
        return
    children, context = spec.children(), spec.context
    keys = context if isinstance(context, (list, tuple)) and len(context) == len(children) else None
    if hasattr(spec.type, "_fields"):
        keys = spec.type._fields
    for place, child in enumerate(children):
        key = str(keys[place]) if keys is not None else str(place)
        for rest in _paths(child):
            yield f"{key}.{rest}" if rest else key
