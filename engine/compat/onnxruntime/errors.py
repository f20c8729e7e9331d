"""The errors of ONNX Runtime by their names there; each is also one of trireme's."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from trireme.support.errors import (
    CancelledError,
    ConvertError,
    DeviceError,
    GraphError,
    ModelFileError,
    RunError,
    TriremeError,
)


class CompatibilityWarning(UserWarning):
    """An option of ONNX Runtime has no effect here."""


class Fail(RunError):
    """A run or a session failed."""


class InvalidArgument(RunError):
    """An argument or an input does not fit."""


class MissingInput(InvalidArgument, ValueError):
    """An input is missing; ONNX Runtime raises ValueError."""


class NoSuchFile(ModelFileError):
    """There is no such file."""


class InvalidProtobuf(ModelFileError):
    """A file or bytes are no model."""


class InvalidGraph(GraphError):
    """A model breaks a rule of its format."""


class NotSupported(TriremeError):
    """Something of ONNX Runtime's interface or of a model is not supported."""


class RuntimeException(DeviceError):
    """A device or a kernel failed."""


def warn_unused(what: str, why: str) -> None:
    """Warn, at the caller's line, that an option has no effect."""
    warnings.warn(f"{what} has no effect in trireme: {why}", CompatibilityWarning, stacklevel=4)


_KINDS: tuple[tuple[type[TriremeError], type[TriremeError]], ...] = (
    (CancelledError, Fail),
    (RunError, InvalidArgument),
    (ModelFileError, InvalidProtobuf),
    (GraphError, InvalidGraph),
    (ConvertError, NotSupported),
    (DeviceError, RuntimeException),
    (TriremeError, Fail),
)


@contextmanager
def as_onnxruntime(model: object = None) -> Iterator[None]:
    """Raise trireme's errors under their names in ONNX Runtime; the texts stay."""
    try:
        yield
    except (Fail, InvalidArgument, NotSupported):
        raise
    except TriremeError as error:
        missing = isinstance(model, str | os.PathLike) and not os.path.exists(model)
        kind = next(new for old, new in _KINDS if isinstance(error, old))
        named = (NoSuchFile if missing else kind)(error.summary, facts=error.facts, fix=error.fix)
        raise named.of_device(error.device) from error
