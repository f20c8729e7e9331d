"""The tensors and operators of a .tflite file, before they are laid out as FlatBuffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trireme.ir.graph import Quant
from trireme.support.dtypes import Array


@dataclass(frozen=True, eq=False)
class WrittenTensor:
    """A tensor of the file; a constant has `data`.

    shape: the shape that a runtime gives it first; signature: the same, -1 where it is open
    """

    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    dtype: str
    quant: Quant | None = None
    data: Array | None = None


@dataclass(frozen=True, eq=False)
class WrittenOperator:
    """An operator of the file; `options` are the fields of its table of options, `kind`."""

    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    custom: bytes = b""


@dataclass(eq=False)
class WrittenGraph:
    """The subgraph of the file, while it grows."""

    name: str
    tensors: list[WrittenTensor] = field(default_factory=list)
    operators: list[WrittenOperator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
