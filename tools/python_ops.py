"""The functions of `--python-ops FILE`: code that the user names, apart from any model."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from trireme.ir.python_op import PythonOp
from trireme.support.errors import ConvertError
from trireme.tools.programs import load_code

_VARIABLE = "python_ops"


def python_ops(options: argparse.Namespace) -> Mapping[str, PythonOp] | None:
    """Return the functions by name that the file of the options defines; None without a file.

    Errors: ConvertError, if the file cannot be read, raises, or has no dict `python_ops` of them
    """
    return operators_of(getattr(options, "python_ops", None))


def operators_of(file: str | None) -> Mapping[str, PythonOp] | None:
    """Return the functions by name that a file defines; None without a file.

    Errors: as `python_ops`
    """
    if file is None:
        return None
    path = Path(file)
    module = load_code(path, "--python-ops")
    found = vars(module).get(_VARIABLE)
    if not isinstance(found, dict) or not all(isinstance(v, PythonOp) for v in found.values()):
        raise ConvertError(
            f"--python-ops: {path} has no dict {_VARIABLE} of Python operators by name",
            fix=f'{_VARIABLE} = {{"my.domain::Foo": foo}}, foo decorated by @trireme.python_op',
        )
    return found
