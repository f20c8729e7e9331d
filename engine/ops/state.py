"""State: `variable` reads the array that `assign` wrote, in this run or an earlier one.

Their references take `states`, the arrays by name; both store and return copies. The graph holds
the order of reads and writes (`effects`).
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import replace

import numpy as np

from trireme.ir.op import Attr, Sample, define, no_flops
from trireme.ops.shapes import same_type
from trireme.support.dtypes import ANY, Array

_STATE = {"state": Attr("str")}


def _variable(initial: Array, *, state: str, states: MutableMapping[str, Array]) -> Array:
    if state not in states:
        states[state] = initial.copy()
    return states[state].copy()


def _assign(value: Array, *, state: str, states: MutableMapping[str, Array]) -> Array:
    if state in states:
        states[state][...] = value
    else:
        states[state] = value.copy()
    return value


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    return [Sample((rng.standard_normal((3, 5)).astype(np.float32),), {"state": "s"})]


def _constant_samples(rng: np.random.Generator) -> Iterable[Sample]:
    return [replace(sample, constants=frozenset({0})) for sample in _samples(rng)]


define(
    "variable",
    "initial",
    "y = the state named `state` as the effects before this node left it, `initial` before "
    "the first. Source: TFLite READ_VARIABLE",
    same_type,
    _variable,
    attrs=_STATE,
    flops=no_flops,
    samples=_constant_samples,
    family="move",
    moves=True,
    effect="reads",
    dtypes=(ANY,),
)
define(
    "assign",
    "value",
    "the state named `state` becomes value; y = value. Source: TFLite ASSIGN_VARIABLE",
    same_type,
    _assign,
    attrs=_STATE,
    flops=no_flops,
    samples=_samples,
    family="move",
    moves=True,
    effect="writes",
    dtypes=(ANY,),
)
