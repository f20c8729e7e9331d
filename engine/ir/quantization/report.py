"""The report of a quantisation: what became integers, how well, and what stayed float and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trireme.ir.graph import Graph
from trireme.ir.quantization.precision import FrontPoint, PrecisionReport
from trireme.support.units import bytes_text

_WORST = 8
"""The values that the text lists."""


@dataclass(frozen=True)
class TensorReport:
    """One value of integers beside the float value.

    low, high: the measured range
    clipped_share: the share of its elements beyond the range that integers have
    method: how the range was taken; "fixed" where the op has a quantisation of its own
    snr_db: signal-to-noise beside float
    made_db: signal-to-noise of the error made here alone, from float inputs; None for inputs
    """

    name: str
    op: str
    low: float
    high: float
    scale: float
    zero_point: int
    clipped_share: float
    method: str
    snr_db: float
    made_db: float | None = None


@dataclass(frozen=True)
class WeightReport:
    """The weights of one node that became smaller.

    form: how they are stored
    nbytes, float_nbytes: bytes now, and before
    snr_db: signal-to-noise beside float
    """

    name: str
    op: str
    form: str
    nbytes: int
    float_nbytes: int
    snr_db: float


@dataclass(frozen=True)
class FloatNode:
    """A node that stayed float, and why."""

    name: str
    op: str
    reason: str


@dataclass(frozen=True)
class CulpritReport:
    """A node that makes much of the error.

    made_db: signal-to-noise of the error made in it alone, from float inputs
    snr_db: signal-to-noise of its value, with the error that it inherits
    gain_db: what the worst output gains if this node alone stays float, measured
    repair: what became of the repairs that fit the cause
    """

    name: str
    op: str
    made_db: float
    snr_db: float
    gain_db: float
    cause: str
    repair: str = ""

    def __str__(self) -> str:
        """Return the row as sentences."""
        return (
            f"{self.op} {self.name}: {decibel_text(self.made_db)} of error made here, "
            f"{decibel_text(self.snr_db)} with what it inherits. {_capital(self.cause)}. "
            f"Left float, the output gains {self.gain_db:.1f} dB."
            f"{self.repair and f' Repairs: {self.repair}.'}"
        )


@dataclass(frozen=True)
class RepairReport:
    """A repair that was tried.

    before_db, after_db: the least signal-to-noise of an output on held samples; after_db is None
        where there was nothing to repair
    what: what was repaired, or why there was nothing
    """

    name: str
    before_db: float
    after_db: float | None
    kept: bool
    what: str

    def __str__(self) -> str:
        """Return the row as a sentence."""
        if self.after_db is None:
            return f"{self.name}: nothing to do, {self.what}"
        word = "kept" if self.kept else "not kept"
        before, after = decibel_text(self.before_db), decibel_text(self.after_db)
        return f"{self.name} of {self.what}: {before} before, {after} after, {word}"


@dataclass(frozen=True)
class OutputReport:
    """One output beside float: signal-to-noise of all of it, and of what depends on the input."""

    name: str
    snr_db: float
    moving_snr_db: float


@dataclass(frozen=True)
class QuantizationReport:
    """The report of what `quantize` did and measured.

    kind: the kind of model, which decides the ops that become integers
    samples, source: number of samples, and where they came from; a file does not say where, but
        for random ones
    measured_samples: how many of them the signal-to-noise is of
    culprits: the nodes that make most of the error, measured where that was asked for
    tried_db: the least signal-to-noise of an output by each way to take ranges
    repairs: the repairs that were tried, in order
    seconds: the time of each step; a file does not say
    weights: the weights that became smaller, of a scheme that measures no ranges
    precision: which nodes a loss budget left float, where one was given
    products: what products make of integers, "float32" or "integers"; "rows": float32, of rows that
        are rounded in the run
    products_db: the least signal-to-noise of an output by what products make, where both were tried
    scheme_why: why the scheme was chosen, where named devices decided
    products_why: what named devices say of the forms of products, where they may decide
    """

    scheme: str
    kind: str
    samples: int
    source: str
    measured_samples: int
    tensors: tuple[TensorReport, ...]
    floats: tuple[FloatNode, ...]
    outputs: tuple[OutputReport, ...]
    culprits: tuple[CulpritReport, ...] = ()
    warnings: tuple[str, ...] = ()
    tried_db: Mapping[str, float] = field(default_factory=dict)
    repairs: tuple[RepairReport, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    weights: tuple[WeightReport, ...] = ()
    precision: PrecisionReport | None = None
    products: str = "integers"
    products_db: Mapping[str, float] = field(default_factory=dict)
    scheme_why: str = ""
    products_why: str = ""

    @property
    def front(self) -> tuple[FrontPoint, ...]:
        """Loss against predicted latency, from the fastest point on; empty without a budget."""
        return self.precision.front if self.precision else ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data; an infinite ratio is null."""
        data: dict[str, Any] = _finite(asdict(self))
        return data

    def __str__(self) -> str:
        """Return the report in sentences."""
        made = f"{len(self.tensors)} values of integers"
        if self.weights:
            before = sum(one.float_nbytes for one in self.weights)
            after = sum(one.nbytes for one in self.weights)
            made = (
                f"weights of {len(self.weights)} nodes, {bytes_text(before)} to {bytes_text(after)}"
            )
        lines = [
            f"{self.scheme}, {self.kind} model, {self.samples} samples"
            f"{self.source and ' of '}{self.source}: "
            f"{made}, {len(self.floats)} nodes float"
        ]
        lines += [f"  scheme: {self.scheme}, {self.scheme_why}"] if self.scheme_why else []
        lines += [
            f"  output {one.name}: {decibel_text(one.snr_db)}, "
            f"{decibel_text(one.moving_snr_db)} in what depends on the input"
            for one in self.outputs
        ]
        lines += _product_lines(self)
        worst = sorted(self.tensors, key=lambda one: one.snr_db)[:_WORST]
        lines += ["  least signal-to-noise:"] if worst else []
        lines += [
            f"    {decibel_text(one.snr_db):>9}  {one.op} {one.name}  "
            f"[{one.low:.4g}, {one.high:.4g}]  {one.method}"
            for one in worst
        ]
        lines += _weight_lines(self.weights)
        lines += _float_lines(self.floats)
        lines += [f"  repair: {row}" for row in self.repairs]
        lines += [f"  {line}" for line in str(self.precision or "").splitlines()]
        lines += [f"  culprit: {row}" for row in self.culprits]
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])


def decibel_text(ratio_db: float) -> str:
    """Return a ratio for people."""
    return "exact" if math.isinf(ratio_db) and ratio_db > 0 else f"{ratio_db:.1f} dB"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _product_lines(report: QuantizationReport) -> Iterator[str]:
    measured = [f"{name} {decibel_text(db)}" for name, db in report.products_db.items()]
    before = [f"of {', '.join(measured)} before repairs"] if measured else []
    if why := [*before, *filter(None, [report.products_why])]:
        yield f"  products: {report.products}, {'; '.join(why)}"
    if report.products != "integers":
        yield "    which the cpu alone runs; a GPU and an NPU take products that make integers"


def _weight_lines(weights: tuple[WeightReport, ...]) -> list[str]:
    worst = sorted(weights, key=lambda one: one.snr_db)[:_WORST]
    return ["  weights with the least signal-to-noise:"][: len(worst)] + [
        f"    {decibel_text(one.snr_db):>9}  {one.op} {one.name}  {one.form}" for one in worst
    ]


def _float_lines(floats: tuple[FloatNode, ...]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in floats:
        reasons.setdefault(one.reason, []).append(one.op)
    return [
        f"  float: {len(ops)} nodes ({', '.join(dict.fromkeys(ops))}): {reason}"
        for reason, ops in reasons.items()
    ]


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


@dataclass(frozen=True, eq=False)
class QuantizedGraph(Graph):
    """A graph of integers with the report of its quantisation."""

    quantization: QuantizationReport = field(kw_only=True)


def vars_of(graph: Graph) -> dict[str, Any]:
    """Return the fields of a graph."""
    return {name: getattr(graph, name) for name in Graph.__dataclass_fields__}
