"""`trireme convert FILE.py:FUNCTION`: a function of Python captured as a graph.

The file is code of the user's, which runs when it is read. No other command takes one: they take
the .trm file, which holds no code.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from trireme import capture
from trireme.ir.bind_shapes import bind_shapes
from trireme.ir.dims import symbol_name
from trireme.ir.graph import Graph, TensorType
from trireme.support.dtypes import numpy_dtype
from trireme.support.errors import ConvertError

_TYPE = re.compile(r"\s*(\w+)\s*=\s*(\w+)\s*\[(.*)\]\s*")
_FIX = "--input x=float32[batch<=8,3], once for each tensor"


def is_program(model: str) -> bool:
    """Whether a model is named as FILE.py:FUNCTION."""
    path, _, name = model.rpartition(":")
    return path.endswith(".py") and name.isidentifier()


def captured_graph(options: argparse.Namespace) -> Graph:
    """Return the graph of the function that the options name.

    Errors: ConvertError, if the file or an input cannot be read, or the function not captured
    """
    path, _, name = options.model.rpartition(":")
    function = vars(load_code(Path(path), "the program")).get(name)
    if not callable(function):
        raise ConvertError(f"{path} has no function {name}")
    types = dict(_typed(row) for row in options.input)
    captured = capture(function, *_examples(function, types), fallback=False)
    return bind_shapes(captured.graph(), {key: dims for key, (_, dims) in types.items()})


def load_code(path: Path, what: str) -> ModuleType:
    """Return a Python file as a module, which runs its code.

    Errors: ConvertError, if it is no Python file, or raises
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file():
        raise ConvertError(f"{what}: there is no file {path}")
    if spec is None or spec.loader is None:
        raise ConvertError(f"{what}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConvertError(f"{what}: {path}: {type(error).__name__}: {error}") from error
    return module


def _typed(row: str) -> tuple[str, tuple[TensorType, tuple[int | str, ...]]]:
    """Return the name of "x=float32[n<=8,3]", its type, and its dimensions with bounds."""
    found = _TYPE.fullmatch(row)
    if found is None:
        raise ConvertError(f"--input {row} is no type", fix=_FIX)
    name, dtype, inside = found.groups()
    dims = [dim.strip() for dim in inside.split(",") if dim.strip()]
    sizes = tuple(int(dim) if dim.isdecimal() else dim for dim in dims)
    numpy_dtype(dtype)
    names = tuple(dim if isinstance(dim, int) else _symbol(dim) for dim in sizes)
    return name, (TensorType(names, dtype), sizes)


def _symbol(dim: str) -> str:
    names = re.findall(r"[A-Za-z_]\w*", dim)
    return symbol_name(names[0] if len(names) == 1 else dim)


def _examples(
    function: Callable[..., Any], types: Mapping[str, tuple[TensorType, Sequence[int | str]]]
) -> list[TensorType]:
    """Return the type of each parameter, in order; parameters with defaults may be left out."""
    parameters = inspect.signature(function).parameters
    if unknown := [name for name in types if name not in parameters]:
        known = ", ".join(parameters)
        raise ConvertError(f"the function has no parameter {unknown[0]}", facts=[f"known: {known}"])
    missing = [
        name for name, one in parameters.items() if name not in types and one.default is one.empty
    ]
    if missing:
        raise ConvertError(f"the type of parameter {missing[0]} is missing", fix=_FIX)
    given = [name in types for name in parameters]
    if given != sorted(given, reverse=True):
        raise ConvertError("a parameter with a type follows one without", fix=_FIX)
    return [types[name][0] for name in parameters if name in types]
