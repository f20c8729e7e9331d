"""The NPU's constraints on a node: each is a function whose docstring is the user's sentence.

A constraint returns "" where it holds, else the facts that follow the sentence. `constraints`
prints the whole list, so the page of supported ops cannot go stale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from trireme.backend.kernel_table import form_of, layout_of
from trireme.backend.refusal import Refusal
from trireme.devices.npu.compiler.compile import TABLE, WINDOWS
from trireme.devices.npu.compiler.jobs import PackedConstants, Site
from trireme.devices.npu.compiler.lower import NpuLowering, lower_node
from trireme.devices.npu.compiler.lower_matrix import effective_strides
from trireme.devices.npu.compiler.residency import live_ranges
from trireme.devices.npu.spec import NpuSpec
from trireme.devices.npu.stream.commands import SCRATCH, dense
from trireme.ir.graph import Graph, Node, TensorType
from trireme.ir.op import Call, call_of, get_op
from trireme.ops.shapes import may_miss
from trireme.support.cached import cached_property
from trireme.support.errors import GraphError


@dataclass(frozen=True)
class Options:
    """The device's options: whether float32 tensors are computed in float16."""

    float32_as_float16: bool = False


@dataclass(frozen=True)
class Subject:
    """A node under test."""

    machine: NpuSpec
    options: Options
    graph: Graph
    node: Node

    @cached_property
    def call(self) -> Call:
        """The node as a Call of its op."""
        return call_of(self.graph, self.node)

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        """Types of all inputs and outputs."""
        return tuple(self.graph.type(v) for v in (*self.node.used, *self.node.outputs))

    @cached_property
    def tensors(self) -> tuple[TensorType, ...]:
        """Types of run-time tensors: inputs that are not constant, and outputs."""
        values = (*self.node.used, *self.node.outputs)
        return tuple(self.graph.type(v) for v in values if not self.graph.values[v].is_constant)

    @cached_property
    def lowered(self) -> NpuLowering | str:
        """The node's jobs, or the sentence on why it has none."""
        state = NpuLowering(self.graph, self.machine, PackedConstants(self.machine.alignment))
        try:
            lower_node(state, self.node, TABLE)
        except GraphError as error:
            return error.summary
        return state


def known_op(s: Subject) -> str:
    """the op must be one of the NPU's"""
    if s.node.op not in TABLE.ops():
        return f"{s.node.op}{_nearest(s)}"
    return s.node.op if s.machine.ops and s.node.op not in s.machine.ops else ""


def _nearest(s: Subject) -> str:
    near = TABLE.nearest(s.node.op, layout_of(s.node), form_of(s.graph, s.node))
    return f"; nearest: {', '.join(map(str, near))}" if near else ""


def no_graphs(s: Subject) -> str:
    """control flow stays on the host: attributes may not hold graphs"""
    held = [key for key, value in s.node.attrs.items() if isinstance(value, Graph)]
    return ", ".join(held)


def no_functions(s: Subject) -> str:
    """the host calls Python functions"""
    return s.node.attrs["operator"].name if get_op(s.node.op).calls_python else ""


def no_effect(s: Subject) -> str:
    """ops with effects stay on the host"""
    return s.node.op if get_op(s.node.op).effect or s.node.after else ""


def static_shapes(s: Subject) -> str:
    """shapes must be known before the run"""
    return next((str(t) for t in s.types if not t.is_static), "")


def some_elements(s: Subject) -> str:
    """tensors must have elements"""
    return next((str(t) for t in s.tensors if t.elements == 0), "")


def known_dtypes(s: Subject) -> str:
    """tensors must be of a dtype that the NPU has"""
    allowed = set(s.machine.dtypes) | ({"float32"} if s.options.float32_as_float16 else set())
    wrong = next((t for t in s.tensors if t.dtype not in allowed), None)
    if wrong is None:
        return ""
    hint = "; open it with float32='float16', or --float16, to round"
    known = ", ".join(sorted(allowed))
    return f"{wrong}, it has {known}{hint if wrong.dtype == 'float32' else ''}"


def quantised_integers(s: Subject) -> str:
    """int8 and uint8 tensors must be quantised, except where elements only move"""
    if get_op(s.node.op).moves:
        return ""
    plain = (t for t in s.tensors if t.dtype in ("int8", "uint8") and t.quant is None)
    return next(map(str, plain), "")


def channels_last(s: Subject) -> str:
    """images must be channels-last (NHWC)"""
    layout = layout_of(s.node)
    return "" if layout == "NHWC" else f"{layout}{_nearest(s)}"


def known_form(s: Subject) -> str:
    """the NPU must have the op for the form of its data"""
    return "" if TABLE.find(s.graph, s.node) else TABLE.miss(s.graph, s.node)


def two_spatial_axes(s: Subject) -> str:
    """windows have one or two spatial axes"""
    strides = s.node.attrs.get("strides", ())
    return "" if len(strides or ()) <= 2 else f"{len(strides)} axes"


def kernel_limit(s: Subject) -> str:
    """kernel sides must be within the machine's limit"""
    sides = _kernel(s)
    limit = s.machine.limits.kernel
    return f"{'x'.join(map(str, sides))}, the limit is {limit}" if max(sides) > limit else ""


def stride_limit(s: Subject) -> str:
    """strides must be within the machine's limit"""
    strides, limit = effective_strides(s.call), s.machine.limits.stride
    return f"{strides}, the limit is {limit}" if max(strides) > limit else ""


def dilation_limit(s: Subject) -> str:
    """dilations must be within the machine's limit"""
    dilations, limit = s.node.attrs["dilations"], s.machine.limits.dilation
    return f"{dilations}, the limit is {limit}" if max(dilations) > limit else ""


def windows_meet_image(s: Subject) -> str:
    """windows of quantised average_pool must not hold pads alone"""
    if s.types[0].quant is None:
        return ""
    pads, dilations = s.node.attrs["pads"], s.node.attrs["dilations"]
    space, kernel, half = s.types[0].dims[1:-1], _kernel(s), len(pads) // 2
    axes = zip(space, kernel, zip(pads[:half], pads[half:], strict=True), dilations, strict=True)
    return f"pads {pads}" if any(may_miss(*axis) for axis in axes) else ""


def constant_weights(s: Subject) -> str:
    """the weight and bias of a conv must be constants"""
    for position, name in ((1, "weight"), (2, "bias")):
        value = s.call.input(position)
        if value is not None and not value.is_constant:
            return name
    return ""


def batch_limit(s: Subject) -> str:
    """a matmul multiplies at most 4096 matrices"""
    count = math.prod(s.call.outputs[0].dims[:-2])
    return f"{count} matrices" if count > 4096 else ""


def can_be_lowered(s: Subject) -> str:
    """not every form of an op is for the NPU"""
    return "" if isinstance(s.lowered, NpuLowering) else s.lowered


def fits_sram(s: Subject) -> str:
    """the smallest tile of every step must fit SRAM"""
    state = s.lowered
    if not isinstance(state, NpuLowering):
        return state
    places = dict(state.places)
    for value in live_ranges(state.jobs, state.stored, set(places), s.machine.alignment):
        dtype, elements = state.stored[value]
        places[value] = dense(SCRATCH, 0, dtype, (1, 1, 1, elements))
    site = Site(s.machine, state.constants, places)
    needed = max((job.least_bytes(site) for job in state.jobs), default=0)
    room = s.machine.sram.bytes - s.machine.alignment
    return f"{needed} bytes of {room}" if needed > room else ""


def _kernel(s: Subject) -> tuple[int, ...]:
    kernel = s.node.attrs.get("kernel")
    return s.call.type(1).dims[1:-1] if kernel is None else tuple(kernel)


Constraint = Callable[[Subject], str]
_STRIDED = ("conv", "max_pool", "average_pool")
CONSTRAINTS: tuple[tuple[Constraint, tuple[str, ...]], ...] = (
    (no_graphs, ()),
    (no_functions, ()),
    (no_effect, ()),
    (known_op, ()),
    (static_shapes, ()),
    (some_elements, ()),
    (known_dtypes, ()),
    (quantised_integers, ()),
    (channels_last, WINDOWS),
    (known_form, ()),
    (two_spatial_axes, WINDOWS),
    (constant_weights, ("conv", "conv_transpose")),
    (kernel_limit, WINDOWS),
    (stride_limit, _STRIDED),
    (dilation_limit, WINDOWS),
    (windows_meet_image, ("average_pool",)),
    (batch_limit, ("matmul",)),
    (can_be_lowered, ()),
    (fits_sram, ()),
)
"""The constraints in the order of the checks; each with its ops, none meaning all."""


def reason_against(machine: NpuSpec, options: Options, graph: Graph, node: Node) -> str | None:
    """Return None if the NPU can run the node, else one sentence."""
    subject = Subject(machine, options, graph, node)
    for constraint, ops in CONSTRAINTS:
        if ops and node.op not in ops:
            continue
        facts = constraint(subject)
        if facts:
            return Refusal(sentence(constraint), facts)
    return None


def sentence(constraint: Constraint) -> str:
    """Return the sentence of a constraint."""
    return (constraint.__doc__ or constraint.__name__).strip()


def sentences() -> tuple[str, ...]:
    """Return every constraint's sentence, with its ops unless it holds for all."""
    return tuple(
        sentence(constraint) + (f" ({', '.join(ops)})" if ops else "")
        for constraint, ops in CONSTRAINTS
    )


def supported_ops() -> tuple[str, ...]:
    """Return the ops of the NPU."""
    return TABLE.ops()
