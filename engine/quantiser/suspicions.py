"""Find suspicious sample inputs: too few, random, dead channels, other preprocessing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from trireme.ir.graph import Graph, Node, Value
from trireme.ir.quantization.stored import RANDOM
from trireme.quantiser.measure import Values
from trireme.quantiser.samples import Feeds
from trireme.quantiser.statistics import ValueStatistics
from trireme.support.dtypes import Array

_FEW = 8
"""Fewer samples than this give a warning."""
_FAR = 20.0
"""Inputs so many times smaller or larger than what a model scales them by are suspect."""
_LISTED = 6
_VALUES = 3
"""So many values with dead channels are named."""


def suspicions(
    source: str,
    count: int,
    graph: Graph,
    original: Graph,
    feeds: Sequence[Feeds],
    statistics: Mapping[int, ValueStatistics],
    measured: Sequence[Values],
) -> tuple[str, ...]:
    """Return a sentence for each thing that makes ranges doubtful.

    graph: the folded graph, whose values the statistics and the measured samples have
    original: the graph before folding, whose first nodes tell what inputs they expect
    """
    found = []
    if source.startswith(RANDOM):
        found.append("the ranges are those of random numbers; real inputs may exceed them")
    elif count < _FEW:
        found.append(f"{count} samples are few: 32 to 512 are usual")
    elif _are_equal(feeds):
        found.append(f"{len(feeds)} measured samples are all the same")
    if not source.startswith(RANDOM):
        found += _preprocessing(original, feeds)
    found += _constants(graph, statistics)
    found += _dead_channels(graph, statistics, measured)
    return tuple(found)


def _are_equal(feeds: Sequence[Feeds]) -> bool:
    first, *others = feeds
    return all(np.array_equal(one[name], first[name]) for one in others for name in first)


def _constants(graph: Graph, statistics: Mapping[int, ValueStatistics]) -> Iterator[str]:
    for value, one in statistics.items():
        if one.low == one.high:
            name = graph.values[value].first_name
            yield f"'{name}' is {one.low:.6g} everywhere in all samples"


def _dead_channels(
    graph: Graph, statistics: Mapping[int, ValueStatistics], measured: Sequence[Values]
) -> Iterator[str]:
    """Yield the values with most channels that are 0 in every measured sample, and alive others.

    A net has such channels behind many relus. A sentence for each would hide all else.
    """
    found = []
    for value, one in statistics.items():
        dims = graph.type(value).dims
        if len(dims) < 2 or one.low == one.high:
            continue
        live = [np.any(made[value], axis=tuple(range(len(dims) - 1))) for made in measured]
        dead = np.flatnonzero(~np.any(live, axis=0))
        if len(dead):
            found.append((len(dead) / dims[-1], value, dead))
    found.sort(key=lambda row: -row[0])
    for _, value, dead in found[:_VALUES]:
        yield (
            f"{len(dead)} of {graph.type(value).dims[-1]} channels of "
            f"'{graph.values[value].first_name}' are 0 in all measured samples: {_listed(dead)}"
        )
    if len(found) > _VALUES:
        more = len(found) - _VALUES
        yield f"{more} more values have channels that are 0 in all measured samples"


def _listed(numbers: Iterable[int]) -> str:
    shown = [str(number) for number in numbers]
    return ", ".join(shown[:_LISTED]) + (", ..." if len(shown) > _LISTED else "")


def _preprocessing(graph: Graph, feeds: Sequence[Feeds]) -> Iterator[str]:
    for value in graph.input_values():
        if value.dtype == "float32" and len(value.shape) >= 3 and feeds:
            peak = max(float(np.abs(one[value.name]).max(initial=0)) for one in feeds)
            yield from _of_input(graph, value, peak, [one[value.name] for one in feeds])


def _of_input(graph: Graph, value: Value, peak: float, arrays: Sequence[Array]) -> Iterator[str]:
    scales = [(node, scale) for node in graph.users(value.id) if (scale := _scale(graph, node))]
    for node, scale in scales:
        if 0 < peak < scale / _FAR:
            yield (
                f"input '{value.name}' reaches {peak:.4g} at most, and {node.label} expects values "
                f"about {scale:.4g}: is it preprocessed twice?"
            )
        elif peak > scale * _FAR * _FAR / 2:
            yield (
                f"input '{value.name}' reaches {peak:.4g}, and {node.label} expects values about "
                f"{scale:.4g}: is its preprocessing left out?"
            )
    whole = all(np.array_equal(array, np.rint(array)) for array in arrays)
    if not scales and whole and 100 < peak <= 255 and len(value.shape) == 4:
        yield (
            f"input '{value.name}' holds whole numbers up to {peak:.4g}, and the model does not "
            "scale them: is its preprocessing left out?"
        )


def _scale(graph: Graph, node: Node) -> float | None:
    """Return the size of values that a first node expects: what it divides by or takes away."""
    constants = [graph.values[i].data for i in node.used if graph.values[i].is_constant]
    if len(constants) != 1 or constants[0] is None or not constants[0].size:
        return None
    size = float(np.abs(constants[0]).max())
    if not size:
        return None
    if node.op == "mul":
        return 1 / size if size < 1 else None
    return size if node.op in ("div", "sub") else None
