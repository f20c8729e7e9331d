"""The tables of schema/trireme.fbs as data, one line a field in slot order, for the reader.

The generated Python trusts its buffer. The reader does not, so it checks against this form of the
schema. A test compares these lines with the generated code.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from trireme.support.records import dataclass


class FieldForm(Enum):
    """How a field is stored in its table."""

    SCALAR = auto()
    STRING = auto()
    TABLE = auto()
    SCALARS = auto()
    STRINGS = auto()
    TABLES = auto()


SIZES = {"B": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}
"""Bytes of a scalar by its code in the struct module."""


@dataclass(frozen=True)
class Field:
    """A field: its name, its form, the struct code or table of its elements, its default."""

    name: str
    form: FieldForm
    of: str = ""
    default: Any = None
    required: bool = False

    @property
    def width(self) -> int:
        """Bytes of the field itself in its table: the scalar, or a 4-byte offset."""
        return SIZES[self.of] if self.form is FieldForm.SCALAR else 4


def _scalar(name: str, code: str, default: float | None = 0) -> Field:
    return Field(name, FieldForm.SCALAR, code, default)


def _string(name: str, required: bool = False) -> Field:
    return Field(name, FieldForm.STRING, required=required)


def _table(name: str, of: str, required: bool = False) -> Field:
    return Field(name, FieldForm.TABLE, of, required=required)


def _vector(name: str, form: FieldForm, of: str = "", required: bool = False) -> Field:
    return Field(name, form, of, (), required)


TABLES: dict[str, tuple[Field, ...]] = {
    "Quant": (
        _vector("scales", FieldForm.SCALARS, "d", required=True),
        _vector("zero_points", FieldForm.SCALARS, "q", required=True),
        _scalar("axis", "i", None),
        _string("rounding"),
    ),
    "TensorType": (
        _string("dtype", required=True),
        _vector("shape", FieldForm.SCALARS, "q"),
        _table("quant", "Quant"),
    ),
    "Buffer": (
        _scalar("offset", "Q"),
        _scalar("size", "Q"),
        _scalar("crc32", "I"),
        Field("strings", FieldForm.STRINGS),
    ),
    "Value": (
        _scalar("id", "i"),
        _string("name", required=True),
        _table("tensor_type", "TensorType", required=True),
        _scalar("buffer", "I", None),
    ),
    "Attr": (
        _string("name", required=True),
        _scalar("kind", "B"),
        _scalar("number", "q", None),
        _scalar("real", "d", None),
        _string("text"),
        _vector("numbers", FieldForm.SCALARS, "q"),
        _vector("reals", FieldForm.SCALARS, "d"),
        _vector("texts", FieldForm.STRINGS),
        _table("tensor_type", "TensorType"),
        _scalar("buffer", "I", None),
        _scalar("graph", "I", None),
    ),
    "Node": (
        _scalar("id", "i"),
        _string("op", required=True),
        _vector("inputs", FieldForm.SCALARS, "i"),
        _vector("outputs", FieldForm.SCALARS, "i"),
        _vector("attrs", FieldForm.TABLES, "Attr"),
        _string("source"),
        _string("pin"),
        _vector("after", FieldForm.SCALARS, "i"),
    ),
    "Symbol": (
        _string("name", required=True),
        _scalar("least", "q"),
        _scalar("most", "q", None),
    ),
    "Graph": (
        _string("name", required=True),
        _vector("inputs", FieldForm.SCALARS, "i"),
        _vector("outputs", FieldForm.SCALARS, "i"),
        _vector("symbols", FieldForm.TABLES, "Symbol"),
        _vector("values", FieldForm.TABLES, "Value"),
        _vector("nodes", FieldForm.TABLES, "Node"),
    ),
    "File": (
        _vector("graphs", FieldForm.TABLES, "Graph", required=True),
        _vector("buffers", FieldForm.TABLES, "Buffer"),
        _string("quantization"),
    ),
}
"""Every table of the schema, by name."""

ROOT = "File"
