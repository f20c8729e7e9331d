"""Measure the numpy reference of every op: the time of a node without a native kernel.

Each op's samples are timed at their own size and enlarged. An op with enough measurements has a
curve of its own; the others share the curve of their family.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trireme.cost.calibration import REFERENCE, Curve, DeviceCalibration, reference_description
from trireme.cost.quality import Judgement, judge
from trireme.cost.work import reference_classes, work_of
from trireme.ir.builder import graph_of_sample
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import evaluate
from trireme.ir.op import OpDef, Sample, all_ops
from trireme.support.errors import TriremeError
from trireme.support.timing import RepeatLimits, time_calls

_LARGE = 1 << 16
"""Approximate elements in the first input of an enlarged sample."""
_CALLS = RepeatLimits(duration_s=5e-3, most=3)
"""How often a sample is timed; a call longer than the duration runs once."""
_SAMPLES = 4
"""The most samples of an op that are timed."""


@dataclass(frozen=True)
class _Timed:
    """A timed node: its classes, its amounts, and its seconds.

    seconds: the least of its runs, since a busy machine interrupts some
    """

    classes: tuple[str, str]
    terms: Mapping[str, float]
    seconds: float
    is_enlarged: bool


def measure_reference(end: float) -> DeviceCalibration:
    """Return the curves of the references measured before `end` (perf_counter)."""
    timed = list(_timed(end))
    curves: dict[str, Curve] = {}
    judged: list[Judgement] = []
    for name in dict.fromkeys(itertools.chain.from_iterable(one.classes for one in timed)):
        curve = _curve([one for one in timed if name in one.classes])
        if curve is not None:
            judged.append(judge("reference", curve.fixed_s, curve.samples, curve.error, name))
            if judged[-1].used:
                curves[name] = curve
    return DeviceCalibration(
        REFERENCE, reference_description(), None, curves=curves, judged=tuple(judged)
    )


def _curve(rows: Sequence[_Timed]) -> Curve | None:
    """Return the median seconds of small calls, and the median rate of large ones.

    The rate is a byte's or an operation's: the amount with the smaller scatter. Ops of a family
    differ by a factor of ten, so least squares of relative errors would predict too little.
    """
    small = [one.seconds for one in rows if not one.is_enlarged]
    large = [one for one in rows if one.is_enlarged]
    if not small or not large:
        return None
    fixed_s = statistics.median(small)
    rates = {
        term: [max(one.seconds - fixed_s, 0.0) / one.terms[term] for one in large]
        for term in ("bytes", "flops")
        if all(one.terms[term] > 0 for one in large)
    }
    rates = {term: some for term, some in rates.items() if statistics.median(some) > 0}
    if not rates:
        return None
    term = min(rates, key=lambda name: _scatter(rates[name]))
    curve = Curve(fixed_s, {term: statistics.median(rates[term])})
    ratios = [one.seconds / curve.seconds(one.terms) for one in rows]
    low, high = np.quantile(ratios, [0.05, 0.95])
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    return replace(
        curve, low=float(min(low, 1.0)), high=float(max(high, 1.0)), samples=len(rows), error=error
    )


def _scatter(rates: Sequence[float]) -> float:
    """Return the scatter of rates: the ratio of the third quartile to the first."""
    low, high = np.quantile(rates, [0.25, 0.75])
    return float(high / low) if low > 0 else math.inf


def _timed(end: float) -> Iterator[_Timed]:
    """Yield timed samples: the first sample of every op, then each op's next sample."""
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        samples = [(op, [*itertools.islice(op.samples(rng), _SAMPLES)]) for op in _measurable()]
    for number in range(_SAMPLES):
        for op, some in samples:
            for size, sample in enumerate(_sizes(some[number]) if number < len(some) else ()):
                if time.perf_counter() > end:
                    return
                found = _time(op, sample, size > 0)
                if found is not None:
                    yield found


def _measurable() -> Iterator[OpDef]:
    """Yield the ops whose reference is a function of arrays alone."""
    for op in all_ops():
        if not op.is_host_only:
            yield op


def _sizes(sample: Sample) -> Iterator[Sample]:
    """Yield a sample, and the same with its data repeated along the first or the last axis."""
    yield sample
    first = next((array for array in sample.inputs if array is not None), None)
    if first is None or not first.ndim or not 0 < first.size < _LARGE:
        return
    times = _LARGE // first.size
    for axis in (0, -1):
        yield replace(
            sample,
            inputs=tuple(
                np.repeat(array, times, axis)
                if array is not None and array.ndim and array.shape[axis] == first.shape[axis]
                else array
                for array in sample.inputs
            ),
        )


def _time(op: OpDef, sample: Sample, is_enlarged: bool) -> _Timed | None:
    """Return the seconds of one call; None if the op refuses the (enlarged) inputs."""
    try:
        outputs = op.out_arity[1] or len(sample.out_quants) or op.out_arity[0]
        graph = graph_of_sample(op, sample, outputs)
        (node,) = graph.nodes
        if not all(_is_planned(graph.type(value)) for value in (*node.used, *node.outputs)):
            return None
        arrays = list(sample.inputs[: len(node.inputs)])
        seconds = time_calls(lambda: evaluate(graph, node, arrays), _CALLS)
    except (TriremeError, ValueError, MemoryError):
        return None
    classes, terms = reference_classes(graph, node), work_of(graph, node).terms
    return _Timed(classes, terms, min(seconds), is_enlarged)


def _is_planned(type: TensorType) -> bool:
    """Whether a plan can hold values of a type, so that a placement prices the op."""
    return type.is_static and type.dtype != "string"
