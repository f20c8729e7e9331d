"""Convert an ONNX graph: bind its inputs and weights, convert each node, name the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trireme.converters.onnx.adapt import adapt
from trireme.converters.onnx.control import CONTROL
from trireme.converters.onnx.domains import DOMAINS
from trireme.converters.onnx.file import Files, domain_of, in_order, opsets_of
from trireme.converters.onnx.functions import attributes_for, body_for, body_opsets, fill_in
from trireme.converters.onnx.optional import check_optional, weights_of
from trireme.converters.onnx.proto import AttributeProto, NodeProto, TensorShapeProto
from trireme.converters.onnx.scope import Common, NodeUse, Scope
from trireme.converters.onnx.sequence_inputs import as_tensors, element_name
from trireme.converters.onnx.sequences import EITHER, MAKES, MAPS, READS
from trireme.converters.onnx.support import python_op_of, refuse_too_old, refuse_unsupported
from trireme.converters.onnx.table import entry_of
from trireme.converters.onnx.tensors import sparse_array, tensor_array, tensor_type
from trireme.converters.onnx.unfold import refuse_endless
from trireme.ir.any_rank import has_late_rank
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import Graph, TensorType
from trireme.ir.python_op import OP, PythonOp
from trireme.support.errors import ConvertError, ModelFileError, TriremeError

_ATTRIBUTE = AttributeProto


def convert_model(
    model: Any,
    files: Files,
    shapes: Mapping[str, Sequence[int]],
    name: str | None,
    python_ops: Mapping[str, PythonOp],
    optional_inputs: Sequence[str],
) -> Graph:
    """Return the graph of a model; see `trireme.converters.onnx.convert`."""
    opsets = opsets_of(model.opset_import, "the model")
    functions = {(domain_of_function(f), f.name): f for f in model.functions}
    if len(functions) < len(model.functions):
        raise ModelFileError("two of the model's functions have one name")
    refuse_unsupported(model.graph, opsets, functions, python_ops)
    refuse_endless(model.graph, opsets, functions)
    refuse_too_old(model.graph, opsets)
    scope = Scope(
        Common(functions, files, python_ops),
        GraphBuilder(name or model.graph.name or "onnx"),
        opsets,
    )
    try:
        check_optional(model, optional_inputs)
        outputs = convert_graph(scope, model.graph, shapes, optional_inputs)
        return scope.builder.finish(*outputs)
    except (ConvertError, ModelFileError):
        raise
    except TriremeError as error:
        raise ConvertError(error.summary, facts=error.facts, fix=error.fix) from error


def domain_of_function(function: Any) -> str:
    """Return the domain of a model-local function; the default domain is called ""."""
    return "" if function.domain in ("", "ai.onnx") else str(function.domain)


def convert_graph(
    scope: Scope, graph: Any, shapes: Mapping[str, Sequence[int]], fed: Sequence[str]
) -> list[int]:
    """Add a whole graph to a scope and return its outputs, with the model's names.

    fed: the inputs whose initializers are left out
    """
    where = f"graph '{graph.name}'"
    weights = bind_weights(scope, graph, where, fed)
    bind_inputs(scope, graph, weights, shapes, where)
    return convert_nodes(scope, graph, where, True)


def convert_body(scope: Scope, graph: Any, named: bool) -> list[int]:
    """Add a body, whose inputs are bound, to a scope of its own and return its outputs."""
    where = f"graph '{graph.name}'"
    bind_weights(scope, graph, where)
    return convert_nodes(scope, graph, where, named)


def convert_nodes(scope: Scope, graph: Any, where: str, named: bool) -> list[int]:
    """Add the nodes of a graph and return its outputs; `named` keeps the model's names."""
    for label, node in in_order(graph.node, where):
        convert_node(scope, node, label)
    outputs: list[int] = []
    given: set[int] = set()
    for name, value in made_outputs(scope, graph, where):
        if named and (scope.builder.values[value].name != name or value in given):
            value = scope.builder.add("identity", value, names=[name], source="onnx:output")
        outputs.append(value)
        given.add(value)
    return outputs


def made_outputs(scope: Scope, graph: Any, where: str) -> Iterator[tuple[str, int]]:
    """Yield the outputs of a graph; a sequence of the whole graph as an output for each element."""
    for output in graph.output:
        value = scope.find(output.name)
        sequence = scope.sequence(output.name) if value is None else None
        if sequence is not None and scope.outer is not None:
            raise ConvertError(f"{where}: output '{output.name}' is a sequence, not a tensor")
        if sequence is not None:
            yield from ((element_name(output.name, i), one) for i, one in enumerate(sequence))
        elif value is None:
            raise ModelFileError(f"{where}: output '{output.name}' is never made")
        else:
            yield output.name, value


def bind_weights(scope: Scope, graph: Any, where: str, left_out: Sequence[str] = ()) -> set[str]:
    """Bind the initializers as constants and return their names."""
    names: set[str] = set()
    for name, proto, decoder in weights_of(graph):
        if name in names:
            raise ModelFileError(f"{where}: two initializers are called '{name}'")
        if name in left_out:
            continue
        data = decoder(proto, scope.common.files, where)
        scope.names[name] = scope.builder.constant(name, data)
        names.add(name)
    return names


def bind_inputs(
    scope: Scope, graph: Any, weights: set[str], shapes: Mapping[str, Sequence[int]], where: str
) -> None:
    """Bind the inputs without an initializer, with open dimensions from `shapes`."""
    required = [proto for proto in graph.input if proto.name not in weights]
    protos, sequences = as_tensors(required, shapes, where)
    unknown = sorted(set(shapes) - {proto.name for proto in protos})
    if unknown:
        names = ", ".join(proto.name for proto in protos)
        raise ConvertError(f"no input is called '{unknown[0]}'", facts=[f"inputs: {names}"])
    types = {}
    bound: dict[str, int] = {}
    for proto in protos:
        if proto.name in types:
            raise ModelFileError(f"{where}: two inputs are called '{proto.name}'")
        types[proto.name] = input_type(proto, where, shapes.get(proto.name), bound)
    for name, type in types.items():
        dims = tuple(bound.get(dim, dim) if isinstance(dim, str) else dim for dim in type.shape)
        scope.names[name] = scope.builder.input(name, TensorType(dims, type.dtype))
    for name, elements in sequences.items():
        scope.sequences[name] = [scope.names[one] for one in elements]


def input_type(
    proto: Any, where: str, given: Sequence[int] | None, bound: dict[str, int]
) -> TensorType:
    """Return the type of an input, with `given` as its shape; add symbols' sizes to `bound`."""
    where = f"{where} input '{proto.name}'"
    tensor = proto.type.tensor_type
    if given is not None and proto.type.HasField("tensor_type") and not tensor.HasField("shape"):
        tensor.shape.dim.extend(TensorShapeProto.Dimension(dim_value=dim) for dim in given)
    type = tensor_type(proto, where)
    if given is None:
        return type
    if len(given) != len(type.shape):
        raise ConvertError(f"{where}: shape {list(given)} was given for {type}")
    for dim, size in zip(type.shape, given, strict=True):
        if size < 0 or (isinstance(dim, int) and dim != size):
            raise ConvertError(f"{where}: shape {list(given)} was given for {type}")
        if isinstance(dim, str) and bound.setdefault(dim, size) != size:
            raise ConvertError(f"{where}: symbol {dim} is bound to {bound[dim]} and to {size}")
    return TensorType(tuple(given), type.dtype)


def convert_node(scope: Scope, node: Any, label: str) -> None:
    """Convert one node and bind its outputs in the scope.

    Errors: ConvertError or ModelFileError, naming the node
    """
    scope.common.count(label)
    use = use_of(scope, node, label)
    first = len(scope.builder.values)
    try:
        results = convert_use(use)
    except (ConvertError, ModelFileError):
        raise
    except TriremeError as error:
        if has_late_rank([scope.value(value) for value in use.inputs]):
            raise use.error(error.summary, error.fix) from error
        raise ConvertError(error.summary, facts=error.facts, fix=error.fix) from error
    except Exception as error:  # a hostile node may break a rule in any way; name it
        raise use.error(f"{type(error).__name__}: {error}") from error
    for name, value in zip(use.outputs, results, strict=False):
        if isinstance(value, list):
            scope.sequences[name] = value
        elif name and value is not None:
            if value >= first:
                scope.rename(value, name)
            scope.names[name] = value


def use_of(scope: Scope, node: Any, label: str) -> NodeUse:
    """Return a node with its inputs looked up and its attributes decoded."""
    domain = domain_of(node)
    inputs: list[int | None] = []
    for name in node.input:
        value = scope.find(name) if name else None
        if name and value is None and scope.sequence(name) is None:
            raise ModelFileError(f"{node.op_type} ({label}): input '{name}' is never made")
        inputs.append(value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    attrs = {}
    for attribute in node.attribute:
        attrs[attribute.name] = decode(scope, attribute, label)
    outputs = list(node.output)
    while outputs and not outputs[-1]:
        outputs.pop()
    version = scope.opsets.get(domain, 1)
    return NodeUse(scope, node, node.op_type, domain, version, label, inputs, attrs, outputs)


def decode(scope: Scope, attribute: Any, where: str) -> Any:
    """Return the value of an attribute; graphs stay as they are."""
    kind = attribute.type
    if kind == _ATTRIBUTE.TENSOR:
        return tensor_array(attribute.t, scope.common.files, f"{where} {attribute.name}")
    if kind == _ATTRIBUTE.SPARSE_TENSOR:
        return sparse_array(attribute.sparse_tensor, scope.common.files, where)
    if kind == _ATTRIBUTE.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == _ATTRIBUTE.STRINGS:
        return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    if kind == _ATTRIBUTE.INTS:
        return tuple(attribute.ints)
    if kind == _ATTRIBUTE.FLOATS:
        return tuple(attribute.floats)
    if kind == _ATTRIBUTE.TENSORS:
        return [tensor_array(t, scope.common.files, where) for t in attribute.tensors]
    single = {
        _ATTRIBUTE.INT: "i",
        _ATTRIBUTE.FLOAT: "f",
        _ATTRIBUTE.GRAPH: "g",
        _ATTRIBUTE.TYPE_PROTO: "tp",
    }
    if kind in single:
        return getattr(attribute, single[kind])
    raise ModelFileError(f"{where}: attribute {attribute.name} is of unknown type {kind}")


def convert_use(use: NodeUse) -> Sequence[int | list[int] | None]:
    """Convert a node: a function of the user, of the model, our op, or ONNX's function body."""
    operator = python_op_of(use.scope.common.python_ops, use.domain, use.op)
    if operator is not None:
        return call_python(use, operator)
    function = use.scope.common.functions.get((use.domain, use.op))
    if function is not None:
        return inline(use, function)
    of_domain = DOMAINS.get(use.domain, {}).get(use.op)
    if of_domain is not None:
        return of_domain.rule(use)
    if not use.domain:
        if use.op in READS:
            return READS[use.op](use)
        if use.op in MAKES and (use.op not in EITHER or use.input(0) is None):
            return (MAKES[use.op](use),)
        if use.op in MAPS:
            return MAPS[use.op](use, convert_body)
        if use.op in CONTROL:
            return CONTROL[use.op](use, convert_body)
        original = (use.op, list(use.inputs), dict(use.attrs))
        if entry_of(use.op) is not None or use.op == "Upsample":
            adapt(use)
            entry = entry_of(use.op)
            if entry is not None:
                return entry.rule(use)
        use.op, use.inputs, use.attrs = original
    body = body_for(use)
    if body is None:
        raise use.error(f"no op of ours is ONNX's {use.domain or 'ai.onnx'} {use.op}")
    return inline(use, body)


def call_python(use: NodeUse, operator: PythonOp) -> tuple[int, ...]:
    """Call a function of the user in place of a node; the attributes are its arguments."""
    attrs = {key: [*v] if isinstance(v, tuple) else v for key, v in use.attrs.items()}
    return use.add_node(OP, use.inputs, operator.attrs(**attrs), len(use.outputs))


def inline(use: NodeUse, function: Any) -> list[int | None]:
    """Convert a function's body in place of the node that calls it."""
    attrs = attributes_for(function, use)
    names = {
        name: value
        for name, value in zip(function.input, use.inputs, strict=False)
        if value is not None
    }
    scope = use.scope.inner(names=names, outer=None, opsets=body_opsets(function, use))
    left_out = set(function.input) - set(names)
    for label, node in in_order(function.node, use.source):
        clean = NodeProto()
        clean.CopyFrom(node)
        fill_in(clean, attrs, left_out)
        convert_node(scope, clean, f"{use.source}/{label.removeprefix('onnx:')}")
    return [scope.names.get(name) for name in function.output]
