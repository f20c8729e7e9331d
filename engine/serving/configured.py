"""From a configuration to the models that it names, and to the server of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from trireme.serving.config import ServeConfig
from trireme.serving.layout import FoundModels, ModelFile, find_models, named_models
from trireme.serving.models import Models
from trireme.serving.observed import ObservedModel
from trireme.serving.opening import open_model
from trireme.serving.pipelined import PipelinedModels
from trireme.serving.repository import ModelRepository
from trireme.serving.server import Server
from trireme.serving.usage import Usage
from trireme.support.errors import ModelFileError, RunError


def server_of(config: ServeConfig) -> Server:
    """Return the server of a configuration; it owns its models.

    Errors: RunError, for a model without a file or a pipeline that cannot be made; ModelFileError
    """
    usage = Usage()
    settings = config.server
    token = _token(settings.token_file) if settings.token_file else ""
    models = open_models(config, usage)
    try:
        return Server(
            models,
            host=settings.host,
            http_port=settings.http,
            grpc_port=settings.grpc,
            limits=config.limits,
            token=token,
            allow_admin=settings.allow_admin,
            certificate=settings.certificate,
            key=settings.key,
            usage=usage,
        )
    except BaseException:
        models.close()
        raise


def open_models(config: ServeConfig, usage: Usage | None = None) -> Models:
    """Return the models and pipelines of a configuration, opened and warm.

    usage: counts their runs
    Errors: as server_of
    """
    usage = usage or Usage()
    places = {name: one.path for name, one in config.models.items() if one.path}
    look = partial(_look, config.server.repository, places)
    _check_models(config, look())

    def opened(file: ModelFile) -> ObservedModel:
        return open_model(file, config.of_model(file.name), usage)

    repository = ModelRepository(
        look,
        opened,
        policies={name: one.versions for name, one in config.models.items()},
        policy=config.defaults.versions,
        poll_s=config.server.poll_s or None,
    )
    if not config.pipelines:
        return repository
    try:
        return PipelinedModels(repository, config.pipelines)
    except BaseException:
        repository.close()
        raise


def _look(folder: str, places: Mapping[str, str]) -> FoundModels:
    """Return the models of the folder and of the places; a place goes before the folder."""
    found = find_models(folder) if folder else FoundModels()
    named = named_models(places)
    refused = {**found.refused, **named.refused}
    for name in named.models:
        if name in found.models:
            refused[name] = "the configuration names another place for this model"
    return FoundModels({**found.models, **named.models}, refused)


def _check_models(config: ServeConfig, found: FoundModels) -> None:
    """See that there is a file for every model that has settings."""
    missing = [name for name in config.models if name not in found.models]
    if missing:
        where = f"in {Path(config.server.repository).name}" if config.server.repository else ""
        raise RunError(
            f"models.{missing[0]} has no path, and there is no such model {where}".rstrip(),
            facts=[f"{place}: {reason}" for place, reason in found.refused.items()],
        )
    if not found.models and not config.server.repository:
        raise RunError("there is nothing to serve", fix="give a model, or server.repository")


def _token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"server.token_file cannot be read: {error}") from error
    if not token:
        raise ModelFileError("server.token_file holds no token")
    return token
