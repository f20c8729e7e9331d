"""Nothing that runs outlives the memory it works on, and nothing that was dropped goes on."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.backend.registry import open_device
from trireme.cost.calibration import Calibration
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.native import has_futex
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.program.context import ExecutionContext
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.session import Session
from trireme.support.errors import RunError

SIDE = 16
T = TensorType((SIDE, SIDE), "float32")
X = np.ones((SIDE, SIDE), np.float32)
needs_instances = pytest.mark.skipif(
    not has_futex() or len(all_cores()) < 2, reason="instances need Linux and two cores"
)


def matmul_graph():
    """A kernel with packed weights, and scratch memory between the nodes."""
    b = GraphBuilder("matmul")
    y = b.input("x", T)
    for k in range(2):
        y = b.add("matmul", y, b.constant(f"w{k}", np.full((SIDE, SIDE), 1 / SIDE, np.float32)))
        y = b.add("transpose", y, perm=[1, 0])
    return b.finish(y)


def memory_of(call):
    """What must live as long as a call: its arguments, its scratch, its weights and its pointers,
    by weak references."""
    program = call._program
    args, scratch = call._keep
    handles = [buffer.handle for buffer in (*args, scratch) if buffer is not None]
    parts = [part.pointers for part in call._parts]
    return [weakref.ref(array) for array in (*handles, *program.constants.values(), *parts)]


def bound(device):
    (executable,) = device.compile([matmul_graph()])
    args = [device.alloc(T.nbytes) for _ in range(2)]
    scratch = device.alloc(executable.scratch_bytes) if executable.scratch_bytes else None
    return executable.bind(args, scratch)


@pytest.mark.parametrize("kept", ["run", "launch", "rebind"])
def test_what_is_left_of_a_call_keeps_what_it_points_to(kept):
    device = open_device("cpu", threads=2)
    call = bound(device)
    memory = memory_of(call)
    assert len(memory) >= 5 and all(ref() is not None for ref in memory)
    left = call.rebind(0) if kept == "rebind" else getattr(call, kept)
    del call
    gc.collect()
    if kept == "rebind":  # it writes pointers, and reads nothing
        assert left.__closure__ and any(ref() is not None for ref in memory)
    else:
        assert all(ref() is not None for ref in memory)
        left()
    del left
    gc.collect()
    assert not any(ref() is not None for ref in memory)
    device.close()


def test_calls_of_a_lane_that_was_dropped_run():
    with Session(
        matmul_graph(), threads=2, execution_options=AS_GIVEN, calibration=Calibration()
    ) as session:
        want = session.run({"x": X})
        context = ExecutionContext(session.program)
        given = context.ports.bind({"x": X})
        calls, ports = context.calls, context.ports
        memory = [memory_of(call) for call in calls]
        runs = [call.run for call in calls]
        del context, calls
        gc.collect()
        assert all(ref() is not None for one in memory for ref in one)
        for run in runs:
            run()
        (got,), (right,) = ports.collect(given).values(), want.values()
        np.testing.assert_array_equal(got, right)


@needs_instances
@pytest.mark.parametrize("finishes", ["another thread", "the server's own"])
def test_a_call_under_way_keeps_its_memory_though_its_event_was_dropped(finishes):
    """The last to know of it waits, unless that is the server's thread, which runs a collector."""
    device = open_device("cpu#1", instances=2, threads=1)
    served = bound(device)
    served.launch().wait()
    memory, gate, over = memory_of(served._bound), threading.Event(), threading.Event()
    server, holder = device._server, [served]
    del served
    server.submit(gate.wait, None)
    if finishes == "the server's own":
        server.submit(holder.clear, None)
    holder[0].launch()
    dropping = threading.Thread(target=lambda: (holder.clear(), over.set()), daemon=True)
    if finishes == "another thread":
        dropping.start()
        assert not over.wait(0.1)
    assert all(ref() is not None for ref in memory)
    gate.set()
    if finishes == "another thread":
        dropping.join(20)
        assert over.is_set()
    server.submit(lambda: None, None).wait()
    assert not holder
    device.close()


def test_a_closed_session_says_so_whatever_it_is_asked():
    b = GraphBuilder("tiny")
    graph = b.finish(b.add("neg", b.input("x", T), names=["y"]))
    session = Session(
        graph, devices=[ToyDevice("cpu")], execution_options=AS_GIVEN, calibration=Calibration()
    )
    session.close()
    session.close()
    feeds = {"x": X}
    for use in (
        lambda: session.run(feeds),
        lambda: session.profile(feeds),
        lambda: session.stream([feeds]),
        lambda: session.run_traced(feeds),
        lambda: session.run_nodes(feeds, print),
        lambda: session.run_in_order(feeds, [0]),
    ):
        with pytest.raises(RunError, match="the session is closed"):
            use()


LEFT_OPEN = """
import atexit, sys

@atexit.register  # first of all, and so called last
def told():
    print("threads", sum(len(one._threads) for one in stream.dispatcher.threads), flush=True)

import numpy as np
from trireme.ir.builder import GraphBuilder
from trireme.cost.calibration import Calibration
from trireme.ir.graph import TensorType
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session

b = GraphBuilder("left")
x = b.input("x", TensorType((64, 64), "float32"))
for name in sys.argv[1].split(",") * 3:
    x = b.add("tanh", x, pin=name)
names = list(dict.fromkeys(sys.argv[1].split(",")))
session = Session(
    b.finish(x), devices=names, calibration=Calibration(),
    execution_options=ExecutionOptions(
        passes=(), device_options={"npu": {"float32": "float16"}}
    ),
)
stream = session.stream({"x": np.ones((64, 64), np.float32)} for _ in range(1000))
next(stream)
"""


@pytest.mark.parametrize("names", ["cpu,npu", "cpu,opencl"])
def test_a_stream_left_open_is_ended_with_its_process(names, devices):
    """A thread that comes back from a driver when Python is gone would abort the process."""
    if not set(names.split(",")) <= set(devices):
        pytest.skip(f"not all of {names} can be opened here")
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, names], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "threads 0\n"), done.stderr
