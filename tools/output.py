"""Write the output of a command: text, JSON for programs, traces for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trireme.profiling.prediction import Prediction
from trireme.profiling.profile import Profile
from trireme.profiling.trace import chrome_trace
from trireme.support.atomic import write_atomic
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError
from trireme.tools.streams import forget_line

SCHEMA_VERSION = 1
"""Of the JSON that commands write: it grows when a key goes or means something else."""


Data = Mapping[str, Any] | Callable[[], Mapping[str, Any]]
"""The result of a command as plain data, or a function that makes the data on demand."""


def emit(options: argparse.Namespace, data: Data, text: str) -> None:
    """Print the text, or the data as JSON where --json asks for it; a JSON file leaves the text."""
    forget_line()
    if options.json == "-":
        print(_json(data))
        return
    if options.json:
        Path(options.json).write_text(_json(data) + "\n")
    print(text)


def _json(data: Data) -> str:
    plain = data() if callable(data) else data
    return json.dumps({"schema_version": SCHEMA_VERSION, **plain}, indent=1, default=_plain)


def write_arrays(file: str, arrays: Mapping[str, Array]) -> None:
    """Write arrays as an .npz file, whole or not at all; the name gets the suffix.

    Errors: ModelFileError, if it cannot be written
    """
    path = Path(file if file.endswith(".npz") else f"{file}.npz")
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **arrays)
    try:
        write_atomic(path, [data.getbuffer()])
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error.summary}") from error


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def write_trace(options: argparse.Namespace, run: Profile | Prediction) -> None:
    """Write a Chrome trace where --trace asks for one."""
    if options.trace:
        trace = json.dumps(chrome_trace(run), allow_nan=False, default=_plain)
        Path(options.trace).write_text(trace + "\n")
