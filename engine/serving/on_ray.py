"""Run a model on Ray: as actors, as a deployment of Ray Serve, and over a dataset of Ray Data.

    model = put("model.onnx", shapes={"x": ("n", 224, 224, 3)})
    app = deployment(model, session={"threads": 2}, batching={"max_batch_size": 8}, num_replicas=4)
    answers = await Client(serve.run(app)).run({"x": image})

The model lies once a node in Ray's store, and the sessions of a node read its weights there.
Processes exchange arrays and plain values alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.ir.graph import Graph
from trireme.model_file import dumps, loads
from trireme.model_file.convert import convert
from trireme.runtime.session.batcher import Batcher
from trireme.runtime.session.session import Session
from trireme.runtime.shapes.polymorphic import usual_shapes
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import InternalError, RunError

try:
    import ray
    from ray import serve
    from ray.exceptions import RayActorError
except ImportError as missing:
    raise RunError(
        f"trireme.serving.on_ray needs Ray: {missing}", fix="pip install 'trireme-engine[ray]'"
    ) from missing

_PAUSE_S = 0.05


@dataclass(frozen=True)
class StoredModel:
    """A model in Ray's store: it may be passed to any process of the cluster.

    reference: of the bytes of a .trm file, an array
    """

    name: str
    reference: Any


def put(model: Graph | str | os.PathLike[str] | bytes | object, **options: Any) -> StoredModel:
    """Put a model into Ray's store, as the bytes of a .trm file.

    options: of `trireme.convert`, such as shapes
    Errors: as `trireme.convert`
    """
    graph = model if isinstance(model, Graph) else convert(model, **options)
    return StoredModel(graph.name, ray.put(np.frombuffer(dumps(graph), np.uint8)))


class Replica:
    """A session in a process of its own; `ray.remote(Replica)` is an actor class.

        Model = ray.remote(max_restarts=2)(Replica)
        replica = Model.remote(put("model.onnx"), threads=2)
        outputs = ray.get(replica.run.remote({"x": x}))

    model: from `put`, or the path of a file that every node has, which is mapped
    options: of `Session`
    Errors: as `Session`; RunError, if the model has states, which replicas do not share
    """

    def __init__(self, model: StoredModel | str, **options: Any) -> None:
        source: Graph | str = model if isinstance(model, str) else _graph(model)
        self._session = Session(source, **options)
        if self._session.states.types:
            self._session.close()
            raise RunError(
                f"the model {self._session.graph.name} has states, and a replica answers for any",
                fix="keep the state in the caller, as an input and an output",
            )

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """Return the outputs by name.

        Errors: as `Session.run_async` and its future
        """
        return self._session.run_async(feeds, timeout_s=timeout_s).result()

    def describe(self) -> dict[str, Any]:
        """Return the inputs, the outputs and the devices, and the process and node they are in."""
        session = self._session
        return {
            "inputs": {value.name: str(value.type) for value in session.inputs},
            "outputs": {value.name: str(value.type) for value in session.outputs},
            "devices": list(session.devices),
            "process": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
        }


class Predictor(Replica):
    """A function of Ray Data over batches: columns that are inputs go in, outputs become columns.

        data.map_batches(
            Predictor, fn_constructor_args=[put("model.onnx")], batch_size=32, concurrency=2
        )

    The model's first dimension must be open, because the last batch of a block may be smaller.
    """

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Return the columns of a batch, and those of the outputs.

        Errors: RunError, if a column is missing or does not fit
        """
        names = [value.name for value in self._session.inputs]
        missing = sorted(set(names) - set(batch))
        if missing:
            raise RunError(
                f"the data has no column {missing[0]!r}", facts=[f"columns: {', '.join(batch)}"]
            )
        outputs = self._session.run({name: np.ascontiguousarray(batch[name]) for name in names})
        return {**batch, **outputs}


class _Served:
    """A replica of a deployment: requests run side by side, or gather into batches."""

    def __init__(
        self,
        model: StoredModel | str,
        options: Mapping[str, Any],
        batching: Mapping[str, Any] | None,
    ) -> None:
        self._replica = Replica(model, **options)
        session = self._replica._session
        session.warm_up(_usual_feeds(session))
        batcher = None if batching is None else Batcher(session, **batching)
        self._arun: Callable[..., Any] = session.arun if batcher is None else batcher.arun

    async def __call__(
        self, feeds: Mapping[str, Array], timeout_s: float | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name."""
        made: dict[str, Array] = await self._arun(feeds, timeout_s=timeout_s)
        return made

    async def describe(self) -> dict[str, Any]:
        """Return what the replica runs, and where."""
        return self._replica.describe()


def deployment(
    model: StoredModel | str,
    *,
    session: Mapping[str, Any] | None = None,
    batching: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return an application of Ray Serve that answers feeds with outputs: `serve.run(app)` runs it.

    session: options of `Session`; its threads are the cores that Ray reserves for a replica, where
        `ray_actor_options` says nothing
    batching: options of `Batcher`; each request then runs with others
    options: of `serve.deployment`: num_replicas or autoscaling_config, max_ongoing_requests,
        max_queued_requests (further requests are refused with BackPressureError), and others
    """
    asked = dict(session or {})
    options.setdefault("name", "model")
    options.setdefault("ray_actor_options", {"num_cpus": asked.get("threads") or 1})
    served: Any = serve.deployment(**options)(_Served)
    return served.bind(model, asked, batching)


class Client:
    """Calls a deployment; a request whose replica dies goes to another one.

    A model without states gives the same answer every time, so to ask again is safe.

    handle: from `serve.run` or `serve.get_app_handle`
    retries: how often a request is sent again
    """

    def __init__(self, handle: Any, retries: int = 3) -> None:
        self._handle, self._retries = handle, retries

    async def run(
        self, feeds: Mapping[str, Array], timeout_s: float | None = None
    ) -> dict[str, Array]:
        """Return the outputs by name.

        Errors: those of the run; BackPressureError, if the deployment's queue is full;
        RayActorError, if every retry met a dead replica
        """
        for attempt in range(self._retries + 1):
            try:
                made: dict[str, Array] = await self._handle.remote(feeds, timeout_s)
                return made
            except RayActorError:
                if attempt == self._retries:
                    raise
                await asyncio.sleep(_PAUSE_S * 2**attempt)
        raise InternalError("a loop that returns or raises has ended")


def _usual_feeds(session: Session) -> dict[str, Array]:
    """Return zeros in the inputs' shapes, of usual sizes where they are open."""
    shapes = usual_shapes(session.graph)
    return {
        value.name: np.zeros(shape, numpy_dtype(value.dtype))
        for value, shape in zip(session.graph.input_values(), shapes, strict=True)
    }


def _graph(model: StoredModel) -> Graph:
    raw: Array = ray.get(model.reference)
    return loads(raw.data)
