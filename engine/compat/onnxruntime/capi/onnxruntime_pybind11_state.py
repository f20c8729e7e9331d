"""The errors under the module that programs import them from."""

from __future__ import annotations

from trireme.compat.onnxruntime.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
    RuntimeException,
)
from trireme.compat.onnxruntime.errors import NotSupported as NotImplemented  # noqa: A004

__all__ = [
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoSuchFile",
    "NotImplemented",
    "RuntimeException",
]
