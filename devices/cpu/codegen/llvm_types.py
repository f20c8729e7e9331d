"""Types and constants as LLVM IR writes them: scalars, and vectors of a number of lanes."""

from __future__ import annotations

import functools
import struct

FLOATS = {"float": "f32", "double": "f64"}
"""LLVM's floats, and how names of intrinsics spell them."""


@functools.lru_cache(4096)
def _float_text(bits: bytes) -> str:
    single = struct.unpack("f", bits)[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def float_text(value: float) -> str:
    """Return a float32 constant as LLVM writes it: the bits of the double of equal value."""
    return _float_text(struct.pack("f", value))


@functools.cache
def vector(lanes: int, element: str) -> str:
    """Return the type of a vector; of a scalar for one lane."""
    return f"<{lanes} x {element}>" if lanes > 1 else element


@functools.cache
def element_of(type: str) -> str:
    """Return the element type of a vector type, or the scalar type itself."""
    return type[type.index("x") + 2 : -1] if type.startswith("<") else type


@functools.cache
def lanes_of(type: str) -> int:
    """Return the lanes of a vector type, 1 for a scalar."""
    return int(type[1 : type.index("x")]) if type.startswith("<") else 1


def literal(type: str, value: float) -> str:
    """Return a constant of a scalar or vector type, the same in every lane."""
    element = element_of(type)
    if element == "float":
        text = float_text(float(value))
    elif element == "double":
        text = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    elif element == "i1":
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return f"splat ({element} {text})" if type.startswith("<") else text


@functools.cache
def mangled(type: str) -> str:
    """Return how names of intrinsics spell a type."""
    element = FLOATS.get(element_of(type), element_of(type))
    return f"v{lanes_of(type)}{element}" if type.startswith("<") else element
