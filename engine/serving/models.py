"""Declare the interface of models: a lease of one version for as long as a request lasts.

`ServedModel` and `Models` are the interface between the service and whoever keeps models.
`SessionModel` and `FixedModels` fill it with sessions that are open already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from trireme.profiling.spans import TaskSpan
from trireme.runtime.session.session import Session
from trireme.serving.errors import ServingError
from trireme.serving.protocol import TensorSpec, check_model_name, tensor_spec
from trireme.support.dtypes import Array


class ServedModel(Protocol):
    """One version of a model that runs."""

    @property
    def name(self) -> str:
        """The name by which requests call the model."""
        ...

    @property
    def version(self) -> str:
        """Which version it is."""
        ...

    @property
    def session(self) -> Session | None:
        """The session of the model; None for a pipeline."""
        ...

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The inputs."""
        ...

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The outputs of a run, in the model's order."""
        ...

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """For each output that has them, the texts of its classes in order."""
        ...

    @property
    def concurrency(self) -> int:
        """How many runs may be under way at once; further requests wait in the queue."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """The facts that the configuration shows beside the tensors."""
        ...

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """Return the outputs for feeds that fit `inputs`.

        timeout_s: stop the run at a task boundary when so many seconds have passed
        Errors: RunError, if the feeds do not fit; ServingError deadline
        """
        ...

    def run_traced(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """Return the outputs, and when each task ran; only of a model with a session.

        Errors: as run
        """
        ...


@dataclass(frozen=True)
class ModelStatus:
    """A row of the index of models; `reason` says why a version is not ready."""

    name: str
    version: str
    state: str = "READY"
    reason: str = ""


class Models(Protocol):
    """Where the service takes models from. Any thread may call any method."""

    def lease(self, name: str, version: str = "") -> AbstractContextManager[ServedModel]:
        """Hold a version open; version "" is the newest that is ready.

        Errors: ServingError not_found; unavailable, if the model is there and not ready
        """
        ...

    def index(self) -> Sequence[ModelStatus]:
        """Return the state of every version that is known."""
        ...

    def is_ready(self) -> bool:
        """Return whether every model that the server began with is ready."""
        ...

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or load it again; the old version serves until the new one is warm.

        Errors: ServingError
        """
        ...

    def unload(self, name: str) -> None:
        """Take a model out of service; requests that hold it finish.

        Errors: ServingError
        """
        ...

    def close(self) -> None:
        """Close every model."""
        ...


class SessionModel:
    """A session under a name and a version."""

    def __init__(
        self,
        name: str,
        session: Session,
        version: str = "1",
        *,
        labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.name, self.version = check_model_name(name), check_model_name(version, "version")
        self.session = session
        self.inputs = tuple(map(tensor_spec, session.inputs))
        self.outputs = tuple(map(tensor_spec, session.outputs))
        self.labels: Mapping[str, Sequence[str]] = labels or {}
        self.concurrency = session.contexts
        self.settings: Mapping[str, Any] = {}

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """See ServedModel; a run that has begun is not stopped."""
        return self.session.run(feeds)

    def run_traced(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """See ServedModel."""
        return self.session.run_traced(feeds)


class FixedModels:
    """Models that stay as they are: one version each. Closing it leaves their sessions open."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models: dict[str, ServedModel] = {}
        for model in models:
            if model.name in self._models:
                raise ServingError("conflict", f"two models are called '{model.name}'")
            self._models[model.name] = model

    @contextmanager
    def lease(self, name: str, version: str = "") -> Iterator[ServedModel]:
        """See Models."""
        model = self._models.get(name)
        if model is None:
            raise unknown_model(name)
        if version not in ("", model.version):
            raise unknown_model(name, version)
        yield model

    def index(self) -> Sequence[ModelStatus]:
        """See Models."""
        return [ModelStatus(one.name, one.version) for one in self._models.values()]

    def is_ready(self) -> bool:
        """See Models."""
        return True

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """See Models; there is nothing to load from."""
        raise ServingError("forbidden", "this server has no model repository")

    def unload(self, name: str) -> None:
        """See Models."""
        raise ServingError("forbidden", "this server has no model repository")

    def close(self) -> None:
        """See Models."""


def unknown_model(name: str, version: str = "") -> ServingError:
    """Return the error of a model, or a version of one, that is not there."""
    of = f"version '{version}' of " if version else ""
    return ServingError("not_found", f"there is no {of}model '{name}'")
