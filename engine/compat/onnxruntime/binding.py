"""IO bindings: arrays that runs read and write where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from trireme.compat.onnxruntime.errors import InvalidArgument
from trireme.compat.onnxruntime.signature import NodeArg
from trireme.compat.onnxruntime.values import OrtValue, array_at, check_device
from trireme.support.dtypes import Array


class Described(Protocol):
    """A session that tells its inputs and outputs, as InferenceSession does."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs."""

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""


class SessionIOBinding:
    """Inputs and outputs of a session, for `InferenceSession.run_with_iobinding`.

    An output without memory of its own gets new memory in each run.
    """

    def __init__(self, session: Described) -> None:
        self._inputs = {arg.name for arg in session.get_inputs()}
        self._outputs = {arg.name for arg in session.get_outputs()}
        self.feeds: dict[str, Array] = {}
        self.targets: dict[str, Array | None] = {}
        self.results: dict[str, Array] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an array that runs read."""
        self._bind(name, np.asarray(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind the memory at an address, which runs read and the caller keeps alive."""
        check_device(device_type, device_id)
        self._bind(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value that runs read."""
        self._bind(name, ortvalue.array)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output, in the memory at an address where one is given."""
        check_device(device_type, device_id)
        if buffer_ptr is None:
            self._bind_output(name, None)
            return
        if shape is None or element_type is None:
            raise InvalidArgument(f"output {name!r} has an address, but no shape and element_type")
        self._bind_output(name, array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value that runs write an output into."""
        self._bind_output(name, ortvalue.array)

    def clear_binding_inputs(self) -> None:
        """Let go of the inputs."""
        self.feeds.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of the outputs."""
        self.targets.clear()
        self.results.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are in the host's memory."""

    def synchronize_outputs(self) -> None:
        """Do nothing: a run is over when it returns."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order of binding."""
        return [OrtValue(self.results[name]) for name in self.targets if name in self.results]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return copies of the outputs of the last run, in the order of binding."""
        return [value.numpy() for value in self.get_outputs()]

    def _bind(self, name: str, array: Array) -> None:
        if name not in self._inputs:
            raise InvalidArgument(f"the model has no input {name!r}")
        self.feeds[name] = array

    def _bind_output(self, name: str, array: Array | None) -> None:
        if name not in self._outputs:
            raise InvalidArgument(f"the model has no output {name!r}")
        self.targets[name] = array
        self.results.pop(name, None)


IOBinding = SessionIOBinding
