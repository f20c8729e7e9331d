"""The contract of a device: its description (DeviceSpec), the nodes it can run, and how it runs
them.

A device compiles Graphs, of one node or many, into Executables. The session allocates one arena a
device and binds each executable once to places in the arenas. Every run launches the bound calls.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from trireme.ir.graph import Graph, Node, TensorType
from trireme.support.dtypes import Array, numpy_dtype
from trireme.support.errors import DeviceError, FaultKind
from trireme.support.records import dataclass

if TYPE_CHECKING:
    from trireme.backend.core_latency import CoreLatency
    from trireme.backend.image import TaskImage
    from trireme.backend.kernel_table import KernelTable

Clock = Literal["wall", "virtual"]
HOST = "host"
"""The memory space of numpy arrays; the handle of its buffers is a 1-D uint8 array."""
HOST_CORES = "cpu"
"""The resource group of devices that work on the machine's CPU cores."""
ANY_NUMBER = sys.maxsize
"""The calls at once of a device that bounds them by nothing."""


def kind_of(name: str) -> str:
    """Return the kind of a device: "cpu" of "cpu#2", otherwise the name itself."""
    return name.partition("#")[0]


@dataclass(frozen=True)
class Resident:
    """Bytes that a node keeps in a device's memory from run to run: packed weights, and code.

    shared: (key, bytes) of weights that other nodes may keep too; a constant's key is its id. A
        task keeps one copy
    """

    weights: int = 0
    code: int = 0
    shared: tuple[tuple[Hashable, int], ...] = ()


def added_weights(kept: Iterable[Resident]) -> Iterator[int]:
    """Yield the bytes of weights that each node of a task adds to those of the nodes before it."""
    seen: set[Hashable] = set()
    for one in kept:
        bytes_again = 0
        for what, nbytes in one.shared:
            bytes_again += nbytes if what in seen else 0
            seen.add(what)
        yield one.weights - bytes_again


@dataclass(frozen=True)
class DeviceSpec:
    """The description of a device, for placement and planning.

    flops: operations a second by dtype (a multiply-add counts as two)
    bandwidth: bytes a second to and from its own memory
    launch_s: seconds that a task costs beyond its work
    handover_s: the part of launch_s for passing the task to a thread of the device, where
        calibration measures the kind without this part
    alignment: bytes to which values in its arena are aligned
    memory: the memory space it works in; values cross between spaces by copies only
    memory_bytes: the size of that space, 0 when unlimited: for the arena, scratch, weights and code
    buffer_bytes: the largest single allocation in that space, 0 when unlimited
    sram_bytes: memory on the chip beside that space; values inside a task are placed there first
    streams_weights: whether weights that do not fit that space are fetched over the link
    link_latency_s, link_bandwidth: of a copy between its memory and the host's
    resource_group: devices of one group share silicon and cannot overlap
    cores: numbers of the CPUs that it may keep busy, where known
    clock: whether its times are measured (wall) or modelled (virtual)
    calibrated: whether calibration measures it; exact figures need none
    power_w: watts while busy; None when unknown
    link_j_per_byte: joules a byte copied; None when unknown
    """

    name: str
    description: str
    flops: Mapping[str, float]
    bandwidth: float
    launch_s: float
    alignment: int = 64
    memory: str = HOST
    memory_bytes: int = 0
    buffer_bytes: int = 0
    sram_bytes: int = 0
    streams_weights: bool = False
    link_latency_s: float = 0.0
    link_bandwidth: float = float("inf")
    resource_group: str = ""
    cores: frozenset[int] = frozenset()
    handover_s: float = 0.0
    clock: Clock = "wall"
    calibrated: bool = True
    power_w: float | None = None
    link_j_per_byte: float | None = None

    @property
    def kind(self) -> str:
        """The kind of the device: "cpu" for "cpu#2"."""
        return kind_of(self.name)

    @property
    def resource(self) -> str:
        """The resource that its tasks occupy: its resource group, else the device alone."""
        return self.resource_group or self.name


@dataclass(frozen=True)
class Buffer:
    """A part of a device's memory: `handle` is the device's own, offset and nbytes in bytes."""

    memory: str
    handle: Any
    offset: int
    nbytes: int

    def at(self, offset: int, nbytes: int) -> Buffer:
        """Return the part of this buffer that starts `offset` bytes in."""
        return Buffer(self.memory, self.handle, self.offset + offset, nbytes)


def host_alloc(nbytes: int, alignment: int = 64) -> Buffer:
    """Return new zeroed host memory; its handle is a 1-D uint8 array that starts aligned.

    Errors: DeviceError, if there is no such memory
    """
    try:
        raw = np.zeros(nbytes + alignment, np.uint8)
    except (MemoryError, ValueError) as error:
        found = DeviceError(f"{nbytes} bytes of host memory are not to be had")
        raise found.of_kind(FaultKind.OUT_OF_MEMORY) from error
    skip = -raw.ctypes.data % alignment
    return Buffer(HOST, raw[skip : skip + nbytes], 0, nbytes)


def host_view(buffer: Buffer, type: TensorType) -> Array:
    """Return the host memory of a buffer as an array of the type, without a copy."""
    flat: Array = buffer.handle[buffer.offset : buffer.offset + type.nbytes]
    return flat.view(numpy_dtype(type.dtype)).reshape(type.dims)


@dataclass(frozen=True)
class BodySpan:
    """The time of one kernel of a body of control flow in all iterations of a launch.

    path: the bodies and control nodes around it, the outermost first
    label: of its nodes; device: where they ran
    turns: how often it ran; seconds, estimate_s: in all of them, measured and predicted
    """

    path: tuple[str, ...]
    label: str
    device: str
    kernel: str
    clock: Clock
    turns: int
    seconds: float
    estimate_s: float


@dataclass(frozen=True)
class NodeSpan:
    """When one node (or several fused into one kernel) of a launch ran, in seconds.

    Wall times are on the clock of time.perf_counter; virtual ones count from the launch. `cycles`
    and `detail` hold a device's own figures, such as DMA bytes, where the device has them.
    `bodies` are the kernels of the bodies of a control node.
    """

    nodes: tuple[int, ...]
    kernel: str
    start_s: float
    end_s: float
    clock: Clock = "wall"
    cycles: int = 0
    detail: Mapping[str, float] = field(default_factory=dict)
    bodies: tuple[BodySpan, ...] = ()


def held_s(spans: Sequence[NodeSpan]) -> list[float]:
    """Return how long each span held its device; a measured span ends as the next begins."""
    starts = [span.start_s if span.clock == "wall" else 0.0 for span in spans]
    return [
        max(span.end_s, after) - span.start_s
        for span, after in zip(spans, [*starts[1:], 0.0], strict=False)
    ]


WAKES = "wakes"
"""The term of a kernel that wakes a second core: 1, a part, or 0."""


@dataclass(frozen=True)
class KernelCost:
    """The amounts of work of one kernel of a region, which its time grows with.

    nodes: ids of the nodes that the kernel computes
    family: kernels of one family grow alike and share a fit ("conv_f32_winograd")
    terms: amounts by name, of the device's own choice; a larger amount never makes a kernel faster
    guess_s: the device's own estimate for an unmeasured family; None for the roofline
    alone: the same kernel on one thread, where the device chooses the faster of both for a whole
        region
    """

    nodes: tuple[int, ...]
    family: str
    terms: Mapping[str, float]
    guess_s: float | None = None
    alone: KernelCost | None = None


class Event(Protocol):
    """A launch under way. When `wait` returns, the launch is over; `wait` raises its errors."""

    def wait(self) -> None:
        """Return when the launch is complete; raise DeviceError when it failed."""

    def spans(self) -> Sequence[NodeSpan]:
        """Return the spans of a launch with profile=True, after `wait`; otherwise nothing."""


LazySpans = Callable[[], Sequence[NodeSpan]]
"""Returns the spans of a launch. It computes them on the call, so that the launch does not pay."""


class Done:
    """The event of a launch that was complete when it returned."""

    def __init__(self, spans: Sequence[NodeSpan] | LazySpans = ()) -> None:
        self._spans = spans

    def wait(self) -> None:
        """Return at once."""

    def spans(self) -> Sequence[NodeSpan]:
        """Return the spans of the launch, computed now where the launch left that for later."""
        return self._spans() if callable(self._spans) else self._spans


class BoundCall(Protocol):
    """An executable bound to memory, for one session. Launches allocate nothing.

    `capabilities` declares the optional methods of a call.
    """

    def launch(self, profile: bool = False) -> Event:
        """Start the work on the bound memory; return without waiting where the device can."""


Progress = Callable[[str, int, int], None]
"""Called with the current step, the amount done, and the total (0 of 0 where unknown)."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


class Executable(ABC):
    """Compiled code of one graph; immutable, shared by sessions and threads.

    scratch_bytes: memory that each bound call needs beside its arguments, in the device's space
    constant_bytes: memory of its packed weights, shared by all bound calls
    code_bytes: memory of its code in the device's space
    kernels: the kernel of each node, by node id ("conv_f32_12x2__avx512", "numpy reference")
    """

    scratch_bytes: int = 0
    constant_bytes: int = 0
    code_bytes: int = 0
    kernels: Mapping[int, str]

    @abstractmethod
    def bind(self, args: Sequence[Buffer], scratch: Buffer | None) -> BoundCall:
        """Return a call on these buffers: the graph's inputs in order, then its outputs."""

    def image(self) -> TaskImage | None:
        """Return what runs the code in a later process (image.py); None where there is none."""
        return None

    def listings(self, form: str) -> Mapping[str, str]:
        """Return generated code as text by file name, as "ir" or "asm"; {} where there is none."""
        return {}


class Device(ABC):
    """A place where nodes run. Methods other than `compile` may be called from any thread.

    kernel_table: the table of its kernels, if the device has one
    term_limits: the most seconds that a unit of a term of its kernels can cost
    estimate_source: the source of `estimate_s`: "device", a model of the very machine, or
        "roofline", which is less exact
    guesses_kernels: whether its `cost_features` have a `guess_s`, which prices kernels without a
        calibration
    driver_queue: the queue of its calls and copies, if the device starts one after another by
        itself: see QueuedCall
    repeats_calls: whether its calls can run turn after turn by themselves: see RepeatableCall
    is_lost: whether a task hung on it; nobody waits for the device again
    calls_at_once: how many calls, on memory of their own, may run; 0 where they take turns, and
        ANY_NUMBER where nothing bounds them
    busy_calls: how many of them keep it busy
    """

    spec: DeviceSpec
    term_limits: Mapping[str, float] = {}
    estimate_source: Literal["device", "roofline"] = "device"
    guesses_kernels: bool = False
    driver_queue: object | None = None
    repeats_calls: bool = False
    is_lost: bool = False
    calls_at_once: int = 0
    busy_calls: int = 0
    kernel_table: KernelTable[Any] | None = None

    @abstractmethod
    def unsupported_reason(self, graph: Graph, node: Node) -> str | None:
        """Return None if the device can run the node, else one sentence with the reason.

        A Refusal (refusal.py) names the rule that the node breaks, so that advice can group nodes.
        """

    @abstractmethod
    def compile(self, graphs: Sequence[Graph]) -> list[Executable]:
        """Return an executable for each graph, all compiled together.

        Every input, output and intermediate is static; constants come with their data.
        Errors: CompileError
        """

    def compile_with_progress(
        self, graphs: Sequence[Graph], progress: Progress
    ) -> list[Executable]:
        """Do the same as `compile`, and report to `progress` if the device can."""
        return self.compile(graphs)

    @abstractmethod
    def alloc(self, nbytes: int) -> Buffer:
        """Return new memory, aligned to spec.alignment; raise DeviceError when there is none."""

    @abstractmethod
    def write(self, target: Buffer, source: Array) -> None:
        """Copy a C-contiguous array into device memory and wait for it."""

    @abstractmethod
    def read(self, source: Buffer, target: Array) -> None:
        """Copy device memory into a C-contiguous array and wait for it."""

    def start_write(
        self, target: Buffer, source: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Begin a `write`. The array may change once the event is over.

        after: events of this device's driver queue; none for a device without one
        """
        self.write(target, source)
        return Done()

    def start_read(
        self, source: Buffer, target: Array, profile: bool = False, after: Sequence[Event] = ()
    ) -> Event:
        """Begin a `read`. The array is filled once the event is over. `after` as in start_write."""
        self.read(source, target)
        return Done()

    def kernel_note(self, graph: Graph, node: Node) -> str:
        """Return a remark on how the node would run here ("numpy reference"), or nothing."""
        return ""

    def estimate_s(self, graph: Graph, node: Node) -> float | None:
        """Return the device's own estimate of a node's seconds; None leaves it to the roofline."""
        return None

    def resident(self, graph: Graph, node: Node) -> Resident:
        """Return the bytes that a node keeps in the device's memory; by default its constants."""
        read = [graph.values[value] for value in dict.fromkeys(node.used)]
        constants = [(value.id, value.type.nbytes) for value in read if value.is_constant]
        shared = tuple(one for one in constants if len(graph.users(one[0])) > 1)
        return Resident(sum(nbytes for _, nbytes in constants), shared=shared)

    def cost_features(self, graph: Graph) -> Sequence[KernelCost] | None:
        """Return the kernels that `compile` makes of a region, in order; None where unknown."""
        return None

    def core_latency(self) -> CoreLatency | None:
        """Return the core latency of its threads now; None where unknown."""

    def finish(self) -> None:
        """Wait until no launch on this device is under way, even one without a kept event."""

    def close(self) -> None:
        """Release threads and memory; further use is an error."""
