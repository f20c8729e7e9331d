"""The service: what HTTP and gRPC call. It admits requests, runs them and tells about models.

    service = InferenceService(FixedModels([SessionModel("digits", session)]))
    response = await service.infer(InferRequest("digits", inputs={"image": array}))

A method that is a coroutine runs in any event loop. The others return at once and may be called
by any thread. Every failure is a ServingError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from trireme.serving.admission import Admission, AdmittedCall, ReservedPlace, ServingLimits
from trireme.serving.classification import classified
from trireme.serving.errors import ServingError, as_serving_error
from trireme.serving.models import Models, ServedModel
from trireme.serving.protocol import (
    InferRequest,
    InferResponse,
    TensorSpec,
    check_inputs,
    check_model_name,
    requested,
)
from trireme.serving.spans import add_span
from trireme.serving.statistics import Observer, RequestOutcome, Statistics
from trireme.serving.tracing import PARAMETER as TRACE
from trireme.serving.tracing import RequestTrace, wants_trace
from trireme.support.cancel import CancelToken, working_for
from trireme.support.dtypes import Array
from trireme.version import __version__

_log = logging.getLogger(__name__)

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
"""The extensions of the protocol that the server has."""


class _Asked:
    """A request under way: when it came, until when it may run, and the call that it became.

    name, version: of its model, once there is one; what a client makes up counts for no model
    """

    def __init__(self, request: InferRequest, place: ReservedPlace | None) -> None:
        self.request, self.name, self.version = request, "", ""
        self.place = place
        self.began_s = time.perf_counter()
        self.token = CancelToken(request.timeout_s, time.perf_counter)
        self.call: AdmittedCall | None = None


def _left_s(token: CancelToken) -> float | None:
    """Return the seconds until a deadline, not below 0; None without one."""
    ends_s = token.deadline_s
    return None if ends_s is None else max(0.0, ends_s - time.perf_counter())


class InferenceService:
    """Serves the models of `models` within `limits`.

    observers: told the RequestOutcome of each request for a model
    is_draining: whether new requests are refused; set by `drain`
    """

    def __init__(self, models: Models, limits: ServingLimits | None = None) -> None:
        self.models = models
        self.limits = limits or ServingLimits()
        self.statistics = Statistics()
        self.observers: list[Observer] = [self.statistics.observe]
        self.is_draining = False
        self._admission = Admission(self.limits)

    @property
    def is_ready(self) -> bool:
        """Whether the server takes requests for every model that it began with."""
        return not self.is_draining and self.models.is_ready()

    async def infer(
        self, request: InferRequest, place: ReservedPlace | None = None
    ) -> InferResponse:
        """Return the answer to a request, whose `timeout_s` counts from this call.

        place: what `reserve` returned for it

        Cancelling the coroutine withdraws the request, or stops its run at the next task boundary.
        Errors: ServingError
        """
        asked = _Asked(request, place)
        kind, told = "cancelled", None
        try:
            response = await self._answer(asked)
            kind = "ok"
            return response
        except ServingError as error:
            kind = error.kind
            raise
        except Exception as caught:
            told = as_serving_error(caught)
            kind = told.kind
            if kind == "internal":
                _log.error("a run of model '%s' failed", request.model, exc_info=caught)
            raise told from caught
        finally:
            self._tell(asked, kind)
            asked.call = told = None  # as in `_result`

    async def _answer(self, asked: _Asked) -> InferResponse:
        request = asked.request
        with ExitStack() as held:
            model = held.enter_context(self._lease(request))
            asked.name, asked.version = model.name, model.version
            check_inputs(request, model.inputs)
            outputs = requested(request, model.outputs)
            trace = None
            if wants_trace(request.parameters):
                trace = RequestTrace(model.name, model.version)
            asked.call = self._submit(model, asked, trace, held.pop_all())
        results = await self._result(asked.call, asked)
        chosen = {
            one.name: classified(
                one.name, results[one.name], one.classes, model.labels.get(one.name, ())
            )
            if one.classes
            else results[one.name]
            for one in outputs
        }
        parameters = {}
        if trace is not None and asked.call.started_s and asked.call.ended_s:
            when = asked.began_s, asked.call.started_s, asked.call.ended_s
            parameters[TRACE] = trace.text(*when, request.id)
        return InferResponse(model.name, model.version, request.id, chosen, parameters)

    def _lease(self, request: InferRequest) -> AbstractContextManager[ServedModel]:
        if self.is_draining:
            raise ServingError("unavailable", "the server is shutting down", retry_after_s=1)
        check_model_name(request.model)
        return self.models.lease(request.model, request.version)

    def reserve(self, name: str, version: str = "") -> ReservedPlace:
        """Return a place in the queue for a request whose body is to be read; `release` it.

        Errors: ServingError unavailable, not_found; busy, if its queue is full already
        """
        with self._lease(InferRequest(name, version)) as model:
            try:
                return self._admission.reserve(model)
            except ServingError as error:
                self.note(RequestOutcome(model.name, model.version, error.kind, 0.0))
                raise

    def release(self, place: ReservedPlace) -> None:
        """Give back a place, whether its request was submitted or not."""
        self._admission.release(place)

    def note(self, outcome: RequestOutcome) -> None:
        """Tell the observers of a request that ended."""
        for observer in self.observers:
            observer(outcome)

    def _submit(
        self, model: ServedModel, asked: _Asked, trace: RequestTrace | None, held: ExitStack
    ) -> AdmittedCall:
        """Admit a run that holds its model until it ends or is withdrawn.

        The run does not refer to `asked`, which refers to the call and so to the run: a cycle would
        keep the request's arrays until the next collection.
        """
        request, token = asked.request, asked.token

        def run() -> Mapping[str, Array]:
            with working_for(token):
                token.check()
                if trace is not None:
                    return trace.run(model, request.inputs)
                return model.run(request.inputs, _left_s(token))

        try:
            call = self._admission.submit(model, run, request.nbytes, request.priority, asked.place)
        except BaseException:
            held.close()
            raise
        call.future.add_done_callback(lambda _: held.close())
        return call

    async def _result(self, call: AdmittedCall, asked: _Asked) -> Mapping[str, Array]:
        future: asyncio.Future[Mapping[str, Array]] = asyncio.wrap_future(call.future)
        try:
            if (await asyncio.wait([future], timeout=_left_s(asked.token)))[0]:
                return future.result()
            timeout_s = asked.request.timeout_s or 0.0
            raise ServingError("deadline", f"the request did not end within {timeout_s:g} s")
        except BaseException:
            self._admission.withdraw(call)
            asked.token.cancel()
            future.cancel()
            raise
        finally:
            del call, future  # an error refers to this frame, and so to itself through them

    def _tell(self, asked: _Asked, kind: str) -> None:
        now, call = time.perf_counter(), asked.call
        queue_s = run_s = 0.0
        if call is not None:
            queue_s = call.queue_s
            if call.started_s is not None:
                run_s = (call.ended_s or now) - call.started_s
        total_s = now - asked.began_s
        outcome = RequestOutcome(asked.name, asked.version, kind, total_s, queue_s, run_s)
        self.note(outcome)
        add_span(outcome, asked.request.client_span)

    def depth(self, name: str) -> tuple[int, int]:
        """Return how many requests of a model wait and how many run."""
        return self._admission.depth(name)

    def server_metadata(self) -> dict[str, Any]:
        """Return what the server says of itself."""
        return {"name": "trireme", "version": __version__, "extensions": list(EXTENSIONS)}

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a version of a model takes requests.

        Errors: ServingError not_found
        """
        if self.is_draining:
            return False
        try:
            with self.models.lease(name, version):
                return True
        except ServingError as error:
            if error.kind == "unavailable":
                return False
            raise

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the inputs and outputs of a model."""
        with self.models.lease(name, version) as model:
            versions = [one.version for one in self.models.index() if one.name == name]
            return {
                "name": model.name,
                "versions": versions,
                "platform": "trireme",
                "inputs": list(map(_as_metadata, model.inputs)),
                "outputs": list(map(_as_metadata, model.outputs)),
            }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the configuration of a model in the words of Triton's."""
        with self.models.lease(name, version) as model:
            return {
                "name": model.name,
                "platform": "trireme",
                "backend": "trireme",
                "max_batch_size": 0,
                "input": list(map(_as_config, model.inputs)),
                "output": list(map(_as_config, model.outputs)),
                "instance_group": [{"name": model.name, "count": model.concurrency}],
                **model.settings,
            }

    def model_statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of a model, or of every one."""
        if name:
            with self.models.lease(name, version) as model:
                return {"model_stats": [self.statistics.of_model(name, model.version)]}
        rows = [self.statistics.of_model(one.name, one.version) for one in self.models.index()]
        return {"model_stats": rows}

    async def drain(self, grace_s: float | None = None) -> bool:
        """Refuse new requests and wait for those accepted.

        Return False if some were not done in time; they are answered with an error.
        """
        self.is_draining = True
        grace_s = self.limits.grace_s if grace_s is None else grace_s
        is_done = await asyncio.to_thread(self._admission.wait_idle, grace_s)
        if not is_done:
            what = f"the server ended before the request did: its grace is {grace_s:g} s"
            self._admission.abandon(ServingError("unavailable", what))
        return is_done

    def close(self) -> None:
        """Withdraw what waits, and close the models."""
        self.is_draining = True
        self._admission.close()
        self.models.close()


def _as_metadata(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.open_shape}


def _as_config(spec: TensorSpec) -> dict[str, Any]:
    kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.open_shape}
