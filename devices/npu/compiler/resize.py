"""Linear resizing: the job, cut into tiles of rows and channels, and its lowering."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trireme.backend.arena import align_up
from trireme.devices.npu.compiler.emit import ALIGN, Emitter
from trireme.devices.npu.compiler.jobs import BoxedValue, Job, Site, boxes
from trireme.devices.npu.compiler.lower import NpuLowering, constant_ints, is_integer
from trireme.devices.npu.compiler.tiling import splits
from trireme.devices.npu.stream.commands import Resize, View
from trireme.ir.graph import Node, Quant, Rounding
from trireme.ir.op import Call
from trireme.ops import integer as q
from trireme.ops.resize import plan_axes, taps
from trireme.support.dtypes import Array
from trireme.support.errors import GraphError


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Along one axis, for every output: lower and upper input, and the weight of the upper one.

    Shapes: lower, upper int32 [out]; weight int32 (in 1/1024) or float32 [out]
    """

    lower: Array
    upper: Array
    weight: Array

    def table(self, start: int, stop: int, first: int) -> Array:
        """Return the engine's table of some outputs, for an input tile that begins at `first`."""
        rows = (self.lower[start:stop] - first, self.upper[start:stop] - first)
        weight = np.ascontiguousarray(self.weight[start:stop]).view(np.int32)
        return np.concatenate([*(np.asarray(row, np.int32) for row in rows), weight])

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first input that these outputs read, and the one behind the last."""
        low = min(int(self.lower[start:stop].min()), int(self.upper[start:stop].min()))
        high = max(int(self.lower[start:stop].max()), int(self.upper[start:stop].max()))
        return low, high + 1


@dataclass
class ResizeJob(Job):
    """Rows and columns of an image [n,h,w,c]."""

    x: BoxedValue
    y: BoxedValue
    rows: Neighbours
    cols: Neighbours
    quant: Quant | None

    def least_bytes(self, site: Site) -> int:
        """Return the bytes of one output row of one channel."""
        return self._bytes(site, 1, 1, 1)

    def wanted_bytes(self, site: Site) -> int:
        """Return the bytes of the whole image."""
        _, oh, _, c = self.y.layout.shape
        return self._bytes(site, oh, c, 1)

    def emit(self, out: Emitter, site: Site, budget: int) -> None:
        """Emit the tiles, channels outside of rows."""
        n, oh, ow, c = self.y.layout.shape
        height, depth, copies = self._choose(site, budget)
        x_bytes, y_bytes = self._tile_bytes(site, height, depth)
        ring_x, ring_y = out.ring(x_bytes, copies), out.ring(y_bytes, copies)
        ring_rows, ring_cols = out.ring(12 * height, copies), out.ring(12 * ow)
        cols = out.fetch(ring_cols, self._blob(site, "cols", self.cols, 0, ow, 0)).offset
        x, y = self.x.view(site), self.y.view(site)
        for start, shape in boxes((n, oh, 1, c), (1, height, 1, depth)):
            top, bottom = self.rows.reach(start[1], start[1] + shape[1])
            box = (1, bottom - top, x.shape[2], shape[3])
            tile = out.fetch(
                ring_x, x.box((start[0], top, 0, start[3]), box), site.dtype(self.x.value)
            )
            blob = self._blob(site, "rows", self.rows, start[1], start[1] + shape[1], top)
            rows = out.fetch(ring_rows, blob).offset
            target = y.box(start, (1, shape[1], ow, shape[3]))
            staged = out.stage(ring_y, target, site.dtype(self.y.value))
            out.add(Resize(tile, staged, rows, cols, *self._rounding()))
            out.commit(staged, target)

    def _rounding(self) -> tuple[int, str]:
        """Return the zero point of the result and how it is rounded."""
        if self.quant is None:
            return 0, Rounding.HALF_AWAY
        return self.quant.zero_point, self.quant.rounding or Rounding.HALF_AWAY

    def _blob(
        self, site: Site, axis: str, table: Neighbours, start: int, stop: int, first: int
    ) -> View:
        def make() -> Array:
            return table.table(start, stop, first)

        key = ("resize", self.node, axis, start)
        return site.constants.reserve(key, 12 * (stop - start), make)

    def _choose(self, site: Site, budget: int) -> tuple[int, int, int]:
        """Return rows, channels and buffers of the largest tiles that fit, two buffers first."""
        for copies in (2, 1):
            for height, depth in self._candidates():
                if self._bytes(site, height, depth, copies) <= budget:
                    return height, depth, copies
        return 1, 1, 1

    def _candidates(self) -> Iterator[tuple[int, int]]:
        _, oh, _, c = self.y.layout.shape
        yield from ((height, c) for height in splits(oh))
        yield from ((1, depth) for depth in splits(c))

    def _bytes(self, site: Site, height: int, depth: int, copies: int) -> int:
        x, y = self._tile_bytes(site, height, depth)
        columns = align_up(12 * self.y.layout.shape[2], ALIGN)
        buffers = align_up(x, ALIGN) + align_up(y, ALIGN) + align_up(12 * height, ALIGN)
        return copies * buffers + columns + 5 * ALIGN

    def _tile_bytes(self, site: Site, height: int, depth: int) -> tuple[int, int]:
        _, oh, ow, _ = self.y.layout.shape
        spans = (self.rows.reach(h, min(h + height, oh)) for h in range(0, oh, height))
        most = max(stop - start for start, stop in spans)
        x = most * self.x.layout.shape[2] * depth * site.width(self.x.value)
        return x, height * ow * depth * site.width(self.y.value)


def lower_linear(state: NpuLowering, node: Node, call: Call) -> None:
    """Lower linear resizing of rows and columns.

    Errors: GraphError, if other axes change or the coordinates have no two neighbours
    """
    x, y = call.type(0).dims, call.outputs[0].dims
    if len(x) != 4 or x[::3] != y[::3]:
        raise GraphError("linear resizing is for rows and columns of NHWC images")
    for name in ("antialias", "exclude_outside"):
        if call.attrs[name]:
            raise GraphError(f"linear resizing with {name} is not supported")
    find = _integers if is_integer(call) else _floats
    if find is _integers:
        q.same_quant(call)
        if reason := q.resize_reason(call):
            raise GraphError(reason)
    rows, cols = find(call)
    source, target = state.operand(node.inputs[0]), state.operand(node.outputs[0])
    reads, quant = (source.value,), call.outputs[0].quant
    state.jobs.append(ResizeJob(state.node, reads, target.value, source, target, rows, cols, quant))


def _integers(call: Call) -> tuple[Neighbours, Neighbours]:
    rows, cols = (Neighbours(m.lower, m.upper, m.fraction) for m in q.resize_axes(call))
    return rows, cols


def _floats(call: Call) -> tuple[Neighbours, Neighbours]:
    how = str(call.attrs["coordinate_transformation_mode"])
    if how == "tf_crop_and_resize":
        raise GraphError(f"coordinates {how!r} are not supported")
    x = call.type(0).dims
    axes = tuple(axis % 4 for axis in call.attrs["axes"] or range(4))
    scales = call.input(2)
    factors = None
    if scales is not None and scales.data is not None and scales.data.size:
        factors = tuple(float(s) for s in scales.data.reshape(-1))
    sizes = None if factors else constant_ints(call, 3)
    plans = plan_axes(x, factors, sizes, axes, str(call.attrs["keep_aspect_ratio_policy"]))
    made = []
    for axis in (1, 2):
        plan = plans.get(axis)
        if plan is None or (plan.out == plan.size and plan.scale == 1):
            same = np.arange(x[axis], dtype=np.int32)
            made.append(Neighbours(same, same, np.zeros(x[axis], np.float32)))
            continue
        picks, weights, _ = taps(
            plan,
            mode="linear",
            transform=how,
            rounding="floor",
            cubic_a=0.0,
            exclude=False,
            antialias=False,
        )
        made.append(Neighbours(picks[:, 0], picks[:, -1], weights[:, -1].astype(np.float32)))
    return made[0], made[1]
