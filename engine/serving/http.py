"""The Open Inference Protocol v2 over HTTP, as an ASGI application.

    app = http_app(service)            # for any ASGI server
    fastapi_app.mount("/models", app)  # or inside an application of yours

An error is {"error": text} with the status of its kind. Bodies may be compressed both ways.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from trireme.serving.admission import ReservedPlace
from trireme.serving.bodies import (
    ErrorResponse,
    Message,
    Receive,
    encoded,
    json_response,
    off_loop,
    read_body,
)
from trireme.serving.errors import CODES, ServingError, as_serving_error, invalid
from trireme.serving.http_body import compose_infer, parse_infer, parse_json
from trireme.serving.protocol import InferRequest, check_model_name
from trireme.serving.service import InferenceService
from trireme.serving.spans import carried
from trireme.serving.statistics import RequestOutcome
from trireme.serving.status import FILES as PAGE_FILES
from trireme.serving.status import PAGE, StatusPage

Send = Callable[[Message], Awaitable[None]]
MetricsPage = Callable[[], tuple[bytes, str]]

JSON_LENGTH = "inference-header-content-length"

OPEN_PATHS = frozenset(
    {"/v2/health/live", "/v2/health/ready", *(f"/{name}" for name in PAGE_FILES)}
)
"""Paths that need no token: they tell nothing of the models."""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

_log = logging.getLogger(__name__)


def http_app(
    service: InferenceService,
    *,
    token: str = "",
    allow_admin: bool = False,
    metrics: MetricsPage | None = None,
) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """Return the application that serves a service.

    token: when given, requests need the header "Authorization: Bearer TOKEN"; those for health
        need none
    allow_admin: whether clients may load and unload models
    metrics: makes the page /metrics and its content type
    """
    return _HttpApp(service, token, allow_admin, metrics)


class _HttpApp:
    """The application: the routes of the protocol over a service."""

    def __init__(
        self,
        service: InferenceService,
        token: str,
        allow_admin: bool,
        metrics: MetricsPage | None,
    ) -> None:
        self._service, self._metrics = service, metrics
        self._token = token.encode()
        self._allow_admin = allow_admin
        self._page = StatusPage(service)
        self._app = Starlette(
            routes=self._routes(),
            exception_handlers={
                ServingError: _on_serving_error,
                HTTPException: _on_http_error,
                ClientDisconnect: _on_disconnect,
                Exception: _on_fault,
            },
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and self._token and not self._may_pass(scope):
            answer = ErrorResponse(ServingError("unauthenticated", "a bearer token is needed"))
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may_pass(self, scope: Message) -> bool:
        path = str(scope["path"]).removeprefix(str(scope.get("root_path", "")))
        if path in OPEN_PATHS:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        kind, _, token = given.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)

    def _routes(self) -> list[Any]:
        rows: list[tuple[str, str, Callable[[Any], Awaitable[Any]]]] = [
            ("POST", "/v2/models/{model}/infer", self._infer),
            ("POST", "/v2/models/{model}/versions/{version}/infer", self._infer),
            ("GET", "/v2/health/live", self._live),
            ("GET", "/v2/health/ready", self._ready),
            ("GET", "/v2", self._server),
            ("GET", "/v2/models/stats", self._statistics),
            ("POST", "/v2/repository/index", self._index),
            ("POST", "/v2/repository/models/{model}/load", self._load),
            ("POST", "/v2/repository/models/{model}/unload", self._unload),
        ]
        if self._metrics is not None:
            rows.append(("GET", "/metrics", _answers(self._metrics)))
        for at in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            rows += [
                ("GET", at, self._metadata),
                ("GET", f"{at}/ready", self._model_ready),
                ("GET", f"{at}/config", self._config),
                ("GET", f"{at}/stats", self._statistics),
            ]
        rows += [("GET", f"/{path}", self._page_file) for path in PAGE_FILES]
        rows += [("GET", "/status", self._status), ("GET", "/status/placement", self._placement)]
        return [Route(path, handler, methods=[method]) for method, path, handler in rows]

    async def _infer(self, request: Any) -> Any:
        service = self._service
        name, version = _model_of(request)
        place = service.reserve(name, version)
        try:
            parsed = await self._counted(request, place)
            if span := carried(request.headers):
                parsed = replace(parsed, client_span=span)
            response = await _while_connected(request, service.infer(parsed, place))
        finally:
            service.release(place)
        parts, head_bytes = await off_loop(
            sum(array.nbytes for array in response.outputs.values()),
            lambda: compose_infer(parsed, response),
        )
        answer = await encoded(request, parts, is_raw=head_bytes is not None)
        if head_bytes is None:
            answer.headers["content-type"] = "application/json"
        else:
            answer.headers["content-type"] = "application/octet-stream"
            answer.headers[JSON_LENGTH] = str(head_bytes)
        return answer

    async def _counted(self, request: Any, place: ReservedPlace) -> InferRequest:
        """Return the infer request in a body; count one that is wrong for its model."""
        try:
            return await self._parsed(request, *_model_of(request))
        except ServingError as error:
            took_s, model = time.perf_counter() - place.taken_s, place.model
            self._service.note(RequestOutcome(model.name, model.version, error.kind, took_s))
            raise

    async def _parsed(self, request: Any, name: str, version: str) -> InferRequest:
        """Return the infer request in a body.

        Errors: ServingError
        """
        limits = self._service.limits
        body = await read_body(request, limits)
        asked = request.headers.get(JSON_LENGTH)
        json_bytes = None if asked is None else _length(asked)
        text_bytes = len(body) if json_bytes is None else json_bytes
        if text_bytes > limits.max_json_bytes:
            raise ServingError(
                "too_large",
                f"{text_bytes} bytes of JSON, at most {limits.max_json_bytes}",
                fix="send tensors as binary data",
            )
        return await off_loop(text_bytes, lambda: parse_infer(name, version, body, json_bytes))

    async def _model_ready(self, request: Any) -> Any:
        ready = self._service.is_model_ready(*_model_of(request))
        return Response(status_code=200 if ready else 503)

    async def _metadata(self, request: Any) -> Any:
        return json_response(self._service.model_metadata(*_model_of(request)))

    async def _config(self, request: Any) -> Any:
        return json_response(self._service.model_config(*_model_of(request)))

    async def _statistics(self, request: Any) -> Any:
        return json_response(self._service.model_statistics(*_model_of(request)))

    async def _live(self, request: Any) -> Any:
        return Response(status_code=200)

    async def _ready(self, request: Any) -> Any:
        return Response(status_code=200 if self._service.is_ready else 503)

    async def _server(self, request: Any) -> Any:
        return json_response(self._service.server_metadata())

    async def _index(self, request: Any) -> Any:
        asked = await self._asked(request)
        rows = [
            {"name": one.name, "version": one.version, "state": one.state, "reason": one.reason}
            for one in self._service.models.index()
            if asked.get("ready") is not True or one.state == "READY"
        ]
        return json_response(rows)

    async def _load(self, request: Any) -> Any:
        self._check_admin()
        name, _ = _model_of(request)
        parameters = (await self._asked(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise invalid("parameters", "expected an object")
        await asyncio.to_thread(self._service.models.load, name, parameters)
        return Response(status_code=200)

    async def _unload(self, request: Any) -> Any:
        self._check_admin()
        await self._asked(request)
        await asyncio.to_thread(self._service.models.unload, _model_of(request)[0])
        return Response(status_code=200)

    async def _page_file(self, request: Any) -> Any:
        name, kind = PAGE_FILES[request.scope["path"].removeprefix(_root(request)).lstrip("/")]
        return Response((PAGE / name).read_bytes(), media_type=kind, headers=PAGE_HEADERS)

    async def _status(self, request: Any) -> Any:
        return json_response(self._page.status())

    async def _placement(self, request: Any) -> Any:
        asked = request.query_params
        name, version = check_model_name(asked.get("model", "")), asked.get("version", "")
        return json_response(await asyncio.to_thread(self._page.placement, name, version))

    async def _asked(self, request: Any) -> dict[str, Any]:
        """Return the object that is a request's body; an empty body is an empty object."""
        body = bytes(await read_body(request, self._service.limits))
        asked = parse_json(body) if body.strip() else {}
        if not isinstance(asked, dict):
            raise invalid("the request", "expected an object")
        return asked

    def _check_admin(self) -> None:
        if not self._allow_admin:
            raise ServingError(
                "forbidden", "this server neither loads nor unloads", fix="start it --allow-admin"
            )


def _answers(metrics: MetricsPage) -> Callable[[Any], Awaitable[Any]]:
    """Return the handler of the page of metrics."""

    async def answer(request: Any) -> Any:
        page, kind = await asyncio.to_thread(metrics)
        return Response(page, headers={"content-type": kind})

    return answer


def _root(request: Any) -> str:
    return str(request.scope.get("root_path", ""))


async def _while_connected(request: Any, work: Coroutine[Any, Any, Any]) -> Any:
    """Do work for a client; cancel it when the client goes."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done() and watching.result()["type"] == "http.disconnect":
            raise ClientDisconnect
        return await doing
    finally:
        watching.cancel()
        doing.cancel()


def _model_of(request: Any) -> tuple[str, str]:
    """Return the name and version in a path, each fit to be one, or empty where it has none."""
    name = request.path_params.get("model", "")
    version = request.path_params.get("version", "")
    return name and check_model_name(name), version and check_model_name(version, "model version")


def _length(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise invalid("Inference-Header-Content-Length", "expected a number of bytes")
    return int(text)


async def _on_serving_error(request: Any, error: ServingError) -> Any:
    return ErrorResponse(error)


_KIND_OF_STATUS = {code.http: kind for kind, code in CODES.items()}


def _route_text(request: Any, error: Any) -> str:
    """Return a sentence for a request that no route takes."""
    if error.status_code == 404:
        return "there is no such path"
    if error.status_code == 405:
        methods = (error.headers or {}).get("Allow", "another method")
        allowed = ", ".join(sorted(methods.split(", ")))
        return f"this path takes {allowed}, not {request.method:.20}"
    return f"{request.method} {error.detail}".strip()


async def _on_http_error(request: Any, error: Any) -> Any:
    kind = _KIND_OF_STATUS.get(error.status_code, "invalid")
    answer = ErrorResponse(ServingError(kind, _route_text(request, error)))
    answer.headers.update(error.headers or {})
    return answer


async def _on_disconnect(request: Any, error: Exception) -> Any:
    return ErrorResponse(ServingError("cancelled", "the client is gone"))


async def _on_fault(request: Any, error: Exception) -> Any:
    return ErrorResponse(as_serving_error(error))
