"""ONNX Runtime's Python interface over trireme's sessions: change the import, keep the program.

    import trireme.compat.onnxruntime as ort

Sessions, options, IO bindings and OrtValues work as there. What cannot be honoured is an error, or
a CompatibilityWarning where results do not depend on it. Models may be of any format that trireme
reads.
"""

from __future__ import annotations

from trireme.compat.onnxruntime.binding import IOBinding, SessionIOBinding
from trireme.compat.onnxruntime.errors import CompatibilityWarning, NotSupported, warn_unused
from trireme.compat.onnxruntime.options import (
    LOGGING,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from trireme.compat.onnxruntime.session import InferenceSession
from trireme.compat.onnxruntime.signature import ModelMetadata, NodeArg
from trireme.compat.onnxruntime.values import OrtDevice, OrtValue
from trireme.version import __version__

__all__ = [
    "CompatibilityWarning",
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "get_version_string",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def get_available_providers() -> list[str]:
    """Return the names of providers that sessions take."""
    from trireme.compat.onnxruntime.providers import AVAILABLE

    return list(AVAILABLE)


def get_all_providers() -> list[str]:
    """Return the same as get_available_providers."""
    return get_available_providers()


def get_device() -> str:
    """Return the kind of device that sessions run on unless others are asked for."""
    return "CPU"


def get_version_string() -> str:
    """Return the version of trireme."""
    return __version__


def disable_telemetry_events() -> None:
    """Do nothing: trireme sends nothing."""


def enable_telemetry_events() -> None:
    """Warn: trireme sends nothing."""
    warn_unused("enable_telemetry_events", "nothing is sent")


def set_default_logger_severity(severity: int) -> None:
    """Warn: levels are those of Python's logging."""
    warn_unused("set_default_logger_severity", LOGGING)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Warn: levels are those of Python's logging."""
    warn_unused("set_default_logger_verbosity", LOGGING)


def set_seed(seed: int) -> None:
    """Refuse: seeds of random ops are attributes of their nodes."""
    raise NotSupported("set_seed is not supported: seeds of random ops are in the model")


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"trireme.compat.onnxruntime has no {name!r}: it has {', '.join(sorted(__all__))}"
    )
