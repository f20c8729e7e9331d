"""Refuse a request with one kind of failure, its HTTP status and its gRPC code.

Every layer of serving raises ServingError. HTTP and gRPC look up the code of its kind in CODES.
`as_serving_error` turns whatever else a run raises into one, with a text that a stranger may read.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trireme.support.errors import (
    CancelledError,
    DeadlineError,
    DeviceError,
    QueueFullError,
    RunError,
    ShapeError,
    TriremeError,
)


class ErrorCode(NamedTuple):
    """How the protocols say a kind of failure."""

    http: int
    grpc: str


CODES: Final[dict[str, ErrorCode]] = {
    "invalid": ErrorCode(400, "INVALID_ARGUMENT"),
    "unauthenticated": ErrorCode(401, "UNAUTHENTICATED"),
    "forbidden": ErrorCode(403, "PERMISSION_DENIED"),
    "not_found": ErrorCode(404, "NOT_FOUND"),
    "method": ErrorCode(405, "UNIMPLEMENTED"),
    "slow": ErrorCode(408, "DEADLINE_EXCEEDED"),
    "conflict": ErrorCode(409, "FAILED_PRECONDITION"),
    "too_large": ErrorCode(413, "RESOURCE_EXHAUSTED"),
    "encoding": ErrorCode(415, "INVALID_ARGUMENT"),
    "busy": ErrorCode(429, "RESOURCE_EXHAUSTED"),
    "headers": ErrorCode(431, "RESOURCE_EXHAUSTED"),
    "cancelled": ErrorCode(499, "CANCELLED"),
    "internal": ErrorCode(500, "INTERNAL"),
    "unavailable": ErrorCode(503, "UNAVAILABLE"),
    "deadline": ErrorCode(504, "DEADLINE_EXCEEDED"),
}
"""Each kind of failure. "unavailable" is for a server that is not ready or that drains."""


class ServingError(TriremeError):
    """A request cannot be served; the text says why to whoever sent it.

    kind: a key of CODES
    retry_after_s: when a refused client may try again, where that is known
    """

    def __init__(
        self, kind: str, summary: str, *, fix: str = "", retry_after_s: float | None = None
    ) -> None:
        self.kind = kind
        self.retry_after_s = retry_after_s
        super().__init__(summary, fix=fix)

    @property
    def code(self) -> ErrorCode:
        """The codes of the kind."""
        return CODES[self.kind]


def invalid(field: str, what: str, fix: str = "") -> ServingError:
    """Return the error of a request whose field is wrong.

    field: where the fault is, as the request spells it: inputs[0].shape
    """
    return ServingError("invalid", f"{field}: {what}", fix=fix)


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_FOLDERS = re.compile(r"(?<![\w.])(?:~|\.{1,2})?/(?:[^\s/'\":,;()\[\]]+/)+(?=[^\s/])")


def public_text(text: str) -> str:
    """Return a text without the folders of paths and without addresses of memory."""
    return _ADDRESS.sub("0x...", _FOLDERS.sub("", text))


_KINDS: Final[dict[str, type[TriremeError] | tuple[type[TriremeError], ...]]] = {
    "deadline": DeadlineError,
    "cancelled": CancelledError,
    "busy": QueueFullError,
    "invalid": (RunError, ShapeError),
}
"""The kinds of errors of a run, the narrower ones first."""


def as_serving_error(error: BaseException) -> ServingError:
    """Return what a client is told of an error of a run.

    A run refuses feeds with a RunError or a ShapeError, so these are faults of the request.
    """
    if isinstance(error, ServingError):
        return error
    for kind, names in _KINDS.items():
        if isinstance(error, names):
            return ServingError(kind, public_text(str(error)))
    if isinstance(error, DeviceError):
        return ServingError("internal", f"the model failed: {public_text(error.summary)}")
    if isinstance(error, MemoryError):
        return ServingError("internal", "the model failed: not enough memory")
    return ServingError("internal", f"the model failed: {type(error).__name__}")
