"""What a command writes: text for people, JSON for programs, traces for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping
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


def emit(options: argparse.Namespace, data: Mapping[str, Any], text: str) -> None:
    """Print the text, or the data as JSON where --json asks for it; a JSON file leaves the text."""
    written = json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=1, default=_plain)
    forget_line()
    if options.json == "-":
        print(written)
        return
    if options.json:
        Path(options.json).write_text(written + "\n")
    print(text)


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
