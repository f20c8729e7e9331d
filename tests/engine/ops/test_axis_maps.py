"""An axis map says what more elements at the end of an axis do: the references prove it."""

import operator
from collections import defaultdict

import numpy as np
import pytest
from op_samples import SEED

from trireme.ir.graph import TensorType, Value
from trireme.ir.op import Call, all_ops, get_op
from trireme.ops.axis_maps import axis_map_of
from trireme.support.dtypes import dtype_name
from trireme.support.errors import TriremeError

OPS = [op for op in all_ops() if not op.is_host_only and not op.alias and not op.random]


def run(op, inputs, attrs):
    """The outputs of the reference as a tuple; None if it refuses the inputs."""
    try:
        with np.errstate(all="ignore"):
            made = op.reference(*inputs, **op.bind(attrs))
    except (TriremeError, ValueError, IndexError, TypeError):
        return None
    outputs = tuple(map(np.asarray, made)) if isinstance(made, tuple) else (np.asarray(made),)
    return outputs[: op.out_arity[0]] if op.out_arity[0] else outputs


def call_of(op, sample, outputs):
    def value(position, array):
        return Value(position, "x", TensorType(array.shape, dtype_name(array.dtype)), array)

    values = [None if a is None else value(i, a) for i, a in enumerate(map(maybe, sample.inputs))]
    types = tuple(TensorType(y.shape, dtype_name(y.dtype)) for y in outputs)
    return Call(tuple(values), types, op.bind(sample.attrs))


def maybe(array):
    return None if array is None else np.asarray(array)


def longer(array, axis, needs, rng):
    """The array with three elements more at the end of an axis: neutral ones, or any."""
    more = rng.choice(np.arange(array.shape[axis]), 3)
    added = np.flip(np.take(array, more, axis), 0)
    if needs is not None:
        limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        neutral = needs
        if limits is not None and np.isinf(needs):
            neutral = limits.min if needs < 0 else limits.max
        if array.dtype.kind == "b":
            neutral = needs > 0
        added = np.full_like(added, neutral)
    return np.concatenate([array, added], axis)


def groups(uses, inputs):
    """The axes that have to grow together: those of one axis of the output, or of one sum."""
    found = defaultdict(list)
    for (position, axis), use in uses.items():
        array = inputs[position]
        if array is None or not array.shape[axis] or use.refused:
            continue
        alone = (position, axis) if use.places is not None else None
        if use.places is not None and inputs[use.places].min(initial=0) < 0:
            continue  # it counts from the end
        if array.shape[axis] > 1 or use.to is None:
            found[use.to, alone].append((position, axis, use))
    return found


def proven(op, sample, rng):
    """How many elements of the results were seen to stay as they are."""
    inputs = [maybe(x) for x in sample.inputs]
    outputs = run(op, inputs, sample.attrs)
    if outputs is None or any(x is not None and x.dtype == object for x in inputs):
        return 0
    found = axis_map_of(op, call_of(op, sample, outputs))
    count = 0
    for (to, _), members in groups({} if found is None else found.uses, inputs).items():
        grown = list(inputs)
        for position, axis, use in members:
            grown[position] = longer(grown[position], axis, use.needs, rng)
        made = run(op, grown, sample.attrs)
        if made is None:  # other inputs have to grow too
            continue
        for y, wanted in zip(made, outputs, strict=True):
            first = y[tuple(slice(0, size) for size in wanted.shape)]
            assert first.shape == wanted.shape, (op.name, sample.note, to)
            close = np.array_equal(first, wanted) or np.allclose(
                first, wanted, rtol=max(op.rtol, 1e-6), atol=1e-6, equal_nan=True
            )
            assert close, (op.name, sample.note, to)
            count += wanted.size
    return count


@pytest.mark.parametrize("op", OPS, ids=operator.attrgetter("name"))
def test_more_elements_leave_the_first_ones(op):
    print("seed", SEED)
    rng = np.random.default_rng(SEED)
    plain = [s for s in op.samples(rng) if not s.quants and not s.out_quants]
    count = sum(proven(op, sample, rng) for sample in plain)
    assert count or op.axis_map is None


def test_a_fill_is_of_named_axes():
    for op in all_ops():
        assert op.fill is None or op.axes is not None
    assert get_op("reduce_mean").fill is None
