"""A server: the service behind HTTP, from its start to its drain.

    with Server(models, http_port=8000) as server:
        print(server.url)

`run` serves in this thread until a signal; `start` serves in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any, Self

import uvicorn

from trireme.serving.admission import ServingLimits
from trireme.serving.http import http_app
from trireme.serving.models import Models
from trireme.serving.service import InferenceService
from trireme.support.errors import RunError

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class Server:
    """Serves models over HTTP.

    models: where the models come from; the server closes them when it ends
    host: the address to listen at; only programs of this machine reach the loopback
    http_port: 0 takes any free port, which `http_port` then tells
    token: when given, requests need the header "Authorization: Bearer TOKEN"
    allow_admin: whether clients may load and unload models
    certificate, key: files in PEM format; with them the server speaks HTTPS
    """

    def __init__(
        self,
        models: Models,
        *,
        host: str = LOOPBACK,
        http_port: int = 8000,
        limits: ServingLimits | None = None,
        token: str = "",
        allow_admin: bool = False,
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        self.service = InferenceService(models, limits)
        self.host = host
        self._scheme = "https" if certificate else "http"
        self._socket = _listen(host, http_port)
        self.http_port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            http_app(self.service, token=token, allow_admin=allow_admin),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_keep_alive=75,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server: Any = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        self._is_up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Where the server listens."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self._scheme}://{host}:{self.http_port}"

    async def serve(self) -> None:
        """Serve until `stop` is called, then finish what was accepted."""
        self._loop = asyncio.get_running_loop()
        self._is_up.set()
        await self._server._serve([self._socket])

    def start(self) -> Self:
        """Serve in a thread, and return when the server answers."""
        if self._thread is not None:
            raise RunError("the server has started already")
        self._thread = threading.Thread(
            target=asyncio.run, args=(self.serve(),), name="trireme-server", daemon=True
        )
        self._thread.start()
        self._is_up.wait()
        return self

    def stop(self) -> None:
        """Refuse new requests, finish those accepted within the grace, and end."""
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self.service.drain(), self._loop).result()
            self._server.should_exit = True
            self._thread.join()
        self.service.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


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
