"""Every op and sample with one input a constant, on the cpu, against the reference.

A constant takes other ways through passes and kernels than an input does: it folds, it is packed,
and one of a single element becomes part of an expression. The default run takes some of all cases,
others each day of the year; the sweep takes all.
"""

import datetime

import numpy as np
import pytest
from op_samples import assert_close, op_samples, sample_graph

from trireme.backend.registry import open_device
from trireme.ir.interpreter import interpret
from trireme.runtime.session.session import Session
from trireme.support.errors import TriremeError

SHARE = 12
"""One case of so many is run by default."""


def cases():
    """(op, sample, position): each input that a sample feeds, to be a constant."""
    for op, sample, name in op_samples(lambda op: not op.effect):
        for position, array in enumerate(sample.inputs):
            if array is not None and position not in sample.constants:
                yield op, sample, position, f"{name}-input-{position}"


def with_constant(sample, position):
    return type(sample)(
        sample.inputs,
        sample.attrs,
        sample.constants | {position},
        sample.quants,
        sample.out_quants,
        sample.note,
    )


def differs(device, op, sample, position):
    """Why a case is wrong, or ""."""
    fixed = with_constant(sample, position)
    graph, feeds = sample_graph(op, fixed)
    wanted = interpret(graph, feeds)
    names = {graph.values[value].name: array for value, array in feeds.items()}
    try:
        with Session(graph, devices=[device, "host"]) as session:
            found = session.run(names)
    except TriremeError as error:
        plain, _ = sample_graph(op, sample)
        return "" if refused(device, plain) else f"{type(error).__name__}: {error}"
    for value, name in zip(graph.outputs, found, strict=True):
        tolerance = max(op.rtol, 1e-5) if found[name].dtype.kind in "fc" else 0
        try:
            assert_close(found[name], np.asarray(wanted[value]), tolerance, name)
        except AssertionError as error:
            return str(error)
    return ""


def refused(device, graph):
    """Whether the sample as it is cannot be run either."""
    try:
        Session(graph, devices=[device, "host"]).close()
    except TriremeError:
        return True
    return False


def run(chosen):
    device = open_device("cpu")
    wrong = []
    for op, sample, position, name in chosen:
        text = differs(device, op, sample, position)
        if text:
            wrong.append(f"{name}: {text}")
    device.close()
    assert not wrong, f"{len(wrong)} are wrong\n" + "\n".join(wrong)


def test_some_samples_with_a_constant_input():
    day = datetime.date.today().timetuple().tm_yday
    print("day", day)
    run(list(cases())[day % SHARE :: SHARE])


@pytest.mark.slow
def test_all_samples_with_a_constant_input():
    run(cases())
