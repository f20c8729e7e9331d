"""The states of a session at one moment, which a file can keep."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trireme.support.atomic import write_atomic
from trireme.support.dtypes import Array
from trireme.support.errors import ModelFileError


class StateSnapshot(Mapping[str, Array]):
    """Copies of states by name; one that has had no value yet may be missing.

    `Session.get_state` makes one, `Session.set_state` restores it.
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = {name: np.array(array) for name, array in arrays.items()}

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        shown = (f"{n}: {a.dtype}{list(a.shape)}" for n, a in self._arrays.items())
        return f"StateSnapshot({', '.join(shown)})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the states to an .npz file, whole or not at all.

        Errors: ModelFileError, if it cannot be written
        """
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", allowZip64=True) as archive:
            for name, array in self._arrays.items():
                one = io.BytesIO()
                np.save(one, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", one.getbuffer())
        try:
            write_atomic(Path(path), [made.getbuffer()])
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error.summary}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StateSnapshot:
        """Return the states of a file that `save` wrote, or of any .npz file.

        Errors: ModelFileError, if it cannot be read
        """
        try:
            with open(path, "rb") as opened, np.lib.npyio.NpzFile(opened) as file:
                return cls({name: file[name] for name in file.files})
        except Exception as error:  # zipfile's parser lets many kinds out on damaged files
            raise ModelFileError(f"{path}: no file of states: {error}") from error
