"""Find the models of a folder: which names and versions there are, and which places are refused.

    DIR/NAME/VERSION/model.onnx     versions are whole numbers from 1
    DIR/NAME.onnx                   version 1

A name never reaches a path: names come from the folder's own list, and a request only looks one up.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trireme.support.errors import ModelFileError

SUFFIXES = (".trm", ".onnx", ".tflite")
"""The suffixes of model files."""
MOST_VERSIONS = 10_000
"""The most versions of a model, and the most models of a folder."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_VERSION = re.compile(r"[1-9][0-9]{0,17}")

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of each file of a version: two stamps differ when one does.
"""


@dataclass(frozen=True)
class ModelFile:
    """The file of one version of a model, and the stamp of all files beside it."""

    name: str
    version: int
    path: Path
    stamp: Stamp


@dataclass(frozen=True)
class FoundModels:
    """The models of a folder: files by name and version, and the reason of each refused place."""

    models: Mapping[str, Mapping[int, ModelFile]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def is_model_name(name: str) -> bool:
    """Return whether a model may have this name: letters, digits, ".", "_" and "-", no ".."."""
    return _NAME.fullmatch(name) is not None and ".." not in name


def find_models(folder: str | os.PathLike[str]) -> FoundModels:
    """Return the models of a folder; entries that begin with "." are left out.

    Errors: ModelFileError, if the folder cannot be read
    """
    root = Path(folder)
    models: dict[str, dict[int, ModelFile]] = {}
    refused: dict[str, str] = {}
    for entry in _entries(root):
        name = entry.name if entry.is_dir() else _model_stem(entry)
        if not name:
            continue
        reason = _name_reason(name) or _outside_reason(entry, root)
        if not reason and name in models:
            reason = f"another place holds a model {name!r} too"
        if reason:
            refused[entry.name] = reason
        elif entry.is_dir():
            models[name] = dict(_versions(entry, name, root, refused))
        else:
            models[name] = {1: ModelFile(name, 1, entry, stamp_of(entry))}
    return FoundModels({name: found for name, found in models.items() if found}, refused)


def named_models(places: Mapping[str, str | os.PathLike[str]]) -> FoundModels:
    """Return the models of files, or of folders with versions, by the names that they are given.

    Errors: ModelFileError, if a name is not allowed or a place is missing
    """
    models: dict[str, dict[int, ModelFile]] = {}
    refused: dict[str, str] = {}
    for name, place in places.items():
        path = Path(place)
        if reason := _name_reason(name):
            raise ModelFileError(f"model {name!r}: {reason}")
        if path.is_dir():
            models[name] = dict(_versions(path, name, path, refused))
        elif path.exists():
            models[name] = {1: ModelFile(name, 1, path, stamp_of(path))}
        else:
            raise ModelFileError(f"model {name!r}: there is no file {path}")
    return FoundModels(models, refused)


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of a model file; of all files of its folder where that is of a version.

    A file that goes away meanwhile is left out, and the next stamp differs.
    """
    beside = _VERSION.fullmatch(path.parent.name) and path.stem == "model"
    found = []
    with suppress(OSError):
        for one in sorted(path.parent.iterdir()) if beside else [path]:
            with suppress(FileNotFoundError):
                status = one.stat()
                found.append((one.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _versions(
    folder: Path, name: str, root: Path, refused: dict[str, str]
) -> Iterator[tuple[int, ModelFile]]:
    """Yield the versions of a model's folder; note what is refused."""
    for entry in _entries(folder):
        where = f"{name}/{entry.name}"
        if not _VERSION.fullmatch(entry.name):
            refused[where] = "a version is a folder whose name is a whole number from 1"
        elif not entry.is_dir():
            refused[where] = "a version is a folder"
        elif reason := _outside_reason(entry, root):
            refused[where] = reason
        else:
            files = [entry / f"model{one}" for one in SUFFIXES if (entry / f"model{one}").exists()]
            reason = _files_reason(files, root)
            if reason:
                refused[where] = reason
            else:
                version = int(entry.name)
                yield version, ModelFile(name, version, files[0], stamp_of(files[0]))


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, in order of names, without entries that begin with "."."""
    try:
        found = sorted(one for one in folder.iterdir() if not one.name.startswith("."))
    except OSError as error:
        raise ModelFileError(
            f"the folder of models {folder} cannot be read: {error.strerror}"
        ) from error
    if len(found) > MOST_VERSIONS:
        raise ModelFileError(f"{folder} holds {len(found):,} entries, at most {MOST_VERSIONS:,}")
    return found


def _model_stem(path: Path) -> str:
    """Return the name of the model of a file; "" for a file that is no model."""
    return path.stem if path.suffix in SUFFIXES else ""


def _name_reason(name: str) -> str:
    if is_model_name(name):
        return ""
    return 'a name has 1 to 128 letters, digits, ".", "_" and "-", and no ".."'


def _outside_reason(path: Path, root: Path) -> str:
    """Return why a place is refused that leads out of the folder; "" for one that does not."""
    try:
        is_inside = path.resolve(strict=True).is_relative_to(root.resolve(strict=True))
    except (OSError, RuntimeError):
        return "a link leads nowhere"
    return "" if is_inside else "a link leads out of the folder"


def _files_reason(files: list[Path], root: Path) -> str:
    if len(files) != 1:
        known = ", ".join(f"model{one}" for one in SUFFIXES)
        return f"holds {len(files)} of {known}, expected one"
    if not files[0].is_file():
        return f"{files[0].name} is no file"
    return _outside_reason(files[0], root)
