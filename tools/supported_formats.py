"""The sections of SUPPORTED_OPS.md on files: which operators of each format convert.

The converters' own tables are asked, and for ONNX also onnx's list of operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tflite

from trireme.converters.onnx.file import OLDEST_OPSET
from trireme.converters.onnx.listing import Conversion, conversions
from trireme.converters.onnx.write import OPSET
from trireme.converters.onnx.write.table import written_ops as written_to_onnx
from trireme.converters.tflite.sixteen import SIXTEEN_BIT
from trireme.converters.tflite.walk import OPERATORS, REFUSED
from trireme.converters.tflite.write.table import written_ops as written_to_tflite
from trireme.converters.torch.table import supported_aten

_COLUMNS = 4

_ONNX = f"""Operators of ai.onnx from opset {OLDEST_OPSET}, of ai.onnx.ml and of com.microsoft.
"becomes" names the op of the table above that does most of the work. "its function" is the nodes by
which ONNX defines the operator. [Files that ONNX Runtime
writes](docs/reference/onnx-runtime-files.md) lists what is refused of com.microsoft's operators,
and [run models of scikit-learn](docs/how-to/run-scikit-learn-models.md) that of ai.onnx.ml's.
"""
_ONNX_REFUSED = """A model with one of these is an error that names all such nodes. `python_ops`
gives a function that stands for an operator, of these or of any other domain. Operators of
com.microsoft.nchwc are refused: save the model with ORT_ENABLE_EXTENDED.
"""
_TFLITE = """[How to run a TensorFlow Lite model](docs/how-to/run-a-tflite-model.md) says how they
run.
"""
_TFLITE_REFUSED = """A file with one of these operators, or with a custom operator, is an error that
names all of them. `python_ops` gives a function that stands for an operator.
"""
_SIXTEEN = """Activations of int16 ("16x8": zero point 0, weights of int8, bias of int64) are for:
"""
_PYTORCH = """torch.export decomposes most of torch to these ATen ops. `cond`, `while_loop`, `scan`
and functions of sizes convert too. Another op is an error with the line of the model's source. [How
to convert a PyTorch model](docs/how-to/convert-pytorch.md) says what becomes of them.
"""


_WRITTEN = f"""Ops of the first table that `trireme.export` writes to an .onnx file, of opset
{OPSET}, and to a .tflite file. [How to export a model](docs/how-to/export-a-model.md) says how, and
which cases of an op are left out. A graph with another op is an error that names all such nodes.
"""


def format_sections() -> list[str]:
    """Return the lines of the sections, a format after the other."""
    return [*_onnx(), *_tflite(), *_torch(), *_written()]


def _written() -> list[str]:
    formats = {".onnx": set(written_to_onnx()), ".tflite": set(written_to_tflite())}
    lines = ["", "## What is written to other formats", "", _WRITTEN]
    lines += [f"| op | {' | '.join(formats)} |", "|---" * (1 + len(formats)) + "|"]
    for op in sorted(set().union(*formats.values())):
        cells = ("yes" if op in known else "" for known in formats.values())
        lines.append(f"| `{op}` | {' | '.join(cells)} |")
    return lines


def _onnx() -> list[str]:
    found = conversions()
    lines = ["", "## What an .onnx file may hold", "", _ONNX, "| operator | becomes |", "|---|---|"]
    lines += [f"| {one.name} | {_becomes(one)} |" for one in found if one.becomes is not None]
    lines += ["", "### Refused in an .onnx file", "", _ONNX_REFUSED]
    return lines + in_columns(one.name for one in found if one.becomes is None)


def _becomes(one: Conversion) -> str:
    return f"`{one.becomes}`" if one.is_op else str(one.becomes)


def _tflite() -> list[str]:
    lines = ["", "## What a .tflite file may hold", "", _TFLITE, *in_columns(sorted(OPERATORS))]
    builtin = {name for name in vars(tflite.BuiltinOperator) if name.isupper()}
    lines += ["", "### Refused in a .tflite file", "", _TFLITE_REFUSED]
    lines += in_columns(sorted(builtin - set(OPERATORS) - _NO_OPERATORS))
    lines += ["", "So are tensors:", "", *(f"* {trouble}" for trouble in REFUSED)]
    return [*lines, "", "### On int16 in a .tflite file", "", _SIXTEEN, *in_columns(SIXTEEN_BIT)]


_NO_OPERATORS = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
"""Numbers of the format that stand for no operator of their own."""


def _torch() -> list[str]:
    overloads: dict[str, list[str]] = {}
    for name in supported_aten():
        op, _, overload = name.removeprefix("aten.").rpartition(".")
        overloads.setdefault(op, []).append(overload)
    lines = [
        "",
        "## What a PyTorch model may hold",
        "",
        _PYTORCH,
        "| op | overloads |",
        "|---|---|",
    ]
    return lines + [f"| {op} | {', '.join(known)} |" for op, known in overloads.items()]


def in_columns(names: Iterable[str]) -> list[str]:
    """Return names as a table that is read line by line."""
    cells: Sequence[str] = [*names]
    lines = ["| " * _COLUMNS + "|", "|---" * _COLUMNS + "|"]
    for start in range(0, len(cells), _COLUMNS):
        row = [*cells[start : start + _COLUMNS], *[""] * _COLUMNS][:_COLUMNS]
        lines.append(f"| {' | '.join(row)} |")
    return lines
