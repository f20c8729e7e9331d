"""What it takes to pass from one device to another: copies, and turns on silicon that both share.

`calibrate` measures it the way a run does it: a task here, a copy, a task there, a copy back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

from trireme.calibration import Sharing
from trireme.device import HOST, BoundCall, Buffer, Device, host_alloc
from trireme.fit import fit

_ROUNDS = 15
_BYTES = (1 << 10, 16 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20)

Line = tuple[float, float]
"""Latency in seconds, and bytes a second."""


class Side:
    """A device and a small network of its own that is ready to run."""

    def __init__(self, device: Device, call: BoundCall) -> None:
        self.device, self.call = device, call
        self._target = device.alloc(_BYTES[0]) if device.spec.memory != HOST else None
        self._host = host_alloc(_BYTES[0]).handle

    def launch(self) -> None:
        """Run the network."""
        self.call.launch().wait()

    def cross(self) -> None:
        """Copy a little to the device, as a run does before the other device's turn, or after."""
        if self._target is not None:
            self.device.start_write(self._target, self._host).wait()


def measure_copies(here: Side | None, there: Side) -> dict[str, Line]:
    """Return "write" to a device with memory of its own and "read" from it, each between tasks.

    here: a device on host memory that takes turns with it; None for none
    """
    target: Buffer = there.device.alloc(max(_BYTES))
    host = host_alloc(max(_BYTES)).handle
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(_ROUNDS):
        for size in _BYTES:
            part, array = target.at(0, size), host[:size]
            if here:
                here.launch()
            array[:] = 1  # as if a task here had made it
            write = _clock(lambda: there.device.start_write(part, array).wait())  # noqa: B023
            there.launch()
            read = _clock(lambda: there.device.start_read(part, array).wait())  # noqa: B023
            seconds.setdefault(("write", size), []).append(write)
            seconds.setdefault(("read", size), []).append(read)
    lines = {}
    for way in ("write", "read"):
        medians = [statistics.median(seconds[way, size]) for size in _BYTES]
        curve = fit([{"bytes": float(size)} for size in _BYTES], medians)
        lines[way] = curve.fixed_s, 1 / max(curve.per.get("bytes", 0.0), 1e-15)
    return lines


def measure_turns(first: Side, second: Side) -> tuple[Sharing, Sharing]:
    """Return what each pays for the other: longer after the other, and a copy, than after itself;
    and what both at once take, of one after the other."""
    rows = [_round(first, second) for _ in range(_ROUNDS)]
    overlap = statistics.median(both / (hot + also_hot) for _, hot, _, also_hot, both in rows)
    longer = (
        [after - hot for after, hot, *_ in rows],
        [after - hot for _, _, after, hot, _ in rows],
    )
    # the lower quartile: what others do on the machine makes some of the first launches long
    first_s, second_s = (max(statistics.quantiles(each)[0], 0.0) for each in longer)
    return Sharing(first_s, overlap), Sharing(second_s, overlap)


def _round(first: Side, second: Side) -> Sequence[float]:
    """Return the seconds of two launches of each in a row, then of both at once."""
    seconds = []
    for one, other in ((first, second), (second, first)):
        one.cross()
        other.cross()
        seconds += [_clock(one.launch), _clock(one.launch)]
    return [*seconds, _clock(partial(_together, first.call, second.call))]


def _together(first: BoundCall, second: BoundCall) -> None:
    """Launch the second, which returns before it is over, then the first; wait for both."""
    for event in (second.launch(), first.launch()):
        event.wait()


def _clock(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
