"""The image of a compiled task: what a device needs to run the task in a later process.

`Executable.image` returns it where there is one. A later process gives the image to
`DeviceKind.open_image`, which compiles nothing, and gets an ImageCall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from trireme.support.dtypes import Array
from trireme.support.records import dataclass


@dataclass(frozen=True, eq=False)
class TaskImage:
    """A compiled task without addresses.

    facts: plain values, as JSON has them
    tables: arrays of code and numbers, by name
    constants: weights as kernels read them, contiguous; often views of a model's file
    """

    facts: Mapping[str, Any]
    tables: Mapping[str, Array]
    constants: tuple[Array, ...]


class ImageCall(Protocol):
    """An image on memory, ready to run.

    args: the place of each argument: the task's inputs in order, then its outputs
    calls_at_once, busy_calls: as of the device
    """

    @property
    def calls_at_once(self) -> int:
        """How many calls may run at once."""

    @property
    def busy_calls(self) -> int:
        """How many calls keep the device busy."""

    @property
    def run(self) -> Callable[[], None]:
        """Runs the task.

        Errors: RunError, of data that the task refuses; DeviceError, when it is closed
        """

    def at(self, sizes: tuple[int, ...]) -> Callable[[Sequence[Array]], ImageCall] | None:
        """Return what opens the same at other sizes of the symbols, on other memory.

        None where the image does not serve them; it closes with this one
        """

    def rebind(self, argument: int) -> Callable[[int], None]:
        """Return a function that moves an argument to another address."""

    def beside(self, args: Sequence[Array]) -> ImageCall:
        """Return the same on other memory, for another caller; it closes with this one."""

    def close(self) -> None:
        """Give the device's threads and memory back."""


OpenImage = Callable[[Any, TaskImage, Sequence[Array]], ImageCall]
"""Opens an image, given the options of its kind and the places of its arguments."""
