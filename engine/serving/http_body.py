"""Bodies of infer requests and answers over HTTP: JSON, with raw tensors behind it or not.

A body is JSON; with the header Inference-Header-Content-Length so many bytes of JSON, then the raw
bytes of the tensors in the order that the JSON names them.
Source: Open Inference Protocol v2 (KServe), binary tensor data extension (Triton)
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trireme.serving.errors import ServingError, invalid
from trireme.serving.json_numbers import (
    SHORTEST,
    HeldLists,
    count_values,
    hold_numbers,
    read_numbers,
)
from trireme.serving.protocol import (
    BINARY_ONLY,
    DATATYPE_OF,
    DATATYPES,
    InferRequest,
    InferResponse,
    RequestedOutput,
    array_from_raw,
    check_datatype,
    check_shape,
    priority_of,
    raw_from_array,
    timeout_of,
)
from trireme.support.dtypes import Array, dtype_name, numpy_dtype

MOST_VALUES = 250_000
"""Values of a JSON text, long lists of numbers aside. json.loads stops all threads: 0.1 s for so
many lists."""


def parse_infer(
    model: str, version: str, body: bytes | bytearray, json_bytes: int | None = None
) -> InferRequest:
    """Return the request in a body; its arrays may be views of the body.

    json_bytes: the length of the JSON, from the header; None where all of it is JSON
    Errors: ServingError invalid, which names the field
    """
    raw = memoryview(body).toreadonly()
    if json_bytes is not None and not 0 <= json_bytes <= len(body):
        raise invalid("Inference-Header-Content-Length", f"{json_bytes} of {len(body)} bytes")
    split = len(body) if json_bytes is None else json_bytes
    try:
        asked, inputs = _read(raw, split, holds_numbers=split >= SHORTEST)
    except _NotPlainError:
        asked, inputs = _read(raw, split, holds_numbers=False)
    parameters = _parameters(asked, "parameters")
    return InferRequest(
        model,
        version,
        _identity(asked.get("id", "")),
        inputs,
        _outputs(asked),
        parameters,
        timeout_of(parameters),
        priority_of(parameters),
    )


class _NotPlainError(Exception):
    """A long list is no plain list of numbers."""


def _read(
    raw: memoryview, split: int, holds_numbers: bool
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the object and the inputs of a body whose JSON ends at `split`."""
    text, held = hold_numbers(raw[:split]) if holds_numbers else (raw[:split], HeldLists())
    asked = _object(parse_json(text), "the request")
    return asked, _inputs(asked, raw[split:], held)


def parse_json(raw: memoryview | bytes) -> Any:
    """Return what JSON says.

    Errors: ServingError invalid; too_large, if it has more than MOST_VALUES values
    """
    if count_values(raw, MOST_VALUES) > MOST_VALUES:
        raise ServingError(
            "too_large",
            f"the JSON has more than {MOST_VALUES} values that are in no plain list of numbers",
            fix="send tensors as binary data",
        )
    try:
        return json.loads(bytes(raw), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise invalid("the request", "its JSON is not UTF-8") from error
    except RecursionError as error:
        raise invalid("the request", "its JSON is nested too deeply") from error
    except ValueError as error:
        raise invalid("the request", f"it is no JSON: {error}") from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of some pairs, whose names must differ."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise invalid("the request", f"an object has {twice!r:.100} twice")
    return found


def _object(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise invalid(where, f"found {_kind(given)}, expected an object")
    return given


def _list(given: Any, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise invalid(where, f"found {_kind(given)}, expected a list")
    return given


def _kind(given: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    return kinds.get(type(given), "nothing" if given is None else "a number")


def _identity(given: Any) -> str:
    if not isinstance(given, str):
        raise invalid("id", f"found {_kind(given)}, expected a text")
    return given


def _parameters(owner: Mapping[str, Any], where: str) -> dict[str, Any]:
    return _object(owner.get("parameters", {}), where)


def _name(given: Mapping[str, Any], where: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", f"found {_kind(name)}, expected a text")
    return name


def _inputs(asked: Mapping[str, Any], raw: memoryview, held: HeldLists) -> dict[str, Array]:
    if "inputs" not in asked:
        raise invalid("inputs", "they are missing")
    inputs: dict[str, Array] = {}
    at = 0
    for index, row in enumerate(_list(asked["inputs"], "inputs")):
        where = f"inputs[{index}]"
        given = _object(row, where)
        name = _name(given, where)
        if name in inputs:
            raise invalid(f"{where}.name", f"input {name!r:.100} is named twice")
        where = f"{where} {name!r:.100}"
        datatype = check_datatype(given.get("datatype"), where)
        shape = check_shape(given.get("shape"), where)
        size = _parameters(given, f"{where}.parameters").get("binary_data_size")
        if size is None:
            inputs[name] = _from_json(datatype, shape, given, held, where)
            continue
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise invalid(f"{where}.parameters.binary_data_size", "expected a number of bytes")
        if "data" in given:
            raise invalid(f"{where}.data", "the tensor is there twice, as JSON and as binary data")
        if at + size > len(raw):
            raise invalid(where, f"its {size} bytes end beyond the body: {len(raw) - at} are left")
        inputs[name] = array_from_raw(datatype, shape, raw[at : at + size], where)
        at += size
    if at != len(raw):
        raise invalid("the request", f"{len(raw) - at} bytes follow the last tensor")
    return inputs


def _from_json(
    datatype: str, shape: tuple[int, ...], given: Mapping[str, Any], held: HeldLists, where: str
) -> Array:
    """Return the tensor that `data` lists, flat or nested as its shape."""
    if datatype in BINARY_ONLY:
        raise invalid(where, f"{datatype} has no form in JSON", "send it as binary data")
    if "data" not in given:
        raise invalid(f"{where}.data", "it is missing")
    data, at = given["data"], f"{where}.data"
    if isinstance(data, str) and data in held:
        return _from_held(datatype, shape, held[data], at)
    return _converted(datatype, _flat(_list(data, at), shape, at), at).reshape(shape)


def _from_held(datatype: str, shape: tuple[int, ...], text: memoryview, where: str) -> Array:
    """Return the tensor of a long list, flat or nested as its shape.

    Errors: _NotPlainError, where only json.loads can say what the list is
    """
    is_real, dtype = datatype in ("FP32", "FP64"), numpy_dtype(DATATYPES[datatype])
    if datatype in ("BOOL", "BYTES"):
        raise _NotPlainError
    numbers = read_numbers(text, np.dtype(np.float64) if is_real else np.dtype(np.int64), shape)
    if numbers is None or np.isinf(numbers).any():
        raise _NotPlainError
    if len(numbers) != math.prod(shape):
        raise _wrong_count(len(numbers), shape, where)
    with np.errstate(over="ignore"):
        array = numbers.astype(dtype, copy=False)
    if np.isinf(array).any() if is_real else (array != numbers).any():
        raise invalid(where, f"a number is outside of {datatype}")
    return array.reshape(shape)


def _wrong_count(count: int, shape: tuple[int, ...], where: str) -> ServingError:
    size = math.prod(shape)
    return invalid(where, f"{count} elements, expected {size} for {list(shape)}")


def _flat(data: list[Any], shape: tuple[int, ...], where: str) -> list[Any]:
    """Return the elements of nested lists, whose lengths must be those of the shape."""
    if not any(isinstance(one, list) for one in data[:1]):
        if len(data) != math.prod(shape):
            raise _wrong_count(len(data), shape, where)
        return data
    for depth, dim in enumerate(shape):
        if depth:
            if not all(isinstance(one, list) for one in data):
                raise invalid(where, f"it is not nested as its shape {list(shape)}")
            if any(len(one) != dim for one in data):
                raise invalid(where, f"a list at depth {depth} has not the length {dim}")
            data = [one for part in data for one in part]
        elif len(data) != dim:
            raise invalid(where, f"{len(data)} rows, expected {dim}")
    return data


_JSON_KINDS: dict[str, set[type]] = {
    "BOOL": {bool},
    "BYTES": {str},
    "FP32": {int, float},
    "FP64": {int, float},
}
"""The Python type of the elements of a datatype in JSON; int where none is named."""


def _converted(datatype: str, flat: list[Any], where: str) -> Array:
    found = set(map(type, flat)) - _JSON_KINDS.get(datatype, {int})
    if found:
        odd = next(one for one in flat if type(one) in found)
        raise invalid(where, f"{_shown(odd)} is no {datatype}")
    dtype = numpy_dtype(DATATYPES[datatype])
    if datatype == "BYTES":
        texts = np.empty(len(flat), object)
        texts[:] = flat
        return texts
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
    except OverflowError as error:
        raise invalid(where, f"a number is outside of {datatype}") from error
    if datatype == "FP32" and np.isinf(array).any():
        wide = np.array(flat, np.float64)
        if not np.array_equal(np.isinf(wide), np.isinf(array)):
            raise invalid(where, "a number is outside of FP32")
    return array


def _shown(one: Any) -> str:
    return f"{one!r:.60}" if isinstance(one, int | float | str) else _kind(one)


def _outputs(asked: Mapping[str, Any]) -> list[RequestedOutput]:
    outputs = []
    for index, row in enumerate(_list(asked.get("outputs", []), "outputs")):
        where = f"outputs[{index}]"
        given = _object(row, where)
        parameters = _parameters(given, f"{where}.parameters")
        binary = parameters.get("binary_data")
        if binary is not None and not isinstance(binary, bool):
            raise invalid(f"{where}.parameters.binary_data", "expected true or false")
        classes = parameters.get("classification", 0)
        if not isinstance(classes, int) or isinstance(classes, bool) or classes < 0:
            raise invalid(f"{where}.parameters.classification", "expected a number of classes")
        outputs.append(RequestedOutput(_name(given, where), binary, classes))
    return outputs


def compose_infer(request: InferRequest, response: InferResponse) -> tuple[list[bytes], int | None]:
    """Return the parts of a body, and the length of its JSON where raw tensors follow.

    Errors: ServingError invalid, if an output has no form in JSON
    """
    by_default = request.parameters.get("binary_data_output", False) is True
    asked = {one.name: one.binary for one in request.outputs}
    rows, raws = [], []
    for name, array in response.outputs.items():
        datatype = DATATYPE_OF[dtype_name(array.dtype)]
        row: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        binary = asked.get(name)
        if by_default if binary is None else binary:
            raws.append(raw_from_array(array))
            row["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            row["data"] = _as_json(name, datatype, array)
        rows.append(row)
    answer: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        answer["id"] = response.id
    if response.parameters:
        answer["parameters"] = dict(response.parameters)
    head = json.dumps({**answer, "outputs": rows}, separators=(",", ":")).encode()
    return [head, *raws], len(head) if raws else None


def _as_json(name: str, datatype: str, array: Array) -> list[Any]:
    if datatype in BINARY_ONLY:
        raise invalid("outputs", f"output '{name}' is {datatype}, which has no form in JSON", _FIX)
    data: list[Any] = array.reshape(-1).tolist()
    if datatype == "BYTES":
        data = [one if isinstance(one, str) else _utf8(name, one) for one in data]
    return data


def _utf8(name: str, one: Any) -> str:
    try:
        return one.decode() if isinstance(one, bytes) else str(one)
    except UnicodeDecodeError:
        raise invalid("outputs", f"output '{name}' has bytes that are no text", _FIX) from None


_FIX = "ask for binary data: parameters {'binary_data_output': true}"

__all__ = ["ServingError", "compose_infer", "parse_infer", "parse_json"]
