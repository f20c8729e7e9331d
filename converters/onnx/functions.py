"""Replace a node by the body of a function: the model's own, or ONNX's definition of the op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trireme.converters.onnx.file import bodies_of, opsets_of
from trireme.converters.onnx.proto import FunctionProto, TensorProto
from trireme.converters.onnx.scope import NodeUse
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.support.dtypes import numpy_dtype

Function = Any
Schema = Any


def schema_of(op: str, domain: str, version: int) -> Schema | None:
    """Return ONNX's schema of an op at an opset; None when it has none."""
    from onnx import defs

    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def since(op: str, version: int) -> int:
    """Return the opset that last changed an op of the default domain; 0 where it is unknown."""
    schema = schema_of(op, "", version)
    return 0 if schema is None else int(schema.since_version)


def has_body(op: str, domain: str, version: int) -> bool:
    """Whether ONNX defines the op by a function body."""
    schema = schema_of(op, domain, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def static_body(op: str, domain: str, version: int) -> Function | None:
    """Return ONNX's body for an op, if it does not depend on the inputs' types."""
    schema = schema_of(op, domain, version)
    return schema.function_body if schema is not None and schema.has_function else None


def body_for(use: NodeUse) -> Function | None:
    """Return ONNX's function body for this very node; None when it has none."""
    schema = schema_of(use.op, use.domain, use.version)
    if schema is None:
        return None
    if schema.has_function:
        return schema.function_body
    if not schema.has_context_dependent_function:
        return None
    types = input_types(use.scope.builder, use.inputs)
    data = schema.get_context_dependent_function(use.proto.SerializeToString(), types)
    body = FunctionProto()
    try:
        body.ParseFromString(data)
    except DecodeError as error:
        raise use.error(f"ONNX gives no body for it: {error}") from error
    return body if body.node else None


def input_types(builder: GraphBuilder, inputs: Sequence[int | None]) -> list[bytes]:
    """Return a TypeProto of each input, an empty one for an input that is left out."""
    return [b"" if i is None else _type_proto(builder.type(i)) for i in inputs]


def _type_proto(type: TensorType) -> bytes:
    from onnx import helper

    code = helper.np_dtype_to_tensor_dtype
    proto = helper.make_tensor_type_proto(
        TensorProto.STRING if type.dtype == "string" else code(numpy_dtype(type.dtype)),
        [None if dim == "?" else dim for dim in type.shape],
    )
    data: bytes = proto.SerializeToString()
    return data


def attributes_for(function: Function, use: NodeUse) -> dict[str, Any]:
    """Return the attributes that a body gets: the node's, else the function's or the schema's."""
    schema = schema_of(use.op, use.domain, use.version)
    known = schema.attributes.items() if schema is not None else ()
    defaults = {name: a.default_value for name, a in known if a.default_value.type}
    given = {a.name: a for a in use.proto.attribute}
    return defaults | {a.name: a for a in function.attribute_proto} | given


def fill_in(node: Any, attrs: Mapping[str, Any], left_out: Set[str]) -> None:
    """Replace, in a copy of a body's node, references to attributes and inputs not given."""
    for position, name in enumerate(node.input):
        if name in left_out:
            node.input[position] = ""
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in attrs:
                continue
            name = attribute.name
            attribute.CopyFrom(attrs[attribute.ref_attr_name])
            attribute.name = name
        kept.append(attribute)
    for body in bodies_of(node):
        for inner in body.node:
            fill_in(inner, attrs, left_out)
    if len(kept) < len(node.attribute):
        kept = [type(attribute).FromString(attribute.SerializeToString()) for attribute in kept]
        del node.attribute[:]
        node.attribute.extend(kept)


def body_opsets(function: Function, use: NodeUse) -> dict[str, int]:
    """Return the opsets of a function's body: its own over the model's."""
    return {**use.scope.opsets, **opsets_of(function.opset_import, use.source)}
