"""Which operators of ONNX convert, and what they become: for the page of supported ops."""

from __future__ import annotations

from typing import NamedTuple

import onnx

from trireme.converters.onnx.control import CONTROL
from trireme.converters.onnx.domains import DOMAINS
from trireme.converters.onnx.functions import has_body
from trireme.converters.onnx.sequences import MAKES, MAPS, READS
from trireme.converters.onnx.table import OpEntry, entry_of, our_name
from trireme.ir.op import has_op


class Conversion(NamedTuple):
    """An operator and what it becomes: an op, or (without `is_op`) words; None where refused."""

    name: str
    becomes: str | None
    is_op: bool = False


def conversions() -> list[Conversion]:
    """Return the operators of ai.onnx that onnx knows, then those of other domains."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
    found = [_of_onnx(name) for name in names]
    for domain, table in DOMAINS.items():
        known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}
        found += [
            _of_domain(f"{domain}.{name}", table.get(name)) for name in sorted({*table, *known})
        ]
    return found


def _of_domain(name: str, entry: OpEntry | None) -> Conversion:
    if entry is None:
        return Conversion(name, None)
    op = entry.op or our_name(name.rpartition(".")[2])
    return Conversion(name, op, True) if has_op(op) else Conversion(name, "its input")


def _of_onnx(name: str) -> Conversion:
    if name in CONTROL:
        return Conversion(name, our_name(name), True)
    entry = entry_of(name)
    if name in READS or name in MAPS or (name in MAKES and entry is None):
        return Conversion(name, "a list of tensors, while the model is converted")
    if entry is not None:
        op = entry.op or (our_name(name) if has_op(our_name(name)) else "")
        return Conversion(name, op or "its input, or a constant", bool(op))
    if has_body(name, "", onnx.defs.onnx_opset_version()):
        return Conversion(name, "its function")
    return Conversion(name, None)
