"""The command stream as Python values: what schema/task.fbs says, frozen, and the way to bytes.

The compiler makes a Task and encodes it; the simulator decodes the bytes and trusts nothing (see
`verify`). A field means what the schema's comment on it says.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, get_args, get_type_hints

import flatbuffers
import numpy as np

from trireme.dtypes import Array
from trireme.errors import DeviceError
from trireme.schema.generated import task_generated as fbs

VERSION = 1
SRAM, CONSTANTS, SCRATCH, ARGUMENTS = 0, 1, 2, 3
"""Indices of regions; arguments start at the last of these."""

DTYPES = ("int8", "uint8", "int32", "float16", "float32")
KINDS = ("sram", "constants", "scratch", "argument")
ENGINES = ("dma", "matrix", "vector")
POOL_KINDS = ("max", "average", "mean")
BINARY_KINDS = ("add", "sub", "mul", "div", "max", "min")
FUNCTIONS = (
    "none", "relu", "relu6", "relu_n1_to_1", "tanh", "sigmoid", "hard_sigmoid", "hard_swish",
    "swish", "gelu", "gelu_tanh", "clip", "leaky_relu", "elu", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "abs", "neg", "erf", "square",
)  # fmt: skip
ITEMSIZE = {"int8": 1, "uint8": 1, "int32": 4, "float16": 2, "float32": 4}
Dims = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class View:
    """A strided box of memory; `strides` are bytes, 0 where an element is repeated."""

    region: int
    offset: int
    dtype: str
    shape: Dims
    strides: Dims

    def box(self, start: Dims, shape: Dims) -> View:
        """Return the part that starts at an index and has a shape."""
        skip = sum(i * s for i, s in zip(start, self.strides, strict=True))
        return View(self.region, self.offset + skip, self.dtype, shape, self.strides)

    @property
    def extent(self) -> tuple[int, int]:
        """The first byte and the byte behind the last one, in the region."""
        span = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset, self.offset + span + ITEMSIZE[self.dtype]

    @property
    def elements(self) -> int:
        """Elements, repeated ones too."""
        n, h, w, c = self.shape
        return n * h * w * c

    @property
    def distinct_bytes(self) -> int:
        """Bytes of the elements, each repeated one counted once."""
        count = ITEMSIZE[self.dtype]
        for size, stride in zip(self.shape, self.strides, strict=True):
            count *= size if stride else 1
        return count

    def __str__(self) -> str:
        where = KINDS[min(self.region, ARGUMENTS)]
        if self.region >= ARGUMENTS:
            where += str(self.region - ARGUMENTS)
        shape = "x".join(map(str, self.shape))
        return f"{where}+{self.offset:#x}:{self.dtype}[{shape}]/{','.join(map(str, self.strides))}"


def dense(region: int, offset: int, dtype: str, shape: Dims) -> View:
    """Return the view of a row-major array."""
    size = ITEMSIZE[dtype]
    n, h, w, c = shape
    return View(region, offset, dtype, shape, (h * w * c * size, w * c * size, c * size, size))


@dataclass(frozen=True, slots=True)
class Window:
    """Geometry of a sliding window."""

    kernel_h: int = 1
    kernel_w: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0


@dataclass(frozen=True, slots=True)
class Barrier:
    """Holds an engine until the others have completed that many commands."""

    engine: str
    dma: int
    matrix: int
    vector: int


@dataclass(frozen=True, slots=True)
class Dma:
    """A copy."""

    source: View
    target: View


@dataclass(frozen=True, slots=True)
class Fill:
    """One value everywhere."""

    target: View
    value: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A convolution or matrix product."""

    ifm: View
    ofm: View
    weights: int
    weights_dtype: str
    scales: int
    window: Window
    depthwise: bool = False
    x_zero: int = 0
    w_zero: int = 0
    y_zero: int = 0
    low: int = 0
    high: int = 0
    rounding_once: bool = False
    accumulators: int = 0
    load_acc: bool = False
    store_acc: bool = False
    residual: View | None = None
    function: str = "none"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool."""

    ifm: View
    ofm: View
    window: Window
    kind: str
    count: int = 0
    pad_value: int = 0
    x_zero: int = 0
    y_zero: int = 0
    multiplier: int = 0
    shift: int = 0
    low: int = 0
    high: int = 0
    function: str = "none"


@dataclass(frozen=True, slots=True)
class Binary:
    """Elementwise with two inputs."""

    kind: str
    a: View
    b: View
    y: View
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    left_shift: int = 0
    a_multiplier: int = 0
    a_shift: int = 0
    b_multiplier: int = 0
    b_shift: int = 0
    y_multiplier: int = 0
    y_shift: int = 0
    low: int = 0
    high: int = 0
    function: str = "none"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of 256 entries."""

    x: View
    y: View
    table: int


@dataclass(frozen=True, slots=True)
class Unary:
    """A function on float16."""

    x: View
    y: View
    function: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True)
class Softmax:
    """Softmax along c."""

    x: View
    y: View
    table: int = 0
    gain: int = 0
    y_zero: int = 0
    low: int = 0
    high: int = 0
    beta: float = 1.0


Work = Barrier | Dma | Fill | Matrix | Pool | Binary | Table | Unary | Softmax
WORKS: tuple[type, ...] = get_args(Work)
ENGINE_OF: dict[type, str] = {
    Dma: "dma", Fill: "dma", Matrix: "matrix", Pool: "vector", Binary: "vector", Table: "vector",
    Unary: "vector", Softmax: "vector",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the node (an index into Task.nodes) whose work it is."""

    work: Work
    node: int


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of memory that commands may touch."""

    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the graph."""

    id: int
    label: str


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """Where a value lies when the commands of its node are done."""

    id: int
    node: int
    place: View


@dataclass(frozen=True)
class Task:
    """A whole command stream."""

    device: str
    regions: tuple[Region, ...]
    nodes: tuple[NodeInfo, ...]
    values: tuple[ValueInfo, ...]
    commands: tuple[Command, ...]


_ENUMS: dict[tuple[str, str], tuple[str, ...]] = {
    ("Barrier", "engine"): ENGINES,
    ("Matrix", "weights_dtype"): DTYPES,
    ("Matrix", "function"): FUNCTIONS,
    ("Pool", "kind"): POOL_KINDS,
    ("Pool", "function"): FUNCTIONS,
    ("Binary", "kind"): BINARY_KINDS,
    ("Binary", "function"): FUNCTIONS,
    ("Unary", "function"): FUNCTIONS,
    ("Region", "kind"): KINDS,
}


def encode(task: Task) -> bytes:
    """Return the stream as FlatBuffers of schema/task.fbs."""
    root = fbs.TaskT(version=VERSION, device=task.device)
    root.regions = [_to_fbs(region) for region in task.regions]
    root.nodes = [_to_fbs(node) for node in task.nodes]
    root.values = [_to_fbs(value) for value in task.values]
    root.commands = [_command_to_fbs(command) for command in task.commands]
    builder = flatbuffers.Builder(256 * (1 + len(task.commands)))
    builder.Finish(root.Pack(builder), file_identifier=b"TRNP")
    return bytes(builder.Output())


def decode(data: bytes) -> Task:
    """Return the stream in a buffer.

    Errors: DeviceError, if the buffer is not a command stream of this version; see `verify` for
            what a well-formed stream may still do wrong
    """
    if len(data) < 12 or data[4:8] != b"TRNP":
        raise DeviceError("not an NPU command stream: the identifier TRNP is missing")
    try:
        root = fbs.Task.GetRootAs(data, 0)
        counts = (root.CommandsLength(), root.RegionsLength(), root.NodesLength())
        if max(*counts, root.ValuesLength()) * 4 > len(data):
            raise ValueError("a list is longer than the stream")
        if root.Version() != VERSION:
            raise ValueError(f"version {root.Version()}, expected {VERSION}")
        made = fbs.TaskT.InitFromObj(root)
        return Task(
            _text(made.device),
            tuple(_from_fbs(Region, region) for region in made.regions or ()),
            tuple(_from_fbs(NodeInfo, node) for node in made.nodes or ()),
            tuple(_from_fbs(ValueInfo, value) for value in made.values or ()),
            tuple(_command_from_fbs(command) for command in made.commands or ()),
        )
    except (
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        struct.error,
        OverflowError,
    ) as error:
        raise DeviceError(f"a damaged NPU command stream: {error}") from error


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _to_fbs(value: Any) -> Any:
    kind = type(value).__name__
    if isinstance(value, View):
        n, h, w, c = value.shape
        sn, sh, sw, sc = value.strides
        return fbs.ViewT(
            value.offset, value.region, DTYPES.index(value.dtype), n, h, w, c, sn, sh, sw, sc
        )
    made = getattr(fbs, f"{kind}T")()
    for entry in fields(value):
        item = getattr(value, entry.name)
        if (kind, entry.name) in _ENUMS:
            item = _ENUMS[kind, entry.name].index(item)
        elif is_dataclass(item):
            item = _to_fbs(item)
        setattr(made, _camel(entry.name), item)
    return made


def _command_to_fbs(command: Command) -> Any:
    kind = type(command.work)
    return fbs.CommandT(
        workType=WORKS.index(kind) + 1, work=_to_fbs(command.work), node=command.node
    )


_HINTS = {cls: get_type_hints(cls) for cls in (*WORKS, Window, Region, NodeInfo, ValueInfo)}


def _from_fbs(cls: type, made: Any) -> Any:
    if cls is View:
        shape, strides = (
            (made.n, made.h, made.w, made.c),
            (made.strideN, made.strideH, made.strideW, made.strideC),
        )
        return View(made.region, made.offset, DTYPES[made.dtype], shape, strides)
    values = {}
    for name, hint in _HINTS[cls].items():
        item = getattr(made, _camel(name))
        if (cls.__name__, name) in _ENUMS:
            item = _ENUMS[cls.__name__, name][item]
        elif hint is View or (hint == View | None and item is not None):
            item = _from_fbs(View, item)
        elif hint is Window:
            item = _from_fbs(Window, item)
        elif hint is str:
            item = _text(item)
        elif hint is bool:
            item = bool(item)
        values[name] = item
    return cls(**values)


def _command_from_fbs(made: Any) -> Command:
    if not 1 <= made.workType <= len(WORKS):
        raise ValueError(f"unknown command {made.workType}")
    return Command(_from_fbs(WORKS[made.workType - 1], made.work), made.node)


def array_of(memory: Array, view: View) -> Array:
    """Return the elements of a view of a 1-D uint8 array, without a copy.

    The view must lie inside the array: `verify` has seen to it.
    """
    size = ITEMSIZE[view.dtype]
    start, end = view.extent
    flat = memory[start:end].view() if size == 1 else memory[start:end]
    base = np.ndarray((1,), _NUMPY[view.dtype], buffer=flat.data)
    return np.lib.stride_tricks.as_strided(base, view.shape, view.strides)


_NUMPY = {name: np.dtype(name) for name in DTYPES}


def moved(view: View, region: int, offset: int) -> View:
    """Return the view with another origin."""
    return replace(view, region=region, offset=offset)
