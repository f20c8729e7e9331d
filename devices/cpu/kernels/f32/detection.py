"""detection_post_process: a detector's best scores in one step, its few detections in another.

The first step takes each anchor's best class. The second visits anchors by falling score, with one
scan of all scores for each, until enough are kept: detectors keep ten or so. Only visited boxes are
decoded.
"""

from __future__ import annotations

import math
from dataclasses import replace

from trireme.devices.cpu.codegen import mathfn
from trireme.devices.cpu.codegen.ir import Function, Index, Value, Var
from trireme.devices.cpu.codegen.kernel_cache import Code
from trireme.devices.cpu.codegen.llvm_types import vector
from trireme.devices.cpu.codegen.target import Isa
from trireme.devices.cpu.kernels.f32.rows import across, keep
from trireme.devices.cpu.kernels.lowering import (
    TABLE,
    Context,
    Operand,
    Rule,
    Step,
    Temp,
    begin,
    deal,
    finish,
    float_reason,
)
from trireme.ir.graph import Graph, Node
from trireme.support.records import dataclass

_MOST_ANCHORS = 1 << 14
"""More would make the scans of the second step longer than signals may wait."""


@dataclass(frozen=True)
class Detector:
    """The sizes and limits of a detector; `columns` of scores, the last `classes` of them count."""

    anchors: int
    coordinates: int
    columns: int
    classes: int
    most: int
    best: int
    scales: tuple[float, ...]
    least_score: float
    iou: float

    @property
    def classes_each(self) -> int:
        """Classes that each detection reports."""
        return min(self.best, self.classes)


def best_kernel(
    isa: Isa, anchors: int, columns: int, classes: int, least_score: float
) -> tuple[Code, int, float]:
    """Return the kernel of each anchor's best score, its chunks and seconds.

    Operands: scores [A, columns], the best [A]: NaN where that is below the least score
    """
    fn, (x, y), chunk, _ = begin("detection_best_f32", isa, 2)
    vectors = -(-classes // isa.lanes)
    seconds = anchors * (3 * vectors + 20) / 3e9
    size, chunks = deal(anchors, seconds)
    first: Index = chunk * size if chunks > 1 else 0
    type = vector(isa.lanes, "float")
    for anchor in fn.range(first, fn.minimum(first + size, anchors)):
        row = fn.at(x, anchor * columns + (columns - classes))
        best = Var(fn, type, -math.inf)
        whole = classes // isa.lanes * isa.lanes
        for k in fn.range(0, whole, isa.lanes):
            best.set(mathfn.maximum(fn, best.get(), fn.load(type, fn.at(row, k))))
        if whole < classes:
            tail = fn.load_some(type, fn.at(row, whole), classes - whole)
            tail = keep(fn, tail, classes - whole, -math.inf)
            best.set(mathfn.maximum(fn, best.get(), tail))
        top = fn.extract(across(fn, best.get(), lambda a, b: mathfn.maximum(fn, a, b)), 0)
        is_candidate = fn.compare("oge", top, least_score)
        fn.store(fn.select(is_candidate, top, math.nan), fn.at(y, anchor))
    return finish(fn), chunks, seconds


def suppress_kernel(isa: Isa, detector: Detector) -> tuple[Code, int, float]:
    """Return the kernel of the detections, the bytes of its thread's own and its seconds.

    Operands: boxes [A,4+], scores, anchors [A,4], the best scores (which are used up), detections
    [D,4], classes [D], scores [D], count
    """
    fn, operands, _, local = begin("detection_suppress_f32", isa, 8)
    _Suppressor(fn, detector, operands, local).emit()
    scan_s = detector.anchors / isa.lanes * 4 / 3e9
    return finish(fn), 16 * detector.most + 8 * isa.lanes, (3 * detector.most + 1) * scan_s


class _Suppressor:
    """Writes the visits of anchors by falling score."""

    def __init__(
        self, fn: Function, detector: Detector, operands: list[Value], local: Value
    ) -> None:
        self.fn, self.detector = fn, detector
        self.boxes, self.scores, self.anchors, self.best, *self.outputs = operands
        self.kept = local
        self.lanes = fn.isa.lanes
        self.values = fn.at(local, 4 * detector.most)
        self.indices = fn.at(self.values, self.lanes)

    def emit(self) -> None:
        """Emit all visits, and the count."""
        fn, detector = self.fn, self.detector
        entries = detector.most * detector.best
        for output, width in zip(self.outputs, (4, 1, 1), strict=False):
            for k in fn.range(0, entries * width):
                fn.store(fn.as_value("float", 0.0), fn.at(output, k))
        self.count = Var(fn, "i64", 0)
        open_ = Var(fn, "i64", 1)
        for _ in fn.range(0, detector.anchors):
            with fn.when(fn.compare("ne", open_.get(), 0)):
                anchor = self._next()
                for is_found in fn.either(fn.compare("sge", anchor, 0)):
                    if is_found:
                        self._visit(anchor)
                        is_full = fn.compare("sge", self.count.get(), detector.most)
                        open_.set(fn.select(is_full, fn.as_value("i64", 0), fn.as_value("i64", 1)))
                    else:
                        open_.set(0)
        fn.store(fn.convert("sitofp", self.count.get(), "float"), self.outputs[3])

    def _next(self) -> Value:
        """Return the anchor of the best score that is left, the first of ties; -1 for none."""
        fn, lanes, total = self.fn, self.lanes, self.detector.anchors
        type, whole = vector(lanes, "float"), total // lanes * lanes
        integers = vector(lanes, "i32")
        value, index = Var(fn, type, -math.inf), Var(fn, integers, -1)
        steps = ", ".join(f"i32 {lane}" for lane in range(lanes))
        lane_numbers = Value(fn, integers, f"<{steps}>")

        def look(at: Index, count: int) -> None:
            found = fn.load_some(type, fn.at(self.best, at), count)
            if count < lanes:
                found = keep(fn, found, count, -math.inf)
            base = fn.convert("trunc", fn.as_value("i64", at), "i32")
            numbers = lane_numbers + fn.splat(base, lanes)
            is_more = fn.compare("ogt", found, value.get())
            value.set(fn.select(is_more, found, value.get()))
            index.set(fn.select(is_more, numbers, index.get()))

        for at in fn.range(0, whole, lanes):
            look(at, lanes)
        if whole < total:
            look(whole, total - whole)
        fn.store(value.get(), self.values)
        fn.store(index.get(), self.indices)
        return self._first_of_lanes()

    def _first_of_lanes(self) -> Value:
        """Return the least index among the lanes of the greatest value."""
        fn = self.fn
        top, place = Var(fn, "float", -math.inf), Var(fn, "i32", -1)
        for lane in fn.range(0, self.lanes):
            value = fn.load("float", fn.at(self.values, lane))
            index = fn.load("i32", fn.at(self.indices, lane, "i32"))
            is_more = fn.compare("ogt", value, top.get())
            is_same = fn.compare("oeq", value, top.get())
            is_before = fn.integer("and", is_same, fn.compare("ult", index, place.get()))
            is_better = fn.as_value("i1", fn.integer("or", is_more, is_before))
            top.set(fn.select(is_better, value, top.get()))
            place.set(fn.select(is_better, index, place.get()))
        return fn.convert("sext", place.get(), "i64")

    def _visit(self, anchor: Value) -> None:
        """Emit a visit: the box is kept unless it overlaps one that is."""
        fn = self.fn
        fn.store(fn.as_value("float", math.nan), fn.at(self.best, anchor))
        box = self._decoded(anchor)
        is_free = Var(fn, "i64", 1)
        for k in fn.range(0, self.count.get()):
            with fn.when(self._overlaps(fn.at(self.kept, k * 4), box)):
                is_free.set(0)
        with fn.when(fn.compare("ne", is_free.get(), 0)):
            self._keep(anchor, box)
            self.count.set(self.count.get() + 1)

    def _decoded(self, anchor: Value) -> list[Value]:
        """Return a box's corners: ymin, xmin, ymax, xmax."""
        fn, detector = self.fn, self.detector
        code = [
            fn.load("float", fn.at(self.boxes, anchor * detector.coordinates + k)) for k in range(4)
        ]
        at = [fn.load("float", fn.at(self.anchors, anchor * 4 + k)) for k in range(4)]
        y, x, h, w = (value / scale for value, scale in zip(code, detector.scales, strict=True))
        centre = [fn.fma(y, at[2], at[0]), fn.fma(x, at[3], at[1])]
        half = [
            mathfn.exp(fn, part) * size * 0.5 for part, size in zip((h, w), at[2:], strict=True)
        ]
        low = [c - s for c, s in zip(centre, half, strict=True)]
        return low + [c + s for c, s in zip(centre, half, strict=True)]

    def _overlaps(self, kept: Value, box: list[Value]) -> Value:
        """Return whether intersection over union is above the limit; 0 for boxes without area."""
        fn = self.fn
        other = [fn.load("float", fn.at(kept, k)) for k in range(4)]
        areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (other, box)]
        sides = [
            mathfn.maximum(
                fn,
                mathfn.minimum(fn, other[k + 2], box[k + 2]) - mathfn.maximum(fn, other[k], box[k]),
                0.0,
            )
            for k in (0, 1)
        ]
        common = sides[0] * sides[1]
        ratio = common / (areas[0] + areas[1] - common)
        for area in areas:
            ratio = fn.select(fn.compare("ole", area, 0.0), 0.0, ratio)
        return fn.compare("ugt", ratio, self.detector.iou)

    def _keep(self, anchor: Value, box: list[Value]) -> None:
        """Emit the stores of a detection: its box once for each of its best classes."""
        fn, detector = self.fn, self.detector
        number = self.count.get()
        for k, corner in enumerate(box):
            fn.store(corner, fn.at(fn.at(self.kept, number * 4), k))
        row = fn.at(self.scores, anchor * detector.columns + (detector.columns - detector.classes))
        score, column = Var(fn, "float", math.inf), Var(fn, "i64", -1)
        for rank in fn.range(0, detector.classes_each):
            found = self._class_after(row, score.get(), column.get())
            score.set(found[0])
            column.set(found[1])
            at = number * detector.best + rank
            for c, corner in enumerate(box):
                fn.store(corner, fn.at(fn.at(self.outputs[0], at * 4), c))
            fn.store(fn.convert("sitofp", column.get(), "float"), fn.at(self.outputs[1], at))
            fn.store(score.get(), fn.at(self.outputs[2], at))

    def _class_after(self, row: Value, score: Value, column: Value) -> tuple[Value, Value]:
        """Return the best score, and its class, that comes after a score and class."""
        fn = self.fn
        top, place = Var(fn, "float", -math.inf), Var(fn, "i64", -1)
        for k in fn.range(0, self.detector.classes):
            value = fn.load("float", fn.at(row, k))
            is_later = fn.integer(
                "and", fn.compare("oeq", value, score), fn.compare("slt", column, k)
            )
            is_left = fn.integer("or", fn.compare("olt", value, score), is_later)
            is_first = fn.compare("slt", place.get(), 0)
            is_more = fn.integer("or", fn.compare("ogt", value, top.get()), is_first)
            is_better = fn.as_value("i1", fn.integer("and", is_left, is_more))
            top.set(fn.select(is_better, value, top.get()))
            place.set(fn.select(is_better, fn.as_value("i64", k), place.get()))
        return top.get(), place.get()


def _detector(graph: Graph, node: Node) -> Detector:
    attrs = node.attrs
    boxes, scores = (graph.type(i).dims for i in node.used[:2])
    return Detector(
        boxes[1],
        boxes[2],
        scores[2],
        attrs["num_classes"],
        attrs["max_detections"],
        attrs["max_classes_per_detection"],
        tuple(attrs["scales"]),
        attrs["score_threshold"],
        attrs["iou_threshold"],
    )


def _lower(context: Context, node: Node) -> list[Step]:
    detector = _detector(context.graph, node)
    boxes, scores, anchors = (context.operand(i) for i in node.used)
    best = Temp(f"%{node.outputs[0]} best", 4 * detector.anchors)
    made, chunks, best_s = context.kernel(
        best_kernel, detector.anchors, detector.columns, detector.classes, detector.least_score
    )
    first = Step(
        made, (scores,), (best,), chunks, seconds=best_s, nodes=(node.id,), family="detection"
    )
    code, room, seconds = context.kernel(suppress_kernel, replace(detector, least_score=0.0))
    entries = detector.most * detector.best
    unread: list[Operand] = [
        Temp(f"%{node.outputs[0]} {k}", 4 * entries) for k in range(4 - len(node.outputs))
    ]
    writes: tuple[Operand, ...] = (*node.outputs, *unread)
    reads = (boxes, scores, anchors, best)
    return [first, Step(code, reads, writes, 1, room, seconds, (node.id,), family="detection")]


def _reason(graph: Graph, node: Node) -> str | None:
    detector = _detector(graph, node)
    if node.attrs["use_regular_nms"]:
        return "detection_post_process has no native kernel for regular suppression"
    if detector.anchors > _MOST_ANCHORS:
        return f"detection_post_process has native kernels for up to {_MOST_ANCHORS} anchors"
    if not math.isfinite(detector.least_score) or not all(detector.scales):
        return "detection_post_process has native kernels for finite scores and scales only"
    return float_reason(graph, node)


TABLE.add("detection_post_process", Rule(_reason, _lower), ["float32"])
