"""ONNX models, opset 6 and newer: a path or bytes come in, a checked Graph goes out.

`file` reads and verifies the protobuf. `scope` keeps names and folds shape arithmetic. `walk`
visits the nodes. There `adapt` lifts old opsets to the newest meaning, and `table` maps each node
to an op. An op without a counterpart is replaced by ONNX's function body for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.converters.onnx.file import newer_opsets, read_model
from trireme.converters.onnx.walk import convert_model
from trireme.ir.graph import Graph
from trireme.ir.python_op import PythonOp
from trireme.model_file.notes import OnNote, log_note
from trireme.support.mapped import OnOpen, ignore_file

__all__ = ["convert"]


def convert(
    source: str | Path | bytes,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    name: str | None = None,
    use_mmap: bool = True,
    on_open: OnOpen = ignore_file,
    on_note: OnNote = log_note,
    python_ops: Mapping[str, PythonOp] | None = None,
    optional_inputs: Sequence[str] = (),
) -> Graph:
    """Return the graph of an ONNX model, with the model's own tensor names.

    The constants are views of the file, which is mapped into memory. Replace the file atomically,
    never truncate it, or pass use_mmap=False.

    shapes: whole shapes of inputs by name; the symbols they bind are bound everywhere
    on_open: called with every file that is read
    on_note: called with a sentence where the model's opset is newer than `NEWEST_OPSET`
    python_ops: functions of the user that stand for ops, by "domain::Op"
    optional_inputs: names of inputs with an initializer that stay inputs; the others are constants
    Errors: ModelFileError, if the file is damaged, hostile or not ONNX; ConvertError, listing every
        op that is not supported, or naming the node that cannot be expressed
    """
    model, files = read_model(source, use_mmap, on_open)
    given = (shapes or {}, name, python_ops or {}, optional_inputs)
    graph = convert_model(model, files, *given)
    for note in newer_opsets(model):
        on_note(note)
    return graph
