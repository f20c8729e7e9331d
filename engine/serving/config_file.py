"""Read serve.toml: a table becomes a dataclass, and an error names the table and its key."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from trireme.serving.config import ModelSettings, ServeConfig
from trireme.support.arguments import check_arguments, shown
from trireme.support.errors import ModelFileError, RunError

T = TypeVar("T")


def read_config(path: str | os.PathLike[str]) -> ServeConfig:
    """Return the configuration of a file; its relative paths are seen from its folder.

    Errors: ModelFileError, if the file is no TOML; RunError, which names a wrong key
    """
    file = Path(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{file.name} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{file.name} is no TOML: {error}") from error
    return config_of(table, file.name, file.parent)


def config_of(
    table: Mapping[str, Any], name: str = "config", folder: Path | None = None
) -> ServeConfig:
    """Return the configuration of plain data.

    name: of the file, for messages; folder: what relative paths are seen from
    Errors: RunError, which names a wrong key
    """
    defaults = table.get("defaults", {})
    models = table.get("models", {})
    if isinstance(defaults, Mapping) and isinstance(models, Mapping):
        merged = {one: _over(defaults, given) for one, given in models.items()}
        table = {**table, "models": merged} if merged else table
    config = _read(ServeConfig, table, name, "")
    return config if folder is None else _seen_from(config, folder)


def _over(defaults: Mapping[str, Any], given: Any) -> Any:
    """Return a model's table over the defaults, key by key; batching and versions whole."""
    return {**defaults, **given} if isinstance(given, Mapping) else given


def _read(kind: type[T], table: Any, file: str, where: str) -> T:
    """Return a table as a dataclass."""
    if not isinstance(table, Mapping):
        raise RunError(f"{file}: {where} is {shown(table)}, expected a table")
    hints = typing.get_type_hints(kind)
    names = [one.name for one in dataclasses.fields(typing.cast("Any", kind))]
    of = f"{file} [{where}]" if where else file
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in names:
            close = difflib.get_close_matches(key, names, 1)
            raise RunError(
                f"{of}: {key!r} is no key",
                facts=[f"known: {', '.join(names)}"],
                fix=f"did you mean {close[0]!r}?" if close else "",
            )
        values[key] = _value(hints[key], value, file, f"{where}.{key}" if where else key)
    check_arguments(kind, values, RunError, of)
    try:
        return kind(**values)
    except RunError as error:
        raise RunError(f"{of}: {error.summary}") from error


def _value(hint: Any, value: Any, file: str, where: str) -> Any:
    """Return a value, of which tables that are dataclasses are read."""
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast("type[Any]", hint), value, file, where)
    inside = typing.get_args(hint)
    is_tables = typing.get_origin(hint) is Mapping and dataclasses.is_dataclass(inside[1])
    if is_tables and isinstance(value, Mapping):
        return {
            name: _value(inside[1], one, file, f"{where}.{name}") for name, one in value.items()
        }
    return value


def _seen_from(config: ServeConfig, folder: Path) -> ServeConfig:
    """Return the configuration with its paths seen from a folder."""
    server = config.server

    def seen(path: str) -> str:
        return str(folder / path) if path else ""

    def model_seen(one: ModelSettings) -> ModelSettings:
        placement = None if one.placement is None else seen(one.placement)
        return dataclasses.replace(one, path=seen(one.path), placement=placement)

    return dataclasses.replace(
        config,
        server=dataclasses.replace(
            server,
            repository=seen(server.repository),
            token_file=seen(server.token_file),
            certificate=seen(server.certificate),
            key=seen(server.key),
        ),
        defaults=model_seen(config.defaults),
        models={name: model_seen(one) for name, one in config.models.items()},
    )
