"""Cases of memory: guard pages around what kernels read and write, and Oclgrind, in a child."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from guard import Guarded, run_guarded
from op_samples import op_samples, sample_graph
from random_graphs import random_feeds

from lab.stress.children import Attempt
from lab.stress.race_cases import grown
from trireme.backend.device import HOST, Buffer, Device
from trireme.backend.registry import open_device
from trireme.devices.cpu.codegen.target import available_isas
from trireme.ir.graph import Graph
from trireme.ir.interpreter import interpret
from trireme.runtime.program.feeds import random_array
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import InternalError

RTOL, ATOL = 1e-4, 1e-5
"""Of floats of random graphs, relative to the largest number of an output."""


@functools.cache
def samples() -> list[tuple[Graph, dict[int, Array]]]:
    """Return the graph and the feeds of every sample of an op."""
    return [sample_graph(op, sample) for op, sample, _ in op_samples() if op.name != "python"]


def graph_of(number: int, rng: random.Random) -> tuple[Graph, dict[int, Array]]:
    """Return the graph of a case: the samples of the ops first, then random graphs."""
    if number < len(samples()):
        return samples()[number]
    graph = grown(rng, 12)
    named = random_feeds(graph, number)
    return graph, {value.id: named[value.name] for value in graph.input_values()}


def kernels(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what runs a graph's kernels between guard pages, at one end or the other."""

    @functools.cache
    def device(isa: str) -> Device:
        return open_device("cpu", threads=1, isa=isa)

    def attempt(number: int) -> str:
        rng = random.Random(f"kernels {seed} {number}")
        graph, feeds = graph_of(number, rng)
        opened = device(rng.choice(available_isas(variants=False)))
        if any(opened.unsupported_reason(graph, node) for node in graph.nodes):
            return "reference"
        executable = opened.compile([graph])[0]
        at_end = rng.random() < 0.5
        found = run_guarded(executable, feeds, at_end)
        if found is None:
            return "reference"
        again = run_guarded(executable, feeds, not at_end) or []
        same = all(a.tobytes() == b.tobytes() for a, b in zip(found, again, strict=True))
        return "equal" if same else f"wrong {graph.name}: other bits at the other end"

    return attempt


class GuardedMemory:
    """Host memory whose every allocation lies between guard pages; it stays until `check`."""

    def __init__(self, at_end: bool) -> None:
        self._at_end, self.made = at_end, list[Guarded]()

    def alloc(self, nbytes: int, alignment: int = 64) -> Buffer:
        """Return zeroed memory that starts aligned; its end is as near a page's as that allows."""
        room = -(-nbytes // alignment) * alignment
        made = Guarded(room, self._at_end, np.zeros(room, np.uint8))
        made.protect()
        self.made.append(made)
        return Buffer(HOST, made.bytes[:nbytes], 0, nbytes)

    def array(self, like: Array, read_only: bool) -> Array:
        """Return a copy of an array between guard pages."""
        made = Guarded(like.nbytes, self._at_end and like.nbytes % 64 == 0, like, read_only)
        made.protect()
        self.made.append(made)
        return made.bytes.view(like.dtype).reshape(like.shape)

    def check(self) -> None:
        """See that nothing around the memory was written, and free it."""
        for one in self.made:
            one.release()
            one.check("memory of a session")


_ALLOCATIONS = (
    "trireme.runtime.program.context.host_alloc",
    "trireme.backend.host_memory.host_alloc",
)
"""Where a session takes its arenas from."""


def arenas(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what runs sessions whose arenas and bound arrays lie between guard pages."""

    def attempt(number: int) -> str:
        rng = random.Random(f"arenas {seed} {number}")
        path = models[number // 2 % len(models)] if models and number % 2 else None
        model: Any = str(path) if path else grown(rng, 30)
        memory = GuardedMemory(at_end=rng.random() < 0.5)
        plain = _outputs(model, None, number)
        with ExitStack() as patched:
            for place in _ALLOCATIONS:
                patched.enter_context(mock.patch(place, memory.alloc))
            found = _outputs(model, memory, number)
        memory.check()
        for name, array in plain.items():
            if array.tobytes() != found[name].tobytes():
                return f"wrong {name}: other bits between guard pages"
        return "equal"

    return attempt


def _outputs(model: Any, memory: GuardedMemory | None, number: int) -> Mapping[str, Array]:
    """Return copies of the outputs of two runs, the second bound to arrays of the memory."""
    with Session(model, threads=2, execution_options=AS_GIVEN) as session:
        rng = np.random.default_rng(number)
        feeds = {value.name: random_array(value, rng) for value in session.inputs}
        found = session.run(feeds)
        if memory is not None:
            out = {name: memory.array(np.zeros_like(one), False) for name, one in found.items()}
            bound = {name: memory.array(array, True) for name, array in feeds.items()}
            session.bind(bound, out=out).run()
            found = out
        return {name: array.copy() for name, array in found.items()}


COMPLAINTS = ("Invalid", "race", "divergence", "Uninitialized")
"""Words of Oclgrind's reports on standard error."""
TUNINGS = ("cpu", "desktop_gpu", "mobile_gpu")
MARGIN, POISON = 192, 0xA5


def oclgrind(seed: int, models: Sequence[Path], subject: str) -> Attempt:
    """Return what runs a graph's OpenCL kernels on Oclgrind, beside the references."""

    @functools.cache
    def device(tuning: str) -> Device:
        return open_device("opencl", platform="oclgrind", tuning=tuning, cache_dir=None)

    def attempt(number: int) -> str:
        rng = random.Random(f"oclgrind {seed} {number}")
        graph, feeds = graph_of(number, rng)
        opened = device(rng.choice(TUNINGS))
        if any(opened.unsupported_reason(graph, node) for node in graph.nodes):
            return "unsupported"
        said: list[str] = []
        with _standard_error(said):
            found = run_on(opened, graph, feeds)
        if told := [line for line in said if any(word in line for word in COMPLAINTS)]:
            return f"wrong {graph.name}: {told[:3]}"
        return compared(graph, found, interpret(graph, feeds))

    return attempt


@contextlib.contextmanager
def _standard_error(lines: list[str]) -> Iterator[None]:
    """Gather the lines that the block writes to standard error, C++ code too."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            lines += said.read().decode(errors="replace").splitlines()


def run_on(device: Device, graph: Graph, feeds: Mapping[int, Array]) -> list[Array]:
    """Return the outputs of a graph on a device whose every tensor lies between poisoned margins.

    Errors: InternalError, if the margins are written
    """
    executable = device.compile([graph])[0]
    ids = (*graph.inputs, *graph.outputs)
    places, at = [], MARGIN
    for nbytes in [*(graph.type(value).nbytes for value in ids), executable.scratch_bytes]:
        places.append((at, nbytes))
        at += -(-nbytes // 64) * 64 + MARGIN
    whole = device.alloc(at)
    device.write(whole, np.full(at, POISON, np.uint8))
    *args, scratch = (whole.at(offset, nbytes) for offset, nbytes in places)
    for value, place in zip(graph.inputs, args, strict=False):
        device.write(place, np.ascontiguousarray(feeds[value]))
    executable.bind(args, scratch).launch().wait()
    found = []
    for value, place in zip(graph.outputs, args[len(graph.inputs) :], strict=True):
        array = np.empty(graph.type(value).dims, numpy_dtype(graph.type(value).dtype))
        device.read(place, array)
        found.append(array)
    around: Array = np.empty(at, np.uint8)
    device.read(whole, around)
    for offset, nbytes in places:
        around[offset : offset + nbytes] = POISON
    if (around != POISON).any():
        raise InternalError(f"{graph.name}: bytes outside its tensors were written")
    return found


def compared(graph: Graph, found: Sequence[Array], wanted: Mapping[int, Array]) -> str:
    """Return how outputs agree with the references: quantised ones exactly."""
    for value, array in zip(graph.outputs, found, strict=True):
        if array.dtype.kind in "fc" and graph.type(value).quant is None:
            most = np.abs(np.nan_to_num(wanted[value])).max(initial=1.0)
            same = np.allclose(array, wanted[value], RTOL, ATOL * most, equal_nan=True)
        else:
            same = np.array_equal(array, wanted[value])
        if not same:
            return f"wrong {graph.name}: %{value} is not the references'"
    return "equal"
