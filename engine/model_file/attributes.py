"""The kinds of attributes, and the field of the file's table that holds each: for writer and
reader.
"""

from __future__ import annotations

from trireme.schema.generated.trireme_generated import AttrKind

KINDS: dict[str, tuple[int, str]] = {
    "int": (AttrKind.int, "number"),
    "float": (AttrKind.float, "real"),
    "str": (AttrKind.str, "text"),
    "bool": (AttrKind.bool, "number"),
    "ints": (AttrKind.ints, "numbers"),
    "floats": (AttrKind.floats, "reals"),
    "strs": (AttrKind.strs, "texts"),
    "array": (AttrKind.array, "buffer"),
    "graph": (AttrKind.graph, "graph"),
    "operator": (AttrKind.str, "text"),
}
"""The number of a kind in the file, and the field of Attr that holds its value. A Python operator
is stored by its name."""

NAMES: dict[int, str] = {number: name for name, (number, _) in KINDS.items() if name != "operator"}
"""The name of a kind by its number."""

NONE: int = AttrKind.none
"""The kind of an attribute that is set to None and has another default."""

UNKNOWN_DIM = -1
"""The stored dimension of `UNKNOWN`; symbol k of the graph is stored as FIRST_SYMBOL - k."""

UNKNOWN_RANK = -(2**63)
"""The stored dimension of ANY_DIMS."""

FIRST_SYMBOL = -2
