"""How remainders and quotients rounded down are written: ONNX's Mod of floats has a's sign."""

from __future__ import annotations

from collections.abc import Sequence

from trireme.converters.onnx.write.use import WrittenNode, onnx_dtype
from trireme.support.dtypes import FLOATING


def is_float(use: WrittenNode) -> bool:
    """Whether the first operand is written as floats."""
    value = use.value(0)
    return value is not None and (value.quant is not None or value.dtype in FLOATING)


def modulo(use: WrittenNode) -> Sequence[str]:
    """Write a remainder; of floats, one with b's sign is made of the one with a's."""
    a, b = use.operand(0), use.operand(1)
    if not is_float(use) or use.attrs["fmod"]:
        return [use.one("Mod", a, b, fmod=use.attrs["fmod"])]
    rest, zero = use.one("Mod", a, b, fmod=1), use.scalar(0)
    found = use.one("Where", _apart(use, rest, b), use.one("Add", rest, b), rest)
    if use.attrs["zero"] == "divisor":
        signed = use.one("Where", use.one("Less", b, zero), use.scalar(-0.0), zero)
        found = use.one("Where", use.one("Equal", rest, zero), signed, found)
    return [found]


def _apart(use: WrittenNode, rest: str, b: str) -> str:
    """Write whether a remainder is not 0 and has another sign than b."""
    zero = use.scalar(0)
    signs = use.one("Xor", use.one("Less", rest, zero), use.one("Less", b, zero))
    return use.one("And", signs, use.one("Not", use.one("Equal", rest, zero)))


def floor_div(use: WrittenNode) -> Sequence[str]:
    """Write the floor of the exact quotient of floats; ONNX's integer division truncates.

    Source: ATen div_floor_floating
    """
    if not is_float(use):
        raise use.error("ONNX has no integer division that rounds down")
    a, b = use.operand(0), use.operand(1)
    rest, rounded, zero = use.one("Mod", a, b, fmod=1), use.one("Div", a, b), use.scalar(0)
    dtype = onnx_dtype("float32" if use.values()[0].quant is not None else use.values()[0].dtype)
    less_1 = use.one("Cast", _apart(use, rest, b), to=dtype)
    quotient = use.one("Sub", use.one("Div", use.one("Sub", a, rest), b), less_1)
    floor = use.one("Floor", quotient)
    above = use.one("Greater", use.one("Sub", quotient, floor), use.scalar(0.5))
    floor = use.one("Add", floor, use.one("Cast", above, to=dtype))
    signed = use.one("Mul", rounded, zero)
    floor = use.one("Where", use.one("Equal", quotient, zero), signed, floor)
    return [use.one("Where", use.one("Equal", b, zero), rounded, floor)]
