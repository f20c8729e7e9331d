"""Serve models: requests of the Open Inference Protocol v2 over HTTP and gRPC.

    from trireme.serving import Server, FixedModels, SessionModel

`service.InferenceService` is what both transports call; `models.Models` is what it takes models
from. Importing this package needs nothing; the names of the transports need the extra `serve`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trireme.support.errors import RunError

if TYPE_CHECKING:
    from trireme.serving.admission import ServingLimits
    from trireme.serving.configured import server_of
    from trireme.serving.errors import ServingError
    from trireme.serving.http import http_app
    from trireme.serving.models import FixedModels, SessionModel
    from trireme.serving.repository import ModelRepository
    from trireme.serving.server import Server
    from trireme.serving.service import InferenceService

_LATER = {
    "FixedModels": "models",
    "InferenceService": "service",
    "ModelRepository": "repository",
    "Server": "server",
    "ServingError": "errors",
    "ServingLimits": "admission",
    "SessionModel": "models",
    "http_app": "http",
    "server_of": "configured",
}
"""The module of each name that is imported when it is first used."""

__all__ = [
    "FixedModels",
    "InferenceService",
    "ModelRepository",
    "Server",
    "ServingError",
    "ServingLimits",
    "SessionModel",
    "http_app",
    "server_of",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trireme"):
            raise
        raise RunError(
            f"serving needs {error.name}, which is not installed",
            fix="pip install 'trireme-engine[serve]'",
        ) from error
