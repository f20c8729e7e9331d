"""Name the nodes that make the error, the cause, and what the output gains if one stays float.

The error made in a node is measured with its inputs made of the float values. The nodes with the
most of it are then left float, one at a time, and the outputs measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trireme.ir.graph import Graph, Node, node_names
from trireme.ir.quantization.report import CulpritReport, RepairReport
from trireme.quantiser.encode import range_of
from trireme.quantiser.grouping import keeps_quantisation
from trireme.quantiser.measure import Noise, Yardstick, worst_db
from trireme.quantiser.ranges import percentile
from trireme.quantiser.scheme import is_product
from trireme.quantiser.trial import QuantTrial

_LEAST, _MOST = 6, 16
"""How many nodes are left float in turn, at least and at most."""
_IN_VAIN, _SMALL_DB = 3, 0.1
"""After so many nodes in a row that gain no more than this the rest is left."""
_WIDER = 3.0
"""A range so many times wider than another is named as a cause."""


@dataclass(frozen=True)
class Culprits:
    """Signal-to-noise of the error made in each value, by id, and the worst nodes."""

    made_db: Mapping[int, float]
    rows: tuple[CulpritReport, ...]


def culprits(
    trial: QuantTrial,
    method: str,
    yardstick: Yardstick,
    noises: Mapping[int, Noise],
    repairs: Sequence[RepairReport] = (),
) -> Culprits:
    """Return the worst nodes of a quantised graph, by what the outputs gain without them.

    repairs: those that were tried, of which a node gets those of its cause
    """
    graph, taken = trial.graph, trial.selection.taken
    makers = [n for n in graph.nodes if n.id in taken and not keeps_quantisation(n)]
    apart = yardstick.compare(trial(method, apart=True), [n.outputs[0] for n in makers])
    made_db = {value: noise.db for value, noise in apart.items()}
    worst = sorted(makers, key=lambda node: made_db[node.outputs[0]])
    before = worst_db({v: noises[v] for v in graph.outputs if v in noises})
    names, rows = node_names(graph), []

    def after(node: Node) -> float:
        left = _unrepaired(trial, yardstick.graph, node)
        return worst_db(yardstick.outputs(left(method, without={node.id})))

    for node, gain_db in gains(worst, before, after):
        out = node.outputs[0]
        cause, fitting = _cause(trial, method, node, yardstick)
        rows.append(
            CulpritReport(
                names[node.id],
                node.op,
                made_db[out],
                noises[out].db,
                gain_db,
                cause,
                _tried(fitting, repairs),
            )
        )
    return Culprits(made_db, tuple(sorted(rows, key=lambda row: -row.gain_db)))


def gains(
    worst: Sequence[Node], before: float, after: Callable[[Node], float]
) -> Iterator[tuple[Node, float]]:
    """Yield nodes with what the worst output gains if each alone stays float.

    before, after: signal-to-noise of the worst output in dB, with all and without a node
    """
    vain = 0
    for number, node in enumerate(worst[:_MOST]):
        if number >= _LEAST and vain >= _IN_VAIN:
            return
        found = after(node)
        gain_db = found - before if found != before else 0.0
        vain = 0 if gain_db > _SMALL_DB else vain + 1
        yield node, gain_db


def wide_channel(yardstick: Yardstick, value: int) -> str | None:
    """Return a sentence on the channel that widens an input's range; None without such a one."""
    channel, times = yardstick.widest_channel(value)
    if times > _WIDER:
        return f"channel {channel} of its input is {times:.1f} times the median one"
    return None


def _unrepaired(trial: QuantTrial, real: Graph, node: Node) -> QuantTrial:
    """Return the trial with a node as the float graph has it.

    A repair rounds weights for integers. A node that stays float would have the error without need.
    """
    own, graph = real.node(node.id), trial.graph
    nodes = tuple(own if one.id == own.id else one for one in graph.nodes)
    values = {**graph.values, **{i: real.values[i] for i in own.used if real.values[i].is_constant}}
    return replace(trial, graph=replace(graph, nodes=nodes, values=values))


def _tried(fitting: frozenset[str], repairs: Sequence[RepairReport]) -> str:
    """Return what became of the repairs that fit a cause."""
    if not fitting:
        return "no repair changes that: leave the node float, or what it shares a range with"
    rows = [str(row) for row in repairs if row.name in fitting]
    return "; ".join(rows) or f"{' and '.join(sorted(fitting))} were not tried"


_OUTLIERS = frozenset({"outlier_clipping", "smooth_quant"})
_CHANNELS = frozenset({"equalisation", "smooth_quant"})
_COARSE = frozenset({"equalisation", "rounding", "bias_correction"})


def _cause(
    trial: QuantTrial, method: str, node: Node, yardstick: Yardstick
) -> tuple[str, frozenset[str]]:
    """Return why a node's integers are coarse, and the repairs that fit.

    A general sentence where nothing stands out. Of a product that makes floats these are the
    integers that it reads.
    """
    out = node.used[0] if node.id in trial.selection.to_floats else node.outputs[0]
    statistics, quant = trial.statistics[out], trial.quants(method)[out]
    if trial.groups.fixed_of(out):
        return "its scale is fixed by the op, whatever the values are", frozenset()
    own = max(statistics.high, 0.0) - min(statistics.low, 0.0)
    low, high = range_of(quant, trial.scheme.activations)
    if own and high - low > _WIDER * own:
        times = (high - low) / own
        why = f"it shares the range of other values, which is {times:.1f} times its own"
        return why, frozenset()
    inner_low, inner_high = percentile(statistics, trial.scheme.activations)
    inner = max(inner_high, 0.0) - min(inner_low, 0.0)
    if inner and own > _WIDER * inner:
        times = own / inner
        return f"one element in 10,000 makes its range {times:.1f} times wider", _OUTLIERS
    if is_product(node) and (wide := wide_channel(yardstick, node.used[0])) is not None:
        return f"{wide}, so the other channels have few steps", _CHANNELS
    is_wide = trial.scheme.activations == "int16"
    has = "its weights have 8 bits" if is_product(node) else "16 bits are what they have"
    why = has if is_wide else "8 bits are what they have"
    return f"its values fill their range, and {why}", _COARSE
