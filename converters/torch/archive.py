"""Read a .pt2 file without running code from it.

torch.export.load trusts its file: it unpickles objects, calls functions by name and evaluates the
text of expressions. An archive that holds more than tensors, ATen ops and arithmetic is refused
before torch sees it.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trireme.support.errors import ModelFileError
from trireme.support.mapped import OnOpen, open_file

_FIX = "torch.export.save(torch.export.export(module, inputs), path) with torch 2.8 or newer"
_TARGET = re.compile(
    r"(torch\.ops\.\w+\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.sym_\w+|torch\._sym_\w+)"
)
_EXPRESSION = re.compile(
    r"(?!.*(__|\.[A-Za-z_]))([\w\s()+\-*/,.<>=!&|~%]|'\w+'|'-?\d+\.\d*(e[-+]?\d+)?')*"
)
"""Arithmetic on symbols: no texts but names and numbers, no brackets, no attributes."""
_CALLED = re.compile(r"(\w+)\s*\(")
_FUNCTIONS = """
    Symbol Integer Float Rational Add Mul Pow Max Min Abs Mod PythonMod FloorDiv CleanDiv
    ModularIndexing CeilToInt FloorToInt TruncToInt TruncToFloat RoundToInt RoundDecimal
    ToFloat IntTrueDiv FloatTrueDiv PowByNatural FloatPow Where Piecewise ExprCondPair Eq Ne
    Lt Le Gt Ge Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan
    And Or Not Identity floor ceiling LShift RShift
"""
"""The functions of expressions, by name."""
_CODE = ("exec", "eval", "attrgetter", "methodcaller")
"""Functions of `operator` and its like that reach further than numbers do."""

_QUANTIZED, _QUANTIZED_OPS = "quantized_decomposed", "torch.ao.quantization.fx._decomposed"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load_archive(source: str | bytes, use_mmap: bool, on_open: OnOpen) -> Any:
    """Return the ExportedProgram of a .pt2 file or of its bytes.

    Errors: ModelFileError, if the file cannot be read, is damaged or needs code to load
    """
    if isinstance(source, str):
        try:
            file = open_file(Path(source), use_mmap)
        except OSError as error:
            raise ModelFileError(f"{source} cannot be read: {error}") from error
        on_open(file)
        data = file.data.tobytes()
    else:
        data = source
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _refuse_code(archive)
        with quiet():
            return torch.export.load(io.BytesIO(data))
    except ModelFileError:
        raise
    except Exception as error:  # a damaged file may break a rule in any way
        lines = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {lines[0] if lines else ''}"
        raise ModelFileError(f"the model is not a .pt2 file of torch.export: {what}") from error


def _refuse_code(archive: zipfile.ZipFile) -> None:
    """Raise ModelFileError for an archive from which torch would load more than tensors."""
    names = [name.partition("/")[2] for name in archive.namelist()]
    roots = {name.partition("/")[0] for name in archive.namelist()}
    if len(roots) != 1 or len({name.casefold() for name in names}) != len(names):
        raise ModelFileError("two records of the archive have one name, or it has several roots")
    if "archive_format" not in names or "models/model.json" not in names:
        raise ModelFileError("the file holds no program of torch.export", fix=_FIX)
    (root,) = roots
    for name in names:
        folder = name.rpartition("/")[0]
        if name.startswith("data/aotinductor/"):
            raise ModelFileError(f"the file holds compiled code ({name}), which is not loaded")
        if folder in ("data/weights", "data/constants") and name.endswith(".json"):
            _check_payloads(json.loads(archive.read(f"{root}/{name}")))
        if folder == "data/sample_inputs":
            _check_samples(name, archive.read(f"{root}/{name}"))
        if folder == "models":
            _check_program(name, json.loads(archive.read(f"{root}/{name}")))


def _check_payloads(config: Any) -> None:
    for key, entry in config["config"].items():
        path = str(entry["path_name"])
        if entry["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", path):
            raise ModelFileError(f"'{key}' is an object that only code can load ({path})")


def _check_samples(name: str, data: bytes) -> None:
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise ModelFileError(
            f"{name} holds objects that only code can load",
            fix="save the program without example inputs of classes of your own",
        ) from error


def _check_program(name: str, program: Any) -> None:
    """Refuse targets that are no ops, and expressions that are no arithmetic."""
    waiting = [program]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, dict):
            continue
        waiting += part.values()
        target, text = part.get("target"), part.get("expr_str")
        if isinstance(target, str) and "inputs" in part and not _is_op(target):
            raise ModelFileError(f"{name} calls '{target}', which is no op")
        if isinstance(target, str) and "inputs" in part and not _is_registered(target):
            raise ModelFileError(
                f"{name} calls '{target}', an op that is not registered in this process",
                fix="import the library that defines it, then convert the file",
            )
        if isinstance(text, str) and not _is_arithmetic(text):
            raise ModelFileError(f"{name} has the expression {text!r}, which is no arithmetic")


def _is_op(target: str) -> bool:
    last = target.rpartition(".")[2]
    return bool(_TARGET.fullmatch(target)) and last not in _CODE and not last.startswith("__")


def _is_registered(target: str) -> bool:
    """Whether torch knows an op by name; the ops of torch.ao are registered by a module of it."""
    if not target.startswith("torch.ops."):
        return True
    library, name = target.split(".")[2:4]
    if library == _QUANTIZED and not hasattr(getattr(torch.ops, library), name):
        importlib.import_module(_QUANTIZED_OPS)
    return hasattr(getattr(torch.ops, library), name)


def _is_arithmetic(text: str) -> bool:
    return bool(_EXPRESSION.fullmatch(text)) and set(_CALLED.findall(text)) <= set(
        _FUNCTIONS.split()
    )
