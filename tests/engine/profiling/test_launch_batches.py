"""A profile measures chained tasks as runs run them: launched ahead, waited for once."""

from types import SimpleNamespace

import numpy as np
import pytest
from forced import open_all

from trireme.backend.capabilities import IdlingCall
from trireme.cost.calibration import Calibration
from trireme.devices.cpu.runtime.native import CALL_PARKS
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.profiling.launch_batches import took_s
from trireme.profiling.spans import TaskSpan
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session


def plan_of(*copies):
    return SimpleNamespace(tasks=[SimpleNamespace(is_copy=copy) for copy in copies])


def test_a_flight_is_shared_out_in_full():
    """Launched at 0, 1, 2; the driver runs 5-6, 8-20, 23-24; seen at 30."""
    run = [
        TaskSpan(0, 5, 6, (), (0, 30)),
        TaskSpan(1, 8, 20, (), (1, 30)),
        TaskSpan(2, 23, 24, (), (2, 30)),
    ]
    took = took_s(plan_of(True, False, True), run)
    assert took == {0: 3, 1: 15 + 5 + 6, 2: 1}
    assert sum(took.values()) == 30


def test_flights_that_the_host_parts_are_apart():
    run = [
        TaskSpan(0, 1, 4, (), (0, 5)),
        TaskSpan(1, 5, 9, ()),
        TaskSpan(2, 11, 12, (), (10, 14)),
    ]
    assert took_s(plan_of(False, False, False), run) == {0: 5, 1: 4, 2: 4}


def test_what_overlaps_keeps_its_own_seconds():
    """A copy under a kernel; and a task that was launched after a pause, which is nobody's."""
    run = [
        TaskSpan(0, 1, 10, (), (0, 31)),
        TaskSpan(1, 4, 6, (), (0, 31)),
        TaskSpan(2, 20, 30, (), (15, 31)),
    ]
    assert took_s(plan_of(False, True, False), run) == {0: 11, 1: 2, 2: 15}


@pytest.mark.parametrize("mode", ["serial", "parallel"])
def test_the_tasks_of_a_flight_take_what_it_took(mode):
    opened, absent = open_all(("opencl", "cpu"))
    if absent:
        pytest.skip(str(absent))
    b = GraphBuilder("chain")
    x = b.input("x", TensorType((64, 256), "float32"))
    w = b.constant("w", np.full((256, 256), 1e-2, np.float32))
    for pin in ("opencl", "opencl", "cpu", "opencl"):
        x = b.add("matmul", x, w, pin=pin)
    with Session(
        b.finish(x),
        devices=list(opened.values()),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        mode=mode,
    ) as session:
        for _ in range(20):  # a busy machine may part launches
            run = session.profile({"x": np.ones((64, 256), np.float32)}, runs=3).last_run
            took = took_s(session.plan, run)
            assert min(took.values()) >= 0
            batches = batches_of(run)
            assert max(map(len, batches)) > 2 or mode == "parallel"
            shares = [share(batch, took) for batch in batches]
            assert max(shares) < 1.01 or mode == "parallel"
            if min(shares) > 0.3:
                break
    for device in opened.values():
        device.close()
    assert min(shares) > 0.3 or mode == "parallel"


def batches_of(run):
    """The spans of each batch: all that one wait saw done."""
    batches = {}
    for span in run:
        if span.batch:
            batches.setdefault(span.batch[1], []).append(span)
    return list(batches.values())


def share(batch, took):
    """What the tasks of a batch are said to take, of the time from its launch to its wait."""
    launched_s = min(span.batch[0] for span in batch)
    return sum(took[span.task] for span in batch) / (batch[0].batch[1] - launched_s)


def test_workers_are_parked_only_where_another_device_needs_their_cores():
    """Idle workers that look for work take a core from a driver's kernels."""
    opened, absent = open_all(("opencl", "cpu"))
    if absent or opened["opencl"].spec.resource_group != "cpu":
        pytest.skip(str(absent) or "opencl has silicon of its own here")
    for pins, parked in ((("cpu", "cpu"), 0), (("opencl", "cpu"), 1), (("opencl", "opencl"), None)):
        b = GraphBuilder("turns")
        x = b.input("x", TensorType((64, 64), "float32"))
        for pin in pins:
            x = b.add("relu", x, pin=pin)
        with Session(
            b.finish(x),
            devices=list(opened.values()),
            execution_options=AS_GIVEN,
            calibration=Calibration(),
        ) as session:
            calls = [call for call in session.ready.latest().calls if isinstance(call, IdlingCall)]
            words = [part.call.words[CALL_PARKS] for call in calls for part in call._parts]
            assert set(words) == (set() if parked is None else {parked})
    for device in opened.values():
        device.close()
