"""Models and pipelines under one roof: a pipeline is leased and run as a model is."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from trireme.profiling.spans import TaskSpan
from trireme.runtime.session.session import Session
from trireme.serving.config import PipelineSettings
from trireme.serving.errors import ServingError
from trireme.serving.models import Models, ModelStatus, ServedModel
from trireme.serving.pipeline import Stage, StagedPipeline, Values, outputs_within
from trireme.serving.protocol import DATATYPES, TensorSpec
from trireme.support.dtypes import Array
from trireme.support.errors import RunError

_SPEC = re.compile(r"([A-Z0-9]+)\[([^\[\]]*)\]")


class PipelineModel:
    """A pipeline under a name, whose stages are models and functions.

    A model with one input takes the one output of the stage before it, whatever their names. Other
    models take inputs by name: from the stage before, else from an earlier one or the request.
    """

    session: Session | None = None

    def __init__(self, name: str, settings: PipelineSettings, models: Models) -> None:
        self.name, self.version = name, "1"
        self.labels: Mapping[str, Sequence[str]] = {}
        stages = [(one, _stage_of(one, models)) for one in settings.stages]
        self._pipeline = StagedPipeline(stages, settings.queue, settings.workers)
        self._settings, self._models = settings, models
        self.settings: Mapping[str, Any] = {"stages": list(settings.stages)}

    @property
    def concurrency(self) -> int:
        """Requests that the stages and their queues hold."""
        return self._pipeline.capacity

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The inputs of the settings, else those of the first model."""
        return self._specs(self._settings.inputs, self._settings.stages[0], "inputs")

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The outputs of the settings, else those of the last model."""
        return self._specs(self._settings.outputs, self._settings.stages[-1], "outputs")

    def _specs(self, given: Mapping[str, str], stage: str, which: str) -> Sequence[TensorSpec]:
        if given:
            return [tensor_spec_of(name, text) for name, text in given.items()]
        with self._models.lease(stage) as model:
            found: Sequence[TensorSpec] = getattr(model, which)
            return found

    def run(self, feeds: Mapping[str, Array], timeout_s: float | None = None) -> dict[str, Array]:
        """See ServedModel; a deadline that passes is noticed between stages."""
        return dict(outputs_within(self._pipeline.submit(feeds), timeout_s))

    def run_traced(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[TaskSpan]]:
        """See ServedModel; the tasks are those of several models, so there are no spans."""
        return self.run(feeds), []

    def close(self) -> None:
        """Finish what was submitted."""
        self._pipeline.close()


class PipelinedModels:
    """Models, and pipelines over them. Closing it closes both."""

    def __init__(self, models: Models, pipelines: Mapping[str, PipelineSettings]) -> None:
        self._models = models
        self._pipelines: dict[str, PipelineModel] = {}
        known = {row.name for row in models.index()}
        for name, settings in pipelines.items():
            _check(name, settings, known)
            self._pipelines[name] = PipelineModel(name, settings, models)

    def lease(self, name: str, version: str = "") -> AbstractContextManager[ServedModel]:
        """See Models."""
        found = self._pipelines.get(name)
        if found is None or version not in ("", found.version):
            return self._models.lease(name, version)
        return nullcontext(found)

    def index(self) -> Sequence[ModelStatus]:
        """See Models."""
        mine = [ModelStatus(one.name, one.version) for one in self._pipelines.values()]
        return [*self._models.index(), *mine]

    def is_ready(self) -> bool:
        """See Models."""
        return self._models.is_ready()

    def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """See Models."""
        self._check_no_pipeline(name)
        self._models.load(name, parameters)

    def unload(self, name: str) -> None:
        """See Models; a pipeline stays, and answers that its model is not ready."""
        self._check_no_pipeline(name)
        self._models.unload(name)

    def close(self) -> None:
        """See Models."""
        for one in self._pipelines.values():
            one.close()
        self._models.close()

    def _check_no_pipeline(self, name: str) -> None:
        if name in self._pipelines:
            raise ServingError("invalid", f"'{name}' is a pipeline: only models load and unload")


def tensor_spec_of(name: str, text: str) -> TensorSpec:
    """Return a tensor that is written as "FP32[1,-1]"; -1 is an open dimension.

    Errors: RunError
    """
    match = _SPEC.fullmatch(text)
    dims = [one.strip() for one in match[2].split(",")] if match and match[2].strip() else []
    if not match or match[1] not in DATATYPES or any(not re.fullmatch(r"-1|\d+", d) for d in dims):
        raise RunError(
            f"{name} is {text!r:.100}, expected a type and a shape such as FP32[1,-1]",
            facts=[f"types: {', '.join(DATATYPES)}"],
        )
    shape = tuple(f"{name}{at}" if dim == "-1" else int(dim) for at, dim in enumerate(dims))
    return TensorSpec(name, DATATYPES[match[1]], shape)


def _check(name: str, settings: PipelineSettings, known: set[str]) -> None:
    """See that a pipeline can be made.

    Errors: RunError
    """
    of = f"pipeline {name!r}"
    if name in known:
        raise RunError(f"{of}: a model has that name too")
    if not settings.stages:
        raise RunError(f"{of} has no stages")
    for stage in settings.stages:
        if ":" not in stage and stage not in known:
            raise RunError(f"{of}: there is no model {stage!r}", facts=[f"known: {sorted(known)}"])
    ends = (("inputs", settings.inputs, 0), ("outputs", settings.outputs, -1))
    for which, given, at in ends:
        for tensor, text in given.items():
            tensor_spec_of(tensor, text)
        if not given and ":" in settings.stages[at]:
            raise RunError(
                f"{of}: {which} are needed, as {settings.stages[at]!r} is a function",
                fix=f'{which} = {{image = "UINT8[-1]"}}',
            )


def _stage_of(text: str, models: Models) -> Stage:
    """Return what runs a stage: a function for "module:function", else a model."""
    if ":" in text:
        return _function_of(text)

    def run(values: Values, last: Mapping[str, Array]) -> Mapping[str, Array]:
        with models.lease(text) as model:
            return model.run(_feeds(model, values, last))

    return run


def _function_of(text: str) -> Stage:
    module, _, name = text.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise RunError(f"the stage {text!r} cannot be imported: {error}") from error
    if not callable(found):
        raise RunError(f"the stage {text!r} is no function")

    def run(values: Values, last: Mapping[str, Array]) -> Mapping[str, Array]:
        given = found(dict(values))
        if not isinstance(given, Mapping):
            raise ServingError("internal", f"the stage {text!r} returned no mapping of arrays")
        return given

    return run


def _feeds(model: ServedModel, values: Values, last: Mapping[str, Array]) -> Values:
    """Return the inputs of a model: what the stage before gave goes before what came earlier."""
    names = [spec.name for spec in model.inputs]
    if len(names) == len(last) == 1:
        return dict(zip(names, last.values(), strict=True))
    found = {name: last[name] if name in last else values.get(name) for name in names}
    for name, array in found.items():
        if array is None:
            raise ServingError(
                "internal", f"model '{model.name}' needs '{name}', which no stage before it gives"
            )
    return {name: array for name, array in found.items() if array is not None}
