"""Turn messages of gRPC into requests of the service, and answers into messages.

Tensors are raw bytes, or lists in the message (typed contents). An answer is typed where the
request was, unless an output has a type that no list holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trireme.serving.errors import ServingError, invalid
from trireme.serving.grpc_messages import MESSAGES
from trireme.serving.protocol import (
    BINARY_ONLY,
    DATATYPE_OF,
    DATATYPES,
    InferRequest,
    InferResponse,
    RequestedOutput,
    array_from_raw,
    as_text,
    check_datatype,
    check_shape,
    priority_of,
    raw_from_array,
    timeout_of,
)
from trireme.support.dtypes import Array, dtype_name, numpy_dtype

_LISTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The list of typed contents that holds each datatype."""

FINAL_WANTED = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
"""The parameter that asks for a mark on the last answer of a request, and the mark."""


def request_of(message: Any, left_s: float | None = None) -> InferRequest:
    """Return the request of a ModelInferRequest.

    left_s: seconds until the client's deadline; None without one
    Errors: ServingError invalid, which names the field
    """
    parameters = parameters_of(message.parameters)
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise invalid(
            "raw_input_contents", f"{len(raw)} tensors, expected {len(message.inputs)} as inputs"
        )
    inputs: dict[str, Array] = {}
    for index, tensor in enumerate(message.inputs):
        where = f"inputs[{index}]"
        if tensor.name in inputs:
            raise invalid(where, f"input {tensor.name!r:.100} is given twice")
        inputs[tensor.name] = _array(tensor, raw[index] if raw else None, where)
    asked_s = timeout_of(parameters)
    limits = [one for one in (asked_s, left_s) if one is not None]
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        inputs,
        [_requested(one, index) for index, one in enumerate(message.outputs)],
        parameters,
        min(limits) if limits else None,
        priority_of(parameters),
    )


def message_of(response: InferResponse, request: Any) -> Any:
    """Return the ModelInferResponse of an answer to a ModelInferRequest."""
    message = MESSAGES["ModelInferResponse"](
        model_name=response.model, model_version=response.version, id=response.id
    )
    kinds = {name: DATATYPE_OF[dtype_name(array.dtype)] for name, array in response.outputs.items()}
    is_typed = any(one.HasField("contents") for one in request.inputs)
    is_typed = is_typed and BINARY_ONLY.isdisjoint(kinds.values())
    for name, array in response.outputs.items():
        tensor = message.outputs.add(name=name, datatype=kinds[name], shape=array.shape)
        if is_typed:
            getattr(tensor.contents, _LISTS[kinds[name]]).extend(_listed(array))
        else:
            message.raw_output_contents.append(raw_from_array(array))
    for key, value in response.parameters.items():
        _set_parameter(message.parameters[key], value)
    if request.parameters[FINAL_WANTED].bool_param if FINAL_WANTED in request.parameters else False:
        message.parameters[FINAL].bool_param = True
    return message


def parameters_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of a message as plain values; one without a value is left out."""
    chosen = {key: value.WhichOneof("parameter_choice") for key, value in parameters.items()}
    return {key: getattr(parameters[key], name) for key, name in chosen.items() if name}


def _set_parameter(parameter: Any, value: Any) -> None:
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param"}
    name = kinds.get(type(value), "string_param")
    setattr(parameter, name, str(value) if name == "string_param" else value)


def _requested(tensor: Any, index: int) -> RequestedOutput:
    """Return an output that a request names."""
    where = f"outputs[{index}].parameters"
    parameters = parameters_of(tensor.parameters)
    _refuse_shared_memory(parameters, where)
    classes = parameters.get("classification", 0)
    if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
        raise invalid(f"{where}.classification", "expected a whole number from 0 on")
    return RequestedOutput(tensor.name, True, classes)


def _refuse_shared_memory(parameters: Mapping[str, Any], where: str) -> None:
    if "shared_memory_region" in parameters:
        raise ServingError("invalid", f"{where}: the server has no shared memory")


def _array(tensor: Any, raw: bytes | None, where: str) -> Array:
    """Return an input of a request."""
    _refuse_shared_memory(parameters_of(tensor.parameters), f"{where}.parameters")
    datatype = check_datatype(tensor.datatype, where)
    shape = check_shape(list(tensor.shape), where)
    where = f"{where} {tensor.name!r:.100}"
    if raw is None:
        return _array_of_list(tensor.contents, datatype, shape, where)
    if tensor.HasField("contents"):
        raise invalid(where, "has contents beside raw_input_contents")
    return array_from_raw(datatype, shape, raw, where)


def _array_of_list(contents: Any, datatype: str, shape: tuple[int, ...], where: str) -> Array:
    """Return typed contents as an array."""
    if datatype not in _LISTS:
        raise invalid(where, f"{datatype} has no typed contents; send raw_input_contents")
    name = _LISTS[datatype]
    others = [field.name for field, _ in contents.ListFields() if field.name != name]
    if others:
        raise invalid(where, f"{datatype} is held by {name}, not by {others[0]}")
    values = getattr(contents, name)
    if len(values) != math.prod(shape):
        raise invalid(
            where, f"{len(values)} elements, expected {math.prod(shape)} for {list(shape)}"
        )
    if datatype == "BYTES":
        texts = np.empty(len(values), object)
        texts[:] = [as_text(one) for one in values]
        return texts.reshape(shape)
    wide = np.array(values, _WIDE.get(name, DATATYPES[datatype]))
    array = wide.astype(numpy_dtype(DATATYPES[datatype]))
    if not np.array_equal(array, wide, equal_nan=datatype in ("FP32", "FP64")):
        raise invalid(where, f"an element is outside the range of {datatype}")
    return array.reshape(shape)


_WIDE: Final = {"int_contents": "int32", "uint_contents": "uint32"}
"""The types of lists that hold narrower datatypes too."""


def _listed(array: Array) -> list[Any]:
    values: list[Any] = array.reshape(-1).tolist()
    if dtype_name(array.dtype) == "string":
        return [one if isinstance(one, bytes) else str(one).encode() for one in values]
    return values
