"""Linear and cubic resizing of two neighbouring axes: weighted sums of a few taps along each.

The reference's own functions compute the elements and the weights of each result on the host.
Nearest resizing only moves elements (see `movement`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trireme.devices.opencl.kernels.elementwise import Ints, row_group
from trireme.devices.opencl.kernels.movement import lower_move, refuse_move
from trireme.devices.opencl.kernels.source import Lanes, lanes_for
from trireme.devices.opencl.kernels.tiles import indent
from trireme.devices.opencl.lowering import C_TYPES, KernelName, Lowering, Pointer
from trireme.ir.graph import Graph, Node, Rounding, TensorType
from trireme.ir.op import call_of
from trireme.ops import integer as q
from trireme.ops.resize import plan_axes, taps
from trireme.support.dtypes import Array


@dataclass(frozen=True)
class Taps:
    """The elements and weights of every result along one axis. Shapes: both [out, taps]"""

    picks: Array
    weights: Array


def _taps_by_axis(graph: Graph, node: Node) -> dict[int, Taps]:
    """Return the taps of the axes that change."""
    shape, attrs = graph.type(node.used[0]).dims, node.attrs
    data = [None if v is None else graph.values[v].data for v in node.inputs[1:]]
    _, scales, sizes = (*data, None, None, None)[:3]
    axes: Ints = attrs["axes"] or tuple(range(len(shape)))
    by_scale = scales is not None and scales.size > 0
    plans = plan_axes(
        shape,
        tuple(float(v) for v in scales.reshape(-1)) if scales is not None and by_scale else None,
        None if sizes is None or by_scale else tuple(int(v) for v in sizes.reshape(-1)),
        tuple(axis % len(shape) for axis in axes),
        str(attrs["keep_aspect_ratio_policy"]),
    )
    found = {}
    for axis, plan in plans.items():
        if plan.out == plan.size and plan.scale == 1:
            continue
        picks, weights, _ = taps(
            plan,
            mode=attrs["mode"],
            transform=attrs["coordinate_transformation_mode"],
            rounding=attrs["nearest_mode"],
            cubic_a=attrs["cubic_coeff_a"],
            exclude=bool(attrs["exclude_outside"]),
            antialias=bool(attrs["antialias"]),
        )
        found[axis] = Taps(picks, weights)
    return found


def _first_axis(axes: list[int]) -> int | None:
    """Return the first of two neighbouring axes that hold all of `axes`; None if they do not."""
    first = min(axes, default=0)
    return first if all(axis in (first, first + 1) for axis in axes) else None


def refuse_resize(graph: Graph, node: Node) -> str | None:
    """Return why there is no float kernel for a resize, or None."""
    if node.attrs["mode"] == "nearest":
        return refuse_move(graph, node)
    if graph.type(node.used[0]).dtype != "float32":
        return f"no kernel for {graph.type(node.used[0]).dtype} (has float32)"
    fixed = all(graph.values[v].is_constant for v in node.used[1:])
    if not fixed or node.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize":
        return "no kernel for sizes that are not constant or for tf_crop_and_resize"
    if _first_axis(list(_taps_by_axis(graph, node))) is None:
        return "no kernel for axes that are not neighbours"
    return None


def lower_resize(low: Lowering, chain: list[Node]) -> None:
    """Emit a float resize."""
    node, graph = chain[0], low.graph
    if node.attrs["mode"] == "nearest":
        lower_move(low, chain)
        return
    found = _taps_by_axis(graph, node)
    first = _first_axis(list(found)) or 0
    dims = (*graph.type(node.used[0]).dims, 1)
    along = [found.get(axis, _identity(dims[axis], np.float32)) for axis in (first, first + 1)]
    _emit(low, chain, first, along, "float")


def refuse_quantized_resize(graph: Graph, node: Node) -> str | None:
    """Return why there is no kernel for a resize of quantised values, or None."""
    q.same_quant(call_of(graph, node))
    if node.attrs["mode"] == "nearest":
        return refuse_move(graph, node)
    return q.resize_reason(call_of(graph, node))


def lower_quantized_resize(low: Lowering, chain: list[Node]) -> None:
    """Emit a resize of stored integers: see quantize.ResizeAxis."""
    node = chain[0]
    if node.attrs["mode"] == "nearest":
        lower_move(low, chain)
        return
    along = []
    for plan in q.resize_axes(call_of(low.graph, node)):
        picks = np.stack([plan.lower, plan.upper], axis=1)
        along.append(Taps(picks, np.stack([1024 - plan.fraction, plan.fraction], axis=1)))
    _emit(low, chain, 1, along, "int")


def _identity(size: int, dtype: type[np.float32]) -> Taps:
    return Taps(np.arange(size)[:, None], np.ones((size, 1), dtype))


def _emit(low: Lowering, chain: list[Node], first: int, along: list[Taps], ctype: str) -> None:
    """Emit y[outer, oh, ow, inner] as sums of taps in H and W."""
    node, graph = chain[0], low.graph
    type = graph.type(node.used[0])
    dims = (*type.dims, 1)
    outer, inner = math.prod(dims[:first]), math.prod(dims[first + 2 :])
    lanes = Lanes(lanes_for(inner, low.tuning.vector))
    kind, zero = lanes.type(ctype), lanes.splat(ctype, "0")
    value = lanes.load(type.dtype, "x + (rows + column[ow * TW + j]) * C + at")
    if ctype == "int":
        value = lanes.convert("int", value)
    lines = [
        f"const int at = min(i0 * {lanes.n}, C - {lanes.n});",
        "const int ow = i1, oh = i2 % OH, n = i2 / OH;",
        f"{kind} s = {zero};",
        "for (int i = 0; i < TH; i++) {",
        "const int rows = (n * H + row[oh * TH + i]) * W;",
        f"{kind} p = {zero};",
        f"for (int j = 0; j < TW; j++) p += {value} * {lanes.splat(ctype, 'cw[ow * TW + j]')};",
        f"s += p * {lanes.splat(ctype, 'rw[oh * TH + i]')};",
        "}",
        *_end(lanes, graph.type(node.outputs[0]), ctype),
    ]
    tensors = [Pointer("x", C_TYPES[type.dtype], low.ref(node.used[0]))]
    names = (("row", "rw"), ("column", "cw"))
    for (pick, weight), each in zip(names, along, strict=True):
        wide = np.int32 if ctype == "int" else np.float32
        place = low.constant(each.picks.astype(np.int32), (pick, node.id))
        tensors.append(Pointer(pick, "int", place))
        tensors.append(
            Pointer(weight, ctype, low.constant(each.weights.astype(wide), (weight, node.id)))
        )
    tensors.append(Pointer("y", C_TYPES[type.dtype], low.ref(node.outputs[0]), writes=True))
    (oh, th), (ow, tw) = along[0].picks.shape, along[1].picks.shape
    items = -(-inner // lanes.n)
    low.emit(
        chain,
        KernelName("resize", f"{node.attrs['mode']}_{type.dtype}"),
        tensors,
        (items, ow, outer * oh),
        indent(lines),
        group=(*row_group(low, items), 1),
        scalars={
            "C": inner,
            "H": dims[first],
            "W": dims[first + 1],
            "OH": oh,
            "OW": ow,
            "TH": th,
            "TW": tw,
        },
    )


def _end(lanes: Lanes, y: TensorType, ctype: str) -> list[str]:
    place = "y + ((n * OH + oh) * OW + ow) * C + at"
    if ctype == "float":
        return [lanes.store(y.dtype, "s", place)]
    half, bits, one, last = (lanes.splat("int", n) for n in (str(1 << 19), "20", "1", "31"))
    more = f"(s >> {last})"
    if y.quant is not None and y.quant.rounding is Rounding.HALF_EVEN:
        zero = lanes.splat("int", str(y.quant.zero_point))
        more = f"((((s >> {bits}) - {zero}) & {one}) - {one})"
    value = f"(s + {half} + {more}) >> {bits}"
    return [lanes.store(y.dtype, lanes.convert(C_TYPES[y.dtype], value), place)]
