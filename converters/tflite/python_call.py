"""Operators of a .tflite file that functions of the user stand for: custom ones, or any by name.

A custom operator's options are the function's arguments: a flexbuffer's map by its keys, or other
bytes as the text `custom_options` in hexadecimal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flatbuffers import flexbuffers

from trireme.converters.tflite.use import Converter, OperatorUse
from trireme.ir.python_op import OP, PythonOp

_NUMBERS = (bool, int, float, str)


def python_calls(python_ops: Mapping[str, PythonOp]) -> dict[str, Converter]:
    """Return what converts the operators of these names."""
    return {name: _call(operator) for name, operator in python_ops.items()}


def _call(operator: PythonOp) -> Converter:
    def convert(use: OperatorUse) -> None:
        inputs = [use.optional(i) for i in range(len(use.operator.inputs))]
        use.done(OP, *inputs, **operator.attrs(**_arguments(use)))

    return convert


def _arguments(use: OperatorUse) -> dict[str, Any]:
    data = use.operator.custom
    if not data:
        return {}
    try:
        found = flexbuffers.Loads(data)
    except Exception:  # bytes of another kind; the reader raises whatever they lead to
        found = None
    if not isinstance(found, dict):
        return {"custom_options": data.hex()}
    for key, value in found.items():
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, _NUMBERS) for part in parts):
            raise use.fail(f"the option {key!r} is no number, text or list of them")
    return found
