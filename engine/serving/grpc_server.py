"""GRPCInferenceService and the health service, in an event loop beside HTTP.

    server = GrpcServer(service, port=0)
    await server.start()
    ...
    await server.stop(grace_s=10)

Each method is a line of `_METHODS`: the message that it takes and the one that it gives. A request
is parsed here, so that a damaged message is the client's fault and not an internal error.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from trireme.serving.errors import ServingError, as_serving_error
from trireme.serving.grpc_messages import MESSAGES, NOT_SERVING, SERVICE_UNKNOWN, SERVING
from trireme.serving.grpc_tensors import message_of, parameters_of, request_of
from trireme.serving.service import InferenceService
from trireme.serving.spans import carried
from trireme.support.errors import RunError

SERVICE: Final = "inference.GRPCInferenceService"
HEALTH: Final = "grpc.health.v1.Health"
STREAM_REQUESTS: Final = 32
"""Requests of one stream that may be under way at once."""
_OVERHEAD_BYTES: Final = 1 << 20
"""Bytes of a message beside its tensors."""
_HEALTH_S: Final = 0.25
"""Seconds between looks of a client that watches the server's health."""

Context = Any
"""grpc.aio.ServicerContext, which the stubs of grpcio leave untyped."""


class GrpcServer:
    """Serves an InferenceService over gRPC.

    host, port: the address to listen at; 0 takes any free port, which `port` then tells
    token: when given, calls need the metadata "authorization: Bearer TOKEN"; health needs none
    allow_admin: whether clients may load and unload models
    certificate, key: contents of files in PEM format; with them the server speaks TLS
    Errors: RunError, if the address is taken or is none of this machine
    """

    def __init__(
        self,
        service: InferenceService,
        *,
        host: str = "127.0.0.1",
        port: int = 8001,
        token: str = "",
        allow_admin: bool = False,
        certificate: bytes | None = None,
        key: bytes | None = None,
    ) -> None:
        self._service, self._token, self._allow_admin = service, token, allow_admin
        self._address = f"[{host}]" if ":" in host else host
        self.port = port
        self._files = None if certificate is None else (certificate, key)
        self._server: Any = None
        self._is_ending = False

    async def start(self) -> None:
        """Listen, and answer in the running event loop."""
        most = self._service.limits.max_body_bytes + _OVERHEAD_BYTES
        options = [
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        server: Any = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(self._handlers())
        where = f"{self._address}:{self.port}"
        try:
            if self._files is None:
                self.port = server.add_insecure_port(where)
            else:
                certificate, key = self._files
                made = grpc.ssl_server_credentials([(key, certificate)])
                self.port = server.add_secure_port(where, made)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"cannot listen at {where}: {error}") from error
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more calls, and end those that are not done after the grace."""
        self._is_ending = True
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def _handlers(self) -> tuple[Any, ...]:
        unary = grpc.unary_unary_rpc_method_handler
        inference = {
            name: unary(self._unary(request, answer, getattr(self, method)))
            for name, (request, answer, method) in _METHODS.items()
        }
        inference["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        health = {
            "Check": unary(self._check_health),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch_health),
        }
        return (
            grpc.method_handlers_generic_handler(SERVICE, inference),
            grpc.method_handlers_generic_handler(HEALTH, health),
        )

    def _unary(
        self, request: str, answer: str, method: Callable[[Any, Context], Awaitable[Any]]
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """Return the handler of a method: bytes to bytes, errors as status codes."""

        async def handle(data: bytes, context: Context) -> bytes:
            try:
                self._check_token(context)
                result = await method(_parsed(request, data), context)
                if isinstance(result, dict):
                    result = json_format.ParseDict(
                        result, MESSAGES[answer](), ignore_unknown_fields=True
                    )
                serialised: bytes = result.SerializeToString()
            except Exception as error:
                await _abort(context, as_serving_error(error))
            return serialised

        return handle

    def _check_token(self, context: Context) -> None:
        """See that a call has the token.

        Errors: ServingError unauthenticated
        """
        if not self._token:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        given = given if isinstance(given, str) else ""
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise ServingError("unauthenticated", "the call needs the server's token")

    def _check_admin(self, message: Any) -> None:
        """See that clients may load and unload, and that the repository is this one.

        Errors: ServingError forbidden, not_found
        """
        if not self._allow_admin:
            raise ServingError("forbidden", "models are loaded only with allow-admin")
        if message.repository_name:
            raise ServingError(
                "not_found", f"there is no repository '{message.repository_name:.100}'"
            )

    async def _live(self, message: Any, context: Context) -> Any:
        return {"live": True}

    async def _ready(self, message: Any, context: Context) -> Any:
        return {"ready": self._service.is_ready}

    async def _model_ready(self, message: Any, context: Context) -> Any:
        """Of a model that is not there Triton says that it is not ready, and that is no error."""
        try:
            return {"ready": self._service.is_model_ready(message.name, message.version)}
        except ServingError as error:
            if error.kind != "not_found":
                raise
            return {"ready": False}

    async def _metadata(self, message: Any, context: Context) -> Any:
        return self._service.server_metadata()

    async def _model_metadata(self, message: Any, context: Context) -> Any:
        return self._service.model_metadata(message.name, message.version)

    async def _config(self, message: Any, context: Context) -> Any:
        return {"config": self._service.model_config(message.name, message.version)}

    async def _statistics(self, message: Any, context: Context) -> Any:
        return self._service.model_statistics(message.name, message.version)

    async def _infer(self, message: Any, context: Context) -> Any:
        left_s = context.time_remaining()
        request = request_of(message, left_s)
        if span := carried(dict(context.invocation_metadata() or ())):
            request = replace(request, client_span=span)
        return message_of(await self._service.infer(request), message)

    async def _index(self, message: Any, context: Context) -> Any:
        rows = [
            vars(one)
            for one in self._service.models.index()
            if one.state == "READY" or not message.ready
        ]
        return {"models": rows}

    async def _load(self, message: Any, context: Context) -> Any:
        self._check_admin(message)
        parameters = parameters_of(message.parameters)
        await asyncio.to_thread(self._service.models.load, message.model_name, parameters)
        return {}

    async def _unload(self, message: Any, context: Context) -> Any:
        self._check_admin(message)
        if parameters_of(message.parameters).get("unload_dependents"):
            raise ServingError("invalid", "parameters.unload_dependents is not supported")
        await asyncio.to_thread(self._service.models.unload, message.model_name)
        return {}

    async def _stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """Answer the requests of a stream in their order, several of them under way at once."""
        try:
            self._check_token(context)
        except ServingError as error:
            await _abort(context, error)
        waiting: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAM_REQUESTS)

        async def read() -> None:
            async for data in requests:
                await waiting.put(asyncio.create_task(self._streamed(data)))
            await waiting.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await waiting.get()) is not None:
                yield (await task).SerializeToString()
        finally:
            reader.cancel()
            while not waiting.empty():
                if (task := waiting.get_nowait()) is not None:
                    task.cancel()

    async def _streamed(self, data: bytes) -> Any:
        """Return the answer to a request of a stream; an error is a message, not a status."""
        answer = MESSAGES["ModelStreamInferResponse"]()
        try:
            message = _parsed("ModelInferRequest", data)
            answer.infer_response.id = message.id
            response = await self._service.infer(request_of(message))
            answer.infer_response.CopyFrom(message_of(response, message))
        except Exception as error:
            answer.error_message = str(as_serving_error(error))
        return answer

    def _health(self, data: bytes) -> int:
        """Return the status of the service that a health request names: all of them, or ours."""
        name = _parsed("HealthCheckRequest", data).service
        if name not in ("", SERVICE, HEALTH):
            return SERVICE_UNKNOWN
        return SERVING if self._service.is_ready else NOT_SERVING

    async def _check_health(self, data: bytes, context: Context) -> bytes:
        try:
            status = self._health(data)
            if status == SERVICE_UNKNOWN:
                raise ServingError("not_found", "there is no such service")
        except ServingError as error:
            await _abort(context, error)
        return _health_message(status)

    async def _watch_health(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        """Yield the status, and each change of it, until the client or the server ends."""
        told = 0
        while not self._is_ending:
            try:
                status = self._health(data)
            except ServingError as error:
                await _abort(context, error)
            if status != told:
                told = status
                yield _health_message(status)
            await asyncio.sleep(_HEALTH_S)


_METHODS: Final = {
    "ServerLive": ("ServerLiveRequest", "ServerLiveResponse", "_live"),
    "ServerReady": ("ServerReadyRequest", "ServerReadyResponse", "_ready"),
    "ModelReady": ("ModelReadyRequest", "ModelReadyResponse", "_model_ready"),
    "ServerMetadata": ("ServerMetadataRequest", "ServerMetadataResponse", "_metadata"),
    "ModelMetadata": ("ModelMetadataRequest", "ModelMetadataResponse", "_model_metadata"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse", "_infer"),
    "ModelConfig": ("ModelConfigRequest", "ModelConfigResponse", "_config"),
    "ModelStatistics": ("ModelStatisticsRequest", "ModelStatisticsResponse", "_statistics"),
    "RepositoryIndex": ("RepositoryIndexRequest", "RepositoryIndexResponse", "_index"),
    "RepositoryModelLoad": ("RepositoryModelLoadRequest", "RepositoryModelLoadResponse", "_load"),
    "RepositoryModelUnload": (
        "RepositoryModelUnloadRequest",
        "RepositoryModelUnloadResponse",
        "_unload",
    ),
}
"""Each method's request and answer, and what of GrpcServer makes one from the other."""


def _parsed(name: str, data: bytes) -> Any:
    """Return a message.

    Errors: ServingError invalid
    """
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise ServingError("invalid", f"the call holds no {name}") from error


def _health_message(status: int) -> bytes:
    data: bytes = MESSAGES["HealthCheckResponse"](status=status).SerializeToString()
    return data


async def _abort(context: Context, error: ServingError) -> None:
    """End a call with the status code of an error; it never returns."""
    metadata: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s is not None:
        metadata = (("retry-after", f"{error.retry_after_s:g}"),)
    await context.abort(getattr(grpc.StatusCode, error.code.grpc), str(error), metadata)
