"""Graph inputs that are sequences or optional: a tensor for each element of a sequence.

The shapes that a caller gives say how many there are: {"x[0]": (3,), "x[1]": (4,)} makes the
sequence x two inputs. An optional tensor is an input that every run feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trireme.converters.onnx.proto import ValueInfoProto
from trireme.ir.bind_shapes import shapes_to_give
from trireme.support.errors import ConvertError


def element_name(name: str, position: int) -> str:
    """Return the name of an element of a sequence that is an input or output of a model."""
    return f"{name}[{position}]"


def as_tensors(
    protos: Iterable[Any], shapes: Mapping[str, Sequence[int]], where: str
) -> tuple[list[Any], dict[str, list[str]]]:
    """Return the inputs as tensors, and the names of each sequence's elements.

    Errors: ConvertError, if `shapes` names no element of a sequence
    """
    tensors: list[Any] = []
    sequences: dict[str, list[str]] = {}
    for proto in protos:
        kind = proto.type
        if kind.HasField("optional_type"):
            kind = kind.optional_type.elem_type
        if not kind.HasField("sequence_type"):
            tensors.append(ValueInfoProto(name=proto.name, type=kind))
            continue
        sequences[proto.name] = _given(proto.name, shapes, where)
        element = kind.sequence_type.elem_type
        for dim in element.tensor_type.shape.dim:
            dim.ClearField("dim_param")  # elements differ in size
        tensors += [ValueInfoProto(name=one, type=element) for one in sequences[proto.name]]
    return tensors, sequences


def _given(name: str, shapes: Mapping[str, Sequence[int]], where: str) -> list[str]:
    found: list[str] = []
    while element_name(name, len(found)) in shapes:
        found.append(element_name(name, len(found)))
    if not found:
        example = {element_name(name, 0): (3,), element_name(name, 1): (3,)}
        raise ConvertError(
            f"{where} input '{name}': is a sequence, whose length is not known",
            fix=f"{shapes_to_give(example)}: an input for each element",
        )
    return found
