"""The ops' samples with NaN, infinities and zeros of both signs among their floats.

A graph of a sample is fed several times: with odd floats at some of the places of each float
operand, at every place, and with each odd float alone where an operand is one number.
"""

from dataclasses import replace

import numpy as np
from op_samples import op_samples

from trireme.ir.op import Sample, get_op

SEED = 20261123
ODD = (np.nan, np.inf, -np.inf, -0.0, 0.0)
SHARE = 4
"""Of each so many elements one is odd."""
OUTSIDE = (
    300,
    -129,
    127.5,
    -0.5,
    2.0**31,
    -(2.0**31),
    3e9,
    -3e9,
    2.0**32,
    1e10,
    2.0**63,
    -1e19,
    1.5e19,
    2.0**64,
    1e30,
    -1e30,
)
"""Floats at the ends of the integers, and beyond."""
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")


def casts():
    """Yield casts of floats in and outside the integers to every integer."""
    for source in ("float32", "float16"):
        with np.errstate(over="ignore"):
            x = np.array([*OUTSIDE, *ODD, *np.linspace(-3, 3, 14)]).astype(source)
        for to in INTEGERS:
            for shape in ((35,), (1,)):
                sample = Sample((x[: np.prod(shape)].reshape(shape),), {"to": to})
                yield get_op("cast"), sample, f"cast-{source}-to-{to}-{len(shape)}{shape[0]}"


def samples():
    """Yield (op, sample, id) of every float sample without effect or chance; casts to integers."""
    for op, sample, name in op_samples():
        if op.effect or op.random:
            continue
        if any(is_float(array) for array in sample.inputs):
            yield op, sample, name
    yield from casts()


def is_float(array):
    return array is not None and array.dtype.name in ("float32", "float16", "float64")


def odd_inputs(sample, seed):
    """Yield what is odd and the sample's inputs with it."""
    rng = np.random.default_rng([SEED, seed])
    for position, array in enumerate(sample.inputs):
        if not is_float(array) or not array.size:
            continue

        def put(changed, position=position):
            return (*sample.inputs[:position], changed, *sample.inputs[position + 1 :])

        if array.size == 1:
            for odd in ODD:
                yield f"input {position} is {odd}", put(np.full_like(array, odd))
            continue
        drawn = rng.choice(ODD, array.shape).astype(array.dtype)
        some = rng.integers(0, SHARE, array.shape) == 0
        some.reshape(-1)[rng.integers(array.size)] = True
        yield f"input {position} has some", put(np.where(some, drawn, array))
        yield f"input {position} is all odd", put(drawn)


def odd_samples(sample, seed):
    """Yield what is odd and the sample with it, and first the sample as it is."""
    yield "nothing", sample
    for what, inputs in odd_inputs(sample, seed):
        yield what, replace(sample, inputs=inputs)
