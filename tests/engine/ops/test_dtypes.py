"""Every op with inputs in every dtype that inference takes, on each device that takes the node.

Operands of an op may differ in dtype: a float16 image has float32 statistics, an exponent is an
integer, indices have 32 or 64 bits. A kernel reads each as what it is, or its device declines the
node. The default run takes some of all cases, others each day of the year.
"""

import datetime
from collections import Counter

import numpy as np
import opencl
import pytest
from cpu_run import run as run_on_cpu
from npu import Run
from op_samples import assert_close, sample_graph
from retyped import retype, retypings, samples_of

from trireme.devices.cpu.compile.program import REFERENCE
from trireme.ir.interpreter import interpret
from trireme.ir.op import all_ops
from trireme.support.errors import TriremeError

SHARE, MIXED_SHARE = 401, 47
"""One case of so many is run by default, of all and of those whose operands differ."""
LAST_PLACE = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
HALF = 3e-3
"""The NPU computes in float16."""


def cases():
    """Every (op, sample, positions, dtype), those first of which one operand alone changes."""
    mixed, alike = [], []
    for op in all_ops():
        for sample in () if op.effect else samples_of(op):
            kinds = Counter(None if x is None else x.dtype for x in sample.inputs)
            for positions, dtype in retypings(sample):
                is_mixed = kinds[sample.inputs[positions[0]].dtype] > len(positions)
                (mixed if is_mixed else alike).append((op, sample, positions, dtype))
    return mixed, alike


def takes(device, graph, node):
    """Whether a device has a kernel of its own for a node."""
    if device.unsupported_reason(graph, node) is not None:
        return False
    return device.spec.name != "cpu" or not device.kernel_note(graph, node).startswith(REFERENCE)


def outputs(device, graph, feeds):
    if device.spec.name == "cpu":
        return run_on_cpu(device, graph, feeds)[0]
    if device.spec.name == "npu":
        made = Run(device, graph, feeds).outputs
        return [made[value] for value in graph.outputs]
    return opencl.run(device, graph, feeds)[0]


def differs(device, op, graph, feeds, wanted):
    """Why a device's results are wrong, or ""."""
    try:
        found = outputs(device, graph, feeds)
        for value, array in zip(graph.outputs, found, strict=True):
            type = graph.type(value)
            rtol = HALF if device.spec.name == "npu" else LAST_PLACE.get(type.dtype, 2e-6)
            exact = type.quant is not None or (op.moves and device.spec.name != "npu")
            assert_close(array, np.asarray(wanted[value]), 0 if exact else max(op.rtol, rtol))
    except (AssertionError, TriremeError) as error:
        return f"{error.__class__.__name__}: {error}"
    return ""


def check(devices, chosen):
    wrong, counts = [], Counter()
    for op, sample, positions, dtype in chosen:
        try:
            graph, feeds = sample_graph(op, retype(sample, positions, dtype))
            able = [d for d in devices.values() if all(takes(d, graph, n) for n in graph.nodes)]
            wanted = interpret(graph, feeds) if able else {}
        except TriremeError:  # test_contracts.py has those that inference should refuse
            continue
        for device in able:
            counts[device.spec.name] += 1
            if text := differs(device, op, graph, feeds, wanted):
                what = f"{op.name} {sample.note} inputs {positions} {dtype}"
                wrong.append(f"{device.spec.name}: {what}: {text}")
    print(dict(counts))
    assert not wrong, f"{len(wrong)} are wrong\n" + "\n".join(wrong)


def day():
    found = datetime.date.today().timetuple().tm_yday
    print("day", found)
    return found


@pytest.mark.filterwarnings("ignore")  # numpy's, on casts
def test_some_dtypes_of_inputs(devices):
    mixed, alike = cases()
    start = day()
    check(devices, mixed[start % MIXED_SHARE :: MIXED_SHARE] + alike[start % SHARE :: SHARE])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_operands_of_other_dtypes(devices):
    check(devices, cases()[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_eighth_of_all_dtypes(devices):
    check(devices, cases()[1][day() % 8 :: 8])
