"""Infer types where the rank of an input is known only in a run.

The rule of an op runs for each rank that such an input may have. Ranks that it refuses cannot
occur. An output has a rank, or a dimension, where all ranks agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from trireme.ir.graph import ANY_RANK, UNKNOWN, TensorType, Value
from trireme.ir.partial_types import common_type
from trireme.support.errors import ShapeError, TriremeError

RANKS = range(9)
"""The ranks that are tried: no op tells apart more of them."""
Infer = Callable[..., Sequence[TensorType]]
Inputs = Sequence[Value | None]


def has_late_rank(values: Inputs) -> bool:
    """Whether the rank of a value is known only in a run."""
    return ANY_RANK in [value.type.shape for value in values if value is not None]


def over_ranks(infer: Infer, inputs: Inputs) -> Sequence[TensorType]:
    """Return the types of the outputs, whatever ranks the inputs of unknown rank have.

    Errors: ShapeError, if the op refuses every rank
    """
    found: list[Sequence[TensorType]] = []
    refused: Exception | None = None
    for ranked in _at_each_rank(inputs):
        try:
            found.append(infer(*ranked))
        except (TriremeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            refused = error
    if not found:
        why = refused.summary if isinstance(refused, TriremeError) else str(refused)
        raise ShapeError(f"no rank of its inputs fits: {why}") from refused
    return [_joined(types) for types in zip(*found, strict=True)]


def _at_each_rank(inputs: Inputs) -> Iterator[list[Value | None]]:
    """Yield the inputs at each combination of ranks; of more than two, later ones are alike."""
    late = [k for k, value in enumerate(inputs) if has_late_rank([value])]
    for ranks in product(RANKS, repeat=min(len(late), 2)):
        ranked = list(inputs)
        for place, k in enumerate(late):
            value = inputs[k]
            if value is not None:
                shape = (UNKNOWN,) * ranks[min(place, len(ranks) - 1)]
                ranked[k] = replace(value, type=replace(value.type, shape=shape))
        yield ranked


def _joined(types: Sequence[TensorType]) -> TensorType:
    """Return the type of a value that has one of several types."""
    joined = types[0]
    for type in types[1:]:
        joined = common_type(joined, type)
    return joined
