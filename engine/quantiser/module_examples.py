"""The first of the samples, as the arguments by which a module of PyTorch is exported."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trireme.ir.quantization.stored import RANDOM
from trireme.quantiser.stored_arrays import StoredArray, stored_arrays
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

_MODULE = "torch.nn.modules.module.Module"


def is_module(model: Any) -> bool:
    """Whether a model is a module of PyTorch, which has a graph only by a run."""
    classes = type(model).__mro__
    return any(f"{one.__module__}.{one.__qualname__}" == _MODULE for one in classes)


def first_sample(data: Any) -> tuple[Any, Any]:
    """Return the first sample as arguments of forward, None where there is none, and all data.

    Data that can be read once still hold the sample.
    """
    if data is None or (isinstance(data, str) and data == RANDOM):
        return None, data
    if isinstance(data, (str, os.PathLike)):
        return _of_path(Path(data)), data
    given = data() if callable(data) and not isinstance(data, Iterable) else data
    if isinstance(given, Mapping):
        return {name: _example(_first(array)) for name, array in given.items()}, data
    if isinstance(given, np.ndarray):
        return (_example(_first(given)),), data
    if not isinstance(given, Iterable):
        return None, data
    rows: Iterator[Any] = iter(given)
    one = next(rows, None)
    if rows is given is data:
        data = itertools.chain([one] * (one is not None), rows)
    return _arguments(one), data


def _of_path(path: Path) -> Any:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".npy"))
        return _of_path(files[0]) if files else None
    found = {name: _example(_first(array)) for name, array in stored_arrays(path).items()}
    return tuple(found.values()) if path.suffix == ".npy" else found


def _first(array: Any) -> Any:
    """Return the first row of an array that holds many samples along its first axis.

    Errors: RunError, if it has none
    """
    try:
        if isinstance(array, StoredArray):
            return next(array.parts(array.shape[1:], array.shape[0]))
        return array[0]
    except (IndexError, KeyError, TypeError, StopIteration):
        raise RunError(
            "the data hold no sample by which the module is exported",
            fix="give arrays with samples along a first axis that is one more",
        ) from None


def _arguments(one: Any) -> Any:
    if one is None:
        return None
    if isinstance(one, Mapping):
        return {name: _example(array) for name, array in one.items()}
    if isinstance(one, (tuple, list)):
        return tuple(_example(array) for array in one)
    return (_example(one),)


def _example(array: Any) -> Any:
    """Return an array as samples are read: numbers of float64 are float32."""
    if isinstance(array, np.ndarray) and array.dtype == np.float64:
        return _native(array.astype(np.float32))
    return _native(array) if isinstance(array, np.ndarray) else array


def _native(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder("="), copy=False)
