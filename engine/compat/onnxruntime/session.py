"""InferenceSession over a trireme Session."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trireme.compat.onnxruntime.binding import SessionIOBinding
from trireme.compat.onnxruntime.errors import (
    InvalidArgument,
    MissingInput,
    as_onnxruntime,
    warn_unused,
)
from trireme.compat.onnxruntime.options import (
    ExecutionMode,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from trireme.compat.onnxruntime.providers import Provider, devices_of
from trireme.compat.onnxruntime.signature import ModelMetadata, NodeArg, arg_of, declared_by
from trireme.compat.onnxruntime.values import OrtValue
from trireme.ir.dims import symbol_name
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.cancel import working_for
from trireme.support.dtypes import Array, numpy_dtype

Callback = Callable[[Any, Any, str], None]


class InferenceSession:
    """A model ready to run, with the methods of ONNX Runtime's InferenceSession.

    providers: "CPUExecutionProvider", or "TriremeExecutionProvider" with the option "devices", the
        names of trireme's devices: ("TriremeExecutionProvider", {"devices": "opencl,cpu"})
    session: the trireme session beneath
    Errors: NoSuchFile, InvalidProtobuf, InvalidGraph, NotSupported; InvalidArgument
    """

    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value in kwargs.items():
            if value:
                warn_unused(f"InferenceSession({name}=...)", "trireme has no such option")
        if not isinstance(path_or_bytes, str | bytes | os.PathLike):
            raise TypeError(f"unable to load from a {type(path_or_bytes).__name__}")
        self._options, self._model = sess_options or SessionOptions(), path_or_bytes
        self._declared = declared_by(path_or_bytes)
        self.session = self._open(providers, provider_options)
        declared = self._declared.shapes
        self._inputs = [arg_of(value, declared) for value in self.session.inputs]
        self._outputs = [arg_of(value, declared) for value in self.session.outputs]
        self._last: dict[str, Array] | None = None
        self._begun_ns = time.perf_counter_ns()

    def _open(
        self,
        providers: Sequence[Provider] | None,
        provider_options: Sequence[Mapping[str, Any]] | None,
    ) -> Session:
        served, options, devices = devices_of(providers, provider_options)
        with as_onnxruntime(self._model):
            session = _opened(self._model, self._options, devices, self._declared.inputs)
        self._providers, self._provider_options = served, options
        return session

    def set_providers(
        self,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Open the model anew on other devices. No run may be under way."""
        before, self.session = self.session, self._open(providers, provider_options)
        before.close()

    def disable_fallback(self) -> None:
        """Do nothing: a device that fails is an error."""

    def enable_fallback(self) -> None:
        """Warn: a device that fails is an error."""
        warn_unused("enable_fallback", "a device that fails is an error")

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with an initializer, which a run may feed."""
        declared = self._declared.shapes
        return [arg_of(value, declared) for value in self.session.optional_inputs]

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the producer wrote into the model; empty for other formats than ONNX."""
        return self._declared.metadata

    def get_session_options(self) -> SessionOptions:
        """Return the options."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return the names of the providers that serve."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Return the options by provider."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Return the outputs that are named, all when None.

        Errors: MissingInput, which is a ValueError; InvalidArgument; Fail after `terminate`
        """
        names = self._names(output_names)
        results = self._run(self._feeds(input_feed), None, run_options)
        return [results[name] for name in names]

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run on another thread, and call `callback(outputs, user_data, error text)` there."""
        names, feeds = self._names(output_names), self._feeds(input_feed)

        def told(request: Any) -> None:
            error = request.exception()
            if error is not None:
                callback([], user_data, str(error))
                return
            results = request.result()
            callback([results[name] for name in names], user_data, "")

        with as_onnxruntime():
            if run_options is not None:
                run_options.token.check()
            request = self.session.run_async(feeds)
        if run_options is not None:
            run_options.follow(request)
        request.add_done_callback(told)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Return the outputs as values."""
        return [OrtValue(one) for one in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> SessionIOBinding:
        """Return a binding of inputs and outputs."""
        return SessionIOBinding(self)

    def run_with_iobinding(
        self, iobinding: SessionIOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run on the arrays of a binding."""
        if not iobinding.targets:
            raise InvalidArgument("the binding has no outputs", fix="binding.bind_output(name)")
        out = {name: one for name, one in iobinding.targets.items() if one is not None}
        results = self._run(self._feeds(iobinding.feeds), out or None, run_options)
        iobinding.results = {name: results[name] for name in iobinding.targets}

    def get_profiling_start_time_ns(self) -> int:
        """Return when the session was ready, by time.perf_counter_ns."""
        return self._begun_ns

    def end_profiling(self) -> str:
        """Run the last inputs again, watched, and write a trace for Chrome; return its file's name.

        ONNX Runtime notes each run while it goes; trireme's runs take no notes.
        Errors: InvalidArgument, if the options did not enable profiling; RunError, where several
        programs run the model
        """
        if not self._options.enable_profiling:
            raise InvalidArgument("profiling is not enabled", fix="options.enable_profiling = True")
        from trireme.profiling.trace import chrome_trace

        events: dict[str, Any] = {"traceEvents": []}
        if self._last is not None:
            events = chrome_trace(self.session.profile(self._last, runs=3, warmup=1))
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{self._options.profile_file_prefix}{stamp}.json"
        with open(name, "w", encoding="utf-8") as file:
            json.dump(events, file)
        return name

    def _run(
        self,
        feeds: dict[str, Array],
        out: Mapping[str, Array] | None,
        run_options: RunOptions | None,
    ) -> dict[str, Array]:
        if self._options.enable_profiling:
            self._last = feeds
        with as_onnxruntime():
            if run_options is None:
                return self.session.run(feeds, out)
            with working_for(run_options.token):
                run_options.token.check()
                return self.session.run(feeds, out)

    def _names(self, output_names: Sequence[str] | None) -> list[str]:
        known = [arg.name for arg in self._outputs]
        names = list(output_names or known)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidArgument(
                f"Invalid output name: {unknown[0]}", facts=[f"known: {', '.join(known)}"]
            )
        return names

    def _feeds(self, given: Mapping[str, Any]) -> dict[str, Array]:
        known = [arg.name for arg in self._inputs]
        missing = [name for name in known if name not in given]
        if missing:
            raise MissingInput(
                f"Required inputs ({missing}) are missing from input feed ({list(given)})."
            )
        values = self.session.inputs
        if len(given) > len(known):
            values = [*values, *self.session.optional_inputs]
        taken = {value.name: value for value in values}
        unknown = [name for name in given if name not in taken]
        if unknown:
            raise InvalidArgument(
                f"Invalid input name: {unknown[0]}", facts=[f"known: {', '.join(taken)}"]
            )
        return {
            name: _array(array, numpy_dtype(taken[name].dtype)) for name, array in given.items()
        }


def _array(given: Any, dtype: np.dtype[Any]) -> Array:
    """Return a feed as an array; lists get the input's type, as in ONNX Runtime."""
    if isinstance(given, OrtValue):
        return given.array
    if isinstance(given, list):
        try:
            return np.array(given, dtype)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"a list is no array of {dtype}: {error}") from error
    return np.asarray(given)


def _sized(
    declared: Mapping[str, list[int | str | None]], sizes: Mapping[str, int]
) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the inputs whose symbols get sizes."""
    found, used = {}, set[str]()
    for name, shape in declared.items():
        mine = {dim for dim in shape if isinstance(dim, str) and dim in sizes}
        used |= mine
        if mine:
            found[name] = tuple(
                sizes[dim]
                if isinstance(dim, str) and dim in sizes
                else symbol_name(dim or f"{name}_{axis}")
                if not isinstance(dim, int)
                else dim
                for axis, dim in enumerate(shape)
            )
    for name in sizes.keys() - used:
        warn_unused(f"the size of {name!r}", "no input has such a dimension")
    return found


def _opened(
    model: str | bytes | os.PathLike[str],
    options: SessionOptions,
    devices: list[str],
    inputs: Mapping[str, list[int | str | None]],
) -> Session:
    """Open the session that the options describe."""
    level, levels = options.graph_optimization_level, GraphOptimizationLevel
    if level not in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_ALL):
        warn_unused(level.name, "all passes run, or none")
    return Session(
        model,
        devices=devices,
        threads=options.intra_op_num_threads or None,
        mode="parallel" if options.execution_mode == ExecutionMode.ORT_PARALLEL else "auto",
        shapes=_sized(inputs, options.sizes) if options.sizes else None,
        execution_options=ExecutionOptions(passes=() if level == levels.ORT_DISABLE_ALL else None),
    )
