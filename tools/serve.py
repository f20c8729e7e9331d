"""`trireme serve`: answer requests for models over HTTP and gRPC until a signal."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme import serving
from trireme.serving.config import ModelSettings, ServeConfig
from trireme.serving.config_file import read_config
from trireme.serving.models import Models
from trireme.support.errors import ModelFileError, RunError
from trireme.support.limits import MOST_THREADS
from trireme.tools.number_options import seconds, whole
from trireme.tools.output import emit
from trireme.tools.parsed import parse_shapes
from trireme.tools.streams import show_warnings

if TYPE_CHECKING:
    from trireme.serving.server import Server

MOST_PORT = 65535

ARGUMENTS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("models",),
        dict(
            nargs="*",
            metavar="MODEL",
            help="model file, served under its name without the suffix; or NAME=FILE",
        ),
    ),
    (
        ("--repository",),
        dict(metavar="DIR", help="folder of models: DIR/NAME/VERSION/model.onnx, DIR/NAME.onnx"),
    ),
    (("--config",), dict(metavar="FILE", help="serve.toml; other options overrule it")),
    (
        ("--http",),
        dict(type=whole(0, MOST_PORT), metavar="PORT", help="port of HTTP (default: 8000)"),
    ),
    (
        ("--grpc",),
        dict(type=whole(0, MOST_PORT), metavar="PORT", help="port of gRPC (default: no gRPC)"),
    ),
    (
        ("--host",),
        dict(
            metavar="ADDRESS",
            help="address to listen at (default: 127.0.0.1, which only this machine reaches)",
        ),
    ),
    (("--devices",), dict(metavar="NAMES", help="devices of the models: npu,cpu (default: cpu)")),
    (
        ("--threads",),
        dict(
            type=whole(1, MOST_THREADS),
            metavar="N",
            help="threads of the cpu device (default: all cores)",
        ),
    ),
    (
        ("--shape",),
        dict(
            action="append",
            default=[],
            metavar="NAME=1,seq<=512",
            help="shape of an input that a model leaves open",
        ),
    ),
    (("--fallback",), dict(action="store_true", help="serve without devices that fail")),
    (
        ("--poll",),
        dict(type=seconds, metavar="S", help="seconds between looks at the models' files"),
    ),
    (
        ("--max-queue",),
        dict(type=whole(0), metavar="N", help="requests of a model that may wait (default: 256)"),
    ),
    (
        ("--grace",),
        dict(
            type=seconds,
            metavar="S",
            help="seconds for accepted requests to finish after SIGTERM (default: 10)",
        ),
    ),
    (("--allow-admin",), dict(action="store_true", help="clients may load and unload models")),
    (
        ("--token-file",),
        dict(metavar="FILE", help="file with a token that requests need as a bearer token"),
    ),
    (("--certificate",), dict(metavar="FILE", help="certificate in PEM format, for TLS")),
    (("--key",), dict(metavar="FILE", help="key of the certificate in PEM format")),
)


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 0 when every accepted request was answered, else 1."""
    config = configuration(options)
    show_warnings(logging.INFO)
    logging.getLogger("trireme.serving").setLevel(logging.INFO)
    server = serving.server_of(config)
    _check_loaded(config, server.service.models)
    if server.run(partial(_say_what_serves, options, server)):
        return 0
    sys.stderr.flush()
    os._exit(1)  # a run that does not end would keep the process


def _say_what_serves(options: argparse.Namespace, server: Server) -> None:
    """Print the models and where they are served."""
    rows = server.service.models.index()
    lines = [f"{one.name} version {one.version}: {one.state.lower()}" for one in rows]
    if server.grpc_port is not None:
        lines.append(f"gRPC at {server.host}:{server.grpc_port}")
    lines.append(f"serving at {server.url}, where a browser shows the state")
    models = [{"name": one.name, "version": one.version} for one in rows]
    data = {"url": server.url, "grpc_port": server.grpc_port, "models": models}
    emit(options, data, "\n".join(lines))
    sys.stdout.flush()


def _check_loaded(config: ServeConfig, models: Models) -> None:
    """See that every model with a place of its own loaded.

    Errors: ModelFileError
    """
    for row in models.index():
        if row.state != "READY" and row.name in config.models:
            models.close()
            raise ModelFileError(f"model '{row.name}': {row.reason}")


def configuration(options: argparse.Namespace) -> ServeConfig:
    """Return the configuration file with the options over it.

    Errors: RunError, ModelFileError
    """
    config = read_config(options.config) if options.config else ServeConfig()
    flags = {
        "repository": options.repository,
        "host": options.host,
        "http": options.http,
        "grpc": options.grpc,
        "poll_s": options.poll,
        "allow_admin": options.allow_admin or None,
        "token_file": options.token_file,
        "certificate": options.certificate,
        "key": options.key,
    }
    limits = {"max_queue": options.max_queue, "grace_s": options.grace}
    how = {
        "devices": options.devices and [one.strip() for one in options.devices.split(",")],
        "threads": options.threads,
        "shapes": parse_shapes(options.shape) or None,
        "fallback": options.fallback or None,
    }
    defaults = replace(config.defaults, **_set(how))
    models = {name: replace(one, **_set(how)) for name, one in config.models.items()}
    return replace(
        config,
        server=replace(config.server, **_set(flags)),
        limits=replace(config.limits, **_set(limits)),
        defaults=defaults,
        models={**models, **_named(options.models, defaults, models)},
    )


def _set(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _named(
    rows: Sequence[str], defaults: ModelSettings, models: Mapping[str, ModelSettings]
) -> dict[str, ModelSettings]:
    """Return the models that the command line names, each FILE or NAME=FILE."""
    found: dict[str, ModelSettings] = {}
    for row in rows:
        name, split, path = row.partition("=")
        if not split or os.sep in name:
            path, name = row, re.sub(r"[^A-Za-z0-9._-]", "_", Path(row).stem)
        if name in found:
            raise RunError(f"two models are called '{name}'", fix=f"name one: OTHER={path}")
        found[name] = replace(models.get(name, defaults), path=path)
    return found
