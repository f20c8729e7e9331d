"""A server: the service behind HTTP and gRPC, from its start to its drain.

    with Server(models, http_port=8000) as server:
        print(server.url)

`start` serves in a thread of its own, `run` in this one until a signal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import uvicorn

from trireme.serving.admission import ServingLimits
from trireme.serving.connection import Connection
from trireme.serving.grpc_server import GrpcServer
from trireme.serving.http import http_app
from trireme.serving.metrics import ServingMetrics
from trireme.serving.models import Models
from trireme.serving.service import InferenceService
from trireme.serving.usage import Usage
from trireme.support.errors import RunError

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

SIDE_THREADS = 32
"""Threads for large bodies, loads of models and pages; runs have threads of their own."""

FLUSH_S = 2.0
"""Seconds in which clients may fetch the last answers, once every request is done."""


class Server:
    """Serves models over HTTP, and over gRPC where it has a port.

    models: where the models come from; the server closes them when it ends
    host: the address to listen at; only programs of this machine reach the loopback
    http_port: 0 takes any free port, which `http_port` then tells
    grpc_port: as http_port; None has no gRPC
    token: when given, requests need the header "Authorization: Bearer TOKEN"
    allow_admin: whether clients may load and unload models
    certificate, key: files in PEM format; with them the server speaks HTTPS
    usage: what the sessions of the models count their runs in, for /metrics
    Errors: RunError, if the address is taken, or certificate and key are none
    """

    def __init__(
        self,
        models: Models,
        *,
        host: str = LOOPBACK,
        http_port: int = 8000,
        grpc_port: int | None = None,
        limits: ServingLimits | None = None,
        token: str = "",
        allow_admin: bool = False,
        certificate: str = "",
        key: str = "",
        usage: Usage | None = None,
    ) -> None:
        self.service = InferenceService(models, limits)
        self.host = host
        app = http_app(
            self.service,
            token=token,
            allow_admin=allow_admin,
            metrics=ServingMetrics(self.service, usage).page,
        )
        self._server: Any = uvicorn.Server(_configured(app, certificate, key))
        self._scheme = "https" if certificate else "http"
        self._socket = _listen(host, http_port)
        self.http_port: int = self._socket.getsockname()[1]
        self._grpc: GrpcServer | None = None
        if grpc_port is not None:
            self._grpc = GrpcServer(
                self.service,
                host=host,
                port=grpc_port,
                token=token,
                allow_admin=allow_admin,
                certificate=_contents(certificate),
                key=_contents(key),
            )
        self._failure: RunError | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_up = threading.Event()
        self._drained = True

    @property
    def url(self) -> str:
        """Where the server listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.http_port}"

    @property
    def grpc_port(self) -> int | None:
        """The port of gRPC, once the server has started; None without gRPC."""
        return None if self._grpc is None else self._grpc.port

    def run(self, on_ready: Callable[[], None] = lambda: None) -> bool:
        """Serve until SIGTERM or SIGINT, then finish what was accepted.

        Call it in the main thread. A second signal ends the process with the code 1.
        on_ready: called once the ports are known and signals are heeded
        Return whether every accepted request was answered within the grace.
        Errors: RunError, if the port of gRPC is taken
        """

        def prepare() -> None:
            self._take_signals()
            on_ready()

        self._serve_in_loop(prepare)
        self.service.close()
        self._check_failure()
        return self._drained

    def start(self) -> Self:
        """Serve in a thread of its own; return when the server answers.

        Errors: RunError, if it has started before, or the port of gRPC is taken
        """
        if self._thread is not None:
            raise RunError("the server has started already")
        self._thread = threading.Thread(
            target=self._serve_in_loop, name="trireme-server", daemon=True
        )
        self._thread.start()
        self._is_up.wait()
        self._check_failure()
        return self

    def stop(self) -> None:
        """Refuse new requests, finish those accepted within the grace, and end."""
        if self._thread is not None and self._thread.is_alive() and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
            self._thread.join()
        self._socket.close()
        self.service.close()

    def _check_failure(self) -> None:
        if self._failure is not None:
            self._socket.close()
            raise self._failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve_in_loop(self, prepare: Callable[[], None] = lambda: None) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._loop.set_default_executor(ThreadPoolExecutor(SIDE_THREADS, "trireme-side"))
            try:
                if self._grpc is not None:
                    await self._grpc.start()
            except RunError as error:
                self._failure = error
                return
            else:
                prepare()
            finally:
                self._is_up.set()
            await self._server._serve([self._socket])
            if self._grpc is not None:
                await self._grpc.stop(FLUSH_S)

        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(serve())

    def _take_signals(self) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, self._on_signal)

    def _on_signal(self) -> None:
        if self.service.is_draining:
            _log.warning("ended by a second signal: accepted requests may be lost")
            logging.shutdown()
            os._exit(1)
        _log.info("shutting down: finishing the requests that were accepted")
        self.service.is_draining = True
        self._ending = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        self._drained = await self.service.drain()
        if not self._drained:
            _log.warning("some accepted requests were not done within the grace")
        self._server.should_exit = True


def _configured(app: Any, certificate: str, key: str) -> Any:
    """Return the configuration of uvicorn.

    Errors: RunError, if certificate and key are none
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        loop="auto",
        log_config=None,
        log_level="error",  # a client could fill the log with warnings of broken requests
        access_log=False,
        lifespan="off",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=FLUSH_S,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
    )
    if key and not certificate:
        raise RunError("a key is given without its certificate")
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise RunError(f"certificate and key cannot be used: {error}") from error
    return config


def _contents(path: str) -> bytes | None:
    """Return the bytes of a file; None without one.

    Errors: RunError, if it cannot be read
    """
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Errors: RunError, if the address is taken or is none of this machine
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
    except (OSError, OverflowError) as error:
        made.close()
        raise RunError(f"cannot listen at {host}:{port}: {error}") from error
    return made
