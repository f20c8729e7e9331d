"""The command stream as Python values: frozen dataclasses of schema/task.fbs.

The compiler makes a CommandStream and encodes it (`codec`). The simulator decodes the bytes and
checks them (`verify`). The schema's comments define the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from trireme.support.dtypes import Array

SRAM, CONSTANTS, SCRATCH, ARGUMENTS = 0, 1, 2, 3
"""Indices of regions; arguments start at the last of these."""

DTYPES = ("int8", "uint8", "int32", "float16", "float32")
KINDS = ("sram", "constants", "scratch", "argument")
ENGINES = ("dma", "matrix", "vector")
POOL_KINDS = ("max", "average", "mean")
BINARY_KINDS = ("add", "sub", "mul", "div", "max", "min")
FUNCTIONS = (
    "none",
    "relu",
    "relu6",
    "relu_n1_to_1",
    "tanh",
    "sigmoid",
    "hard_sigmoid",
    "hard_swish",
    "swish",
    "gelu",
    "gelu_tanh",
    "clip",
    "leaky_relu",
    "elu",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "abs",
    "neg",
    "erf",
    "square",
)
ROUNDINGS = ("twice", "half_away", "half_even")
LARGEST_WINDOWS = 1 << 30
"""The most elements in the windows of one command: its outputs times the taps of one."""
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
        """The number of elements, repeated ones too."""
        n, h, w, c = self.shape
        return n * h * w * c

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
    rounding: str = "twice"
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
    rounding: str = "twice"


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
    rounding: str = "twice"


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


@dataclass(frozen=True, slots=True)
class Resize:
    """Linear resizing."""

    x: View
    y: View
    rows: int
    cols: int
    zero: int = 0
    rounding: str = "twice"


Work = Barrier | Dma | Fill | Matrix | Pool | Binary | Table | Unary | Softmax | Resize
WORKS: tuple[type, ...] = get_args(Work)
ENGINE_OF: dict[type, str] = {
    Dma: "dma",
    Fill: "dma",
    Matrix: "matrix",
    Pool: "vector",
    Binary: "vector",
    Table: "vector",
    Unary: "vector",
    Softmax: "vector",
    Resize: "vector",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the node (an index into CommandStream.nodes) that it works for."""

    work: Work
    node: int


@dataclass(frozen=True, slots=True)
class Region:
    """A range of memory that commands may touch."""

    kind: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the graph."""

    id: int
    label: str


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """The place of a value once the commands of its node are done."""

    id: int
    node: int
    place: View


@dataclass(frozen=True)
class CommandStream:
    """A whole command stream."""

    device: str
    regions: tuple[Region, ...]
    nodes: tuple[NodeInfo, ...]
    values: tuple[ValueInfo, ...]
    commands: tuple[Command, ...]


def array_of(memory: Array, view: View) -> Array:
    """Return the elements of a view of a 1-D uint8 array, without a copy.

    The view must lie inside the array, which `verify` checks.
    """
    size = ITEMSIZE[view.dtype]
    start, end = view.extent
    flat = memory[start:end].view() if size == 1 else memory[start:end]
    base = np.ndarray((1,), _NUMPY[view.dtype], buffer=flat.data)
    return np.lib.stride_tricks.as_strided(base, view.shape, view.strides)


_NUMPY = {name: np.dtype(name) for name in DTYPES}
