"""Turn a graph into steps: kernels with source, arguments and work sizes, and packed constants.

The functions in `kernels/` emit a node's steps through a `Lowering`; `region` binds the steps to
memory. An argument of a kernel is a place (`Ref`): a value of the graph, a packed constant or a
temporary. Kernels get each place as a buffer and an offset in bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trireme.backend.arena import align_up
from trireme.devices.opencl.tuning import BlockCut, Tuning
from trireme.ir.graph import Graph, Node
from trireme.ir.op import Call, call_of
from trireme.support.dtypes import Array

ALIGNMENT = 64
"""Alignment in bytes of constants and intermediates within their buffers."""

C_TYPES: Mapping[str, str] = {
    "float32": "float",
    "float16": "half",
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "bool": "uchar",
}


@dataclass(frozen=True)
class Ref:
    """A place in memory that is known when the executable is bound."""

    space: Literal["value", "constant", "temporary", "report"]
    key: int


@dataclass(frozen=True)
class Pointer:
    """A pointer argument of a kernel: its name and element type in the source, and its place."""

    name: str
    ctype: str
    ref: Ref
    writes: bool = False


@dataclass(frozen=True)
class Report:
    """A kernel's report of wrong indices, and the error of the run.

    The kernel keeps the greatest of `count` minus the position of a wrong index, in an int that
    starts at 0. It keeps the index itself in a list of `count` longs. So the report names the first
    wrong index, whatever the order of its items.
    message: the sentence of the RunError, made of the first wrong index
    """

    count: int
    message: Callable[[int], str]


SIGNED: Mapping[str, str] = {"u8": "s8", "uint8": "int8", "uchar": "char"}
"""Forms of unsigned bytes, and those of signed bytes."""

Traffic = Literal["whole", "as written", "as read"]


@dataclass(frozen=True)
class KernelName:
    """The facts of a kernel, for its name and for estimates.

    does: its work ("conv", "depthwise")
    form: its dtype or method ("f32", "strided")
    family: kernels that grow alike and share a fit; does_form if not given. Signed and unsigned
        bytes share one, because their kernels differ in one conversion
    tile: rows and columns of results that an item of a product makes
    variant: distinguishes kernels with the same work
    fused: ops behind the first
    traffic: whether it reads and writes whole tensors. A partial read counts as many bytes as it
        writes, and a partial write as many as it reads.
    cut: the blocks of a product through local memory
    """

    does: str
    form: str = ""
    family: str = ""
    tile: tuple[int, int] | None = None
    variant: str = ""
    fused: tuple[str, ...] = ()
    traffic: Traffic = "whole"
    cut: BlockCut | None = None

    def __post_init__(self) -> None:
        form = SIGNED.get(self.form, self.form)
        own = f"{self.does}_{form}" if form else self.does
        object.__setattr__(self, "family", self.family or own)

    @property
    def _base(self) -> str:
        return f"{self.does}_{self.form}" if self.form else self.does

    def __str__(self) -> str:
        tile = f"_{self.tile[0]}x{self.tile[1]}" if self.tile else ""
        return "+".join([f"{self._base}{tile}{self.variant}", *self.fused])


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of one kernel; `kernel` is its name in the source."""

    nodes: tuple[int, ...]
    name: KernelName
    kernel: str
    tensors: tuple[Pointer, ...]
    scalars: tuple[int, ...]
    work: tuple[int, ...]
    group: tuple[int, ...]


@dataclass
class Lowering:
    """The result of the lowering of one graph so far."""

    graph: Graph
    tuning: Tuning
    half_weights: bool = False
    steps: list[KernelLaunch] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    constant_offsets: list[int] = field(default_factory=list)
    constant_bytes: int = 0
    temporaries: list[int] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    kernels: dict[int, str] = field(default_factory=dict)
    widened: dict[tuple[int, int], Ref] = field(default_factory=dict)
    _known: dict[Any, Ref] = field(default_factory=dict)

    def call(self, node: Node) -> Call:
        """Return the Call of a node."""
        return call_of(self.graph, node)

    def ref(self, value: int) -> Ref:
        """Return the place of a value; a constant's data is uploaded unchanged."""
        data = self.graph.values[value].data
        if data is not None:
            return self.constant(data, ("value", value))
        while value in self.aliases:
            value = self.aliases[value]
        return Ref("value", value)

    def constant(self, data: Array, key: Any) -> Ref:
        """Return the place of a packed constant, uploaded once for each key."""
        if key not in self._known:
            flat = np.ascontiguousarray(data)
            self._known[key] = Ref("constant", len(self.constants))
            self.constants.append(flat)
            self.constant_offsets.append(self.constant_bytes)
            self.constant_bytes += align_up(max(flat.nbytes, 1), ALIGNMENT)
        return self._known[key]

    def packed(self, key: Any, make: Callable[[], Array]) -> Ref:
        """Return the place of a constant that is made only if the key is new."""
        return self._known[key] if key in self._known else self.constant(make(), key)

    def temporary(self, nbytes: int) -> Ref:
        """Return a place for bytes that live from the next emitted step to the one after.

        It is live in every step that names it, and in the steps between.
        """
        self.temporaries.append(nbytes)
        return Ref("temporary", len(self.temporaries) - 1)

    def report(self, count: int, message: Callable[[int], str]) -> tuple[Pointer, Pointer]:
        """Return a kernel's arguments `first` and `wrong` for a report on `count` indices."""
        self.reports.append(Report(count, message))
        key = 2 * len(self.reports) - 2
        return (
            Pointer("first", "int", Ref("report", key), writes=True),
            Pointer("wrong", "long", Ref("report", key + 1), writes=True),
        )

    def emit(
        self,
        nodes: Sequence[Node],
        name: KernelName,
        tensors: Sequence[Pointer],
        work: Sequence[int],
        body: str,
        *,
        scalars: Mapping[str, int] | None = None,
        baked: Mapping[str, int] | None = None,
        group: Sequence[int] = (),
        local: bool = False,
    ) -> None:
        """Add one launch.

        body: finds its item in i0, i1, i2, which never reach beyond `work`
        scalars: int arguments
        baked: constants in the source
        local: the work is a multiple of the group, and every item enters the body, as barriers need
        """
        for node in nodes:
            self.kernels[node.id] = str(name)
        if 0 in work:
            return
        sizes = tuple(work)
        group = fit_group(sizes, tuple(group) or (self.tuning.group,), local)
        items = {f"W{axis}": size for axis, size in enumerate(sizes)}
        full = dict(scalars or {}) | ({} if local else items)
        text = _kernel_text(tensors, list(full), baked or {}, sizes, group, body, local)
        digest = hashlib.sha256(text.encode()).hexdigest()[:20]
        kernel = f"k{digest}"
        self.sources[kernel] = text.replace("KERNEL_NAME", kernel)
        self.steps.append(
            KernelLaunch(
                tuple(node.id for node in nodes),
                name,
                kernel,
                tuple(tensors),
                tuple(full.values()),
                round_up(sizes, group),
                group,
            )
        )


def fit_group(sizes: tuple[int, ...], group: tuple[int, ...], exact: bool) -> tuple[int, ...]:
    """Return a work-group size of the rank of `sizes`, not larger than the work needs."""
    padded = group + (1,) * (len(sizes) - len(group))
    if exact:
        return padded[: len(sizes)]
    return tuple(
        min(wanted, 1 << max(size - 1, 0).bit_length())
        for wanted, size in zip(padded, sizes, strict=False)
    )


def round_up(sizes: tuple[int, ...], group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes as multiples of the group."""
    return tuple(align_up(size, step) for size, step in zip(sizes, group, strict=True))


def _kernel_text(
    tensors: Sequence[Pointer],
    scalars: Sequence[str],
    baked: Mapping[str, int],
    work: tuple[int, ...],
    group: tuple[int, ...],
    body: str,
    local: bool,
) -> str:
    sizes = ", ".join(map(str, group + (1,) * (3 - len(group))))
    params = [
        f"__global {'' if t.writes else 'const '}uchar *restrict {t.name}_, ulong {t.name}_at"
        for t in tensors
    ]
    params += [f"int {name}" for name in scalars]
    lines = [
        f"__kernel __attribute__((reqd_work_group_size({sizes})))",
        f"void KERNEL_NAME({', '.join(params)}) {{",
    ]
    for t in tensors:
        kind = f"__global {'' if t.writes else 'const '}{t.ctype}"
        lines.append(f"  {kind} *restrict {t.name} = ({kind} *)({t.name}_ + {t.name}_at);")
    lines += [f"  const int {name} = {value};" for name, value in baked.items()]
    lines += [f"  const int i{axis} = (int)get_global_id({axis});" for axis in range(len(work))]
    if not local:
        guards = [f"i{axis} >= W{axis}" for axis in range(len(work))]
        lines.append(f"  if ({' || '.join(guards)}) return;")
    return "\n".join([*lines, body.rstrip(), "}", ""])
