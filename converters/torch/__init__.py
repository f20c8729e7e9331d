"""PyTorch modules, exported programs and .pt2 files: one comes in, a checked Graph goes out.

`program` exports a module with torch.export, or reads a .pt2 file, and decomposes the program to
few ATen ops. `support` lists the ops without a rule. `walk` binds inputs, weights and state, and
visits the nodes. `table` maps each ATen op to a rule, and the rules stand by family beside it.
torch is imported here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import trireme.ops  # noqa: F401  (fills the registry)
from trireme.ir.graph import Graph
from trireme.support.errors import ConvertError, ModelFileError
from trireme.support.mapped import OnOpen, ignore_file

__all__ = ["convert"]


def convert(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    use_mmap: bool = True,
    on_open: OnOpen = ignore_file,
) -> Graph:
    """Return the graph of a torch.nn.Module, of an ExportedProgram or of a .pt2 file.

    A module is exported in evaluation mode, and its weights are copied.

    shapes: whole shapes of inputs by name; the symbols they bind are bound everywhere
    example_inputs: for a module, the arguments of its forward: a tuple, or a dict of keywords
    dynamic_shapes: for a module, as torch.export.export takes it; names of Dims become symbols
    Errors: ModelFileError, if the file is damaged or needs code to load; ConvertError, if torch is
        not installed or cannot export the module, listing every op that is not supported, or
        naming the node that cannot be expressed
    """
    if _is_path(source):
        _check_readable(source)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConvertError(
            f"a PyTorch model needs torch: {error}", fix="pip install 'trireme-engine[torch]'"
        ) from error
    from trireme.converters.torch.program import read_program
    from trireme.converters.torch.walk import convert_program

    given = source if isinstance(source, bytes) or not _is_path(source) else os.fspath(source)
    program = read_program(given, example_inputs, dynamic_shapes, use_mmap, on_open)
    return convert_program(program, shapes or {})


def _is_path(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike))


def _check_readable(path: str | os.PathLike[str]) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ModelFileError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
