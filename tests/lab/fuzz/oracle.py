"""ONNX Runtime's answer to a graph, with how far each element may be off.

The graph is run with its fusions, and without them many times more with each float that a rounding
node reads moved by a few units in the last place. How far an output moves says how far rounding may
move it: much behind a cancellation, by whole units where a value lies on the edge of a step, and
not at all where no rounding has a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from lab.fuzz.grow import grow
from lab.fuzz.grower import DTYPES, FLOATS, Grown, numpy_dtype
from lab.fuzz.peer import open_model

UNIT = {"float32": 2.0**-21, "float64": 2.0**-42, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""How far a float is moved, relative to itself: about four units in the last place.

In float64 it is as much as attributes are off, which are float32 numbers in one runtime and decimal
ones in another.
"""
PATTERNS = 11
"""Patterns of signs; each is tried with its opposite. An element's signs are the bits of a random
number, and no two elements of a value of up to 2^11 have the same: one of any two that are equal
but for rounding is the larger in some run, as an op that looks for the largest has to see.
"""
MARGIN = 16.0
"""How many times the movement seen is allowed."""
SMALL = 1 / 64
"""The least magnitude that a float is taken for: e^x - 1 of a small x is known no better."""
ABSOLUTE = dict.fromkeys(
    ("Elu", "Celu", "Selu", "RNN", "GRU", "LSTM", "Gelu", "BiasGelu"), 2.0**-25
)
"""How far ONNX Runtime's results are moved at least: it has e^x - 1 from e^x, which is wrong by 3 %
at -1e-6, recurrent ops from a tanh of some 2e-8, gelu from 1 + erf, which is wrong by 3 % at -5.
"""
SUMS = ("ReduceMean", "ReduceSum", "GlobalAveragePool", "AveragePool", "MatMul", "Gemm", "Conv")
"""Ops whose results may cancel to nothing: each is moved by LOST of its greatest input at least, so
that a mean of 5e-9 may as well be the 0 that it is in exact arithmetic, and its quotient NaN."""
LOST = 2.0**-23
FIRST_ONLY = ("Resize", "Upsample", "OneHot", "Pad", "Clip")
"""Ops whose further float inputs are parameters that no rounding touches."""


@dataclass(frozen=True)
class Answer:
    """What an output must be: the array, and what each element may be off by."""

    array: Any
    allowed: Any
    """float64 of the array's shape; infinite where anything is right."""


def grown_and_answered(seed: int, kind: str = "any") -> tuple[Grown, dict[str, Answer]]:
    """Return the random graph of a seed and a kind, and what each output must be.

    Errors: Refused, if ONNX Runtime does not run the graph
    """
    grown = grow(seed, kind)
    return grown, answer(grown, seed)


def answer(grown: Grown, seed: int) -> dict[str, Answer]:
    """Return what each output must be.

    Errors: Refused, if ONNX Runtime does not run the graph
    """
    names = [value.name for value in grown.model.graph.output]
    wanted = open_model(grown.model, optimised=True)(grown.feeds)
    moved, factors = jittered(grown)
    run = open_model(moved, optimised=False)
    rng = np.random.default_rng(seed)
    still = {name: np.ones(part.shape, dtype) for name, (part, dtype) in factors.items()}
    plain = run({**grown.feeds, **still})
    others = [wanted]
    codes = {name: sign_bits(part.shape, rng) for name, (part, _) in factors.items()}
    for bit in range(PATTERNS if factors else 0):
        parts = {n: np.where(codes[n] >> bit & 1, -part, part) for n, (part, _) in factors.items()}
        for side in (1.0, -1.0):
            moves = {
                n: np.asarray(1 + side * parts[n]).astype(dtype)
                for n, (_, dtype) in factors.items()
            }
            others.append(run({**grown.feeds, **moves}))
    return {
        name: Answer(
            wanted[i],
            allowance(wanted[i], plain[i], [o[i] for o in others]) + grown.loose.get(name, 0.0),
        )
        for i, name in enumerate(names)
    }


def sign_bits(shape: Sequence[int], rng: np.random.Generator) -> Any:
    """Return a random number of PATTERNS bits for each element, none twice while there are more."""
    size, most = math.prod(shape), 2**PATTERNS
    return (rng.permutation(max(most, size))[:size] % most).reshape(shape)


def allowance(wanted: Any, plain: Any, others: list[Any]) -> Any:
    """Return how far each element may be off, from the runs that were moved."""
    if any(other.shape != plain.shape for other in others):
        return np.full(wanted.shape, np.inf)
    base, moved = wide(plain), wide(np.stack(others))
    with np.errstate(all="ignore"):
        moves = np.where(same(moved, base), 0.0, np.abs(moved - base))
    most = np.nan_to_num(moves, nan=np.inf).max(axis=0)
    if str(wanted.dtype) not in FLOATS:
        return np.where(most > 0, np.inf, 0.0)
    usual = np.quantile(most, 0.75, method="higher") if most.size else 0.0
    unit = UNIT[str(wanted.dtype)]
    return (
        MARGIN * most
        + MARGIN * min(usual, np.abs(base).max(initial=0) * unit * 64)
        + 2 * unit * np.maximum(np.abs(base), SMALL)
    )


def same(a: Any, b: Any) -> Any:
    """Where two arrays are equal, NaN being NaN."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


def wide(array: Any) -> Any:
    """Return the array in float64, or as it is when it holds integers that float64 does not."""
    return array.astype(np.longdouble if array.dtype.kind in "iu" else np.float64)


def jittered(grown: Grown) -> tuple[onnx.ModelProto, dict[str, tuple[Any, Any]]]:
    """Return the model whose rounding nodes read floats times a factor that is fed; and by which
    part of itself each factor moves a value, with the value's dtype.
    """
    model = onnx.ModelProto()
    model.CopyFrom(grown.model)
    factors: dict[str, tuple[Any, Any]] = {}
    nodes = []

    def move(array: Any, name: str, made: str, least: float = 0.0) -> Any:
        """Return the node that moves a value."""
        factor, unit = f"factor_{len(factors)}", UNIT[str(array.dtype)]
        size = np.abs(array.astype(np.float64))
        size = np.where(size > 0, size, 1.0)  # no factor moves 0, nor what becomes of it elsewhere
        part = np.minimum(np.maximum(unit, least / size), 1.0)
        factors[factor] = (np.asarray(part), numpy_dtype(str(array.dtype)))
        return helper.make_node("Mul", [name, factor], [made])

    for node in grown.model.graph.node:
        changed = onnx.NodeProto()
        changed.CopyFrom(node)
        places = [(changed.input, i) for i in range(len(node.input))]
        places = places[:1] if node.op_type in FIRST_ONLY else places + read_in_bodies(changed)
        for names, position in places if node.name in grown.rounding else ():
            array = grown.arrays.get(name := names[position])
            if array is None or str(array.dtype) not in UNIT or not array.size:
                continue
            names[position] = f"moved_{len(factors)}"
            nodes.append(move(array, name, names[position]))
        nodes.append(changed)
        least = own_error(node, [grown.arrays.get(name) for name in node.input])
        for position, name in enumerate(node.output) if least is not None else ():
            array = grown.arrays.get(name)
            if array is not None and str(array.dtype) in UNIT and array.size:
                changed.output[position] = f"made_{name}"
                nodes.append(move(array, f"made_{name}", name, least))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(
        helper.make_tensor_value_info(name, DTYPES[str(dtype)], part.shape)
        for name, (part, dtype) in factors.items()
    )
    return model, factors


def own_error(node: Any, inputs: Sequence[Any]) -> float | None:
    """Return how far a node's results are moved at least; None where they are not moved.

    A cubic Resize is off by up to 5e-6, by a number of its own in each pixel, however alike the
    pixels are that it reads.
    """
    if node.op_type in SUMS:
        floats = [a for a in inputs if a is not None and str(a.dtype) in UNIT and a.size]
        return LOST * max((float(np.abs(a.astype(np.float64)).max()) for a in floats), default=0.0)
    cubic = any(a.name == "mode" and a.s == b"cubic" for a in node.attribute)
    return ABSOLUTE.get(node.op_type, 2.0**-18 if cubic else None)


def read_in_bodies(node: Any) -> list[tuple[Any, int]]:
    """Return the places of the names that the nodes in a node's bodies read."""
    bodies = [a.g for a in node.attribute if a.HasField("g")]
    inner = [one for body in bodies for one in body.node]
    own = [(one.input, i) for one in inner for i in range(len(one.input))]
    return own + [place for one in inner for place in read_in_bodies(one)]
