"""Over a hundred faults, at load and at run time: no device is ever changed without a word."""

import itertools

import numpy as np
import pytest
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.ir.interpreter import run_reference
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import CompileError, DeviceError, RunError, TriremeError

MODES = list(
    itertools.product(("serial", "parallel"), ("merged", "split"), ("sunk", "interactive"))
)
LOAD = {"compile": CompileError, "alloc": DeviceError, "crash": CompileError}
RUN = ("write", "read", "launch", "wait")
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


class Faulty(ToyDevice):
    """A toy that fails at one thing, from its `at`-th use on."""

    def __init__(self, name, what="", at=0, **options):
        super().__init__(name, **options)
        self.what, self.at, self.uses = what, at, 0
        self.error = None

    def step(self, what):
        if self.what == what:
            self.uses += 1
            if self.uses > self.at:
                raise self.error or DeviceError(f"{self.spec.name} was told to fail at {what}")

    def compile(self, graphs):
        if self.what == "compile":
            raise CompileError("npu was told to fail at compile")
        if self.what == "crash":
            raise ValueError("npu was told to fail at crash")
        made = super().compile(graphs)
        for executable in made:
            bind = executable.bind
            executable.bind = lambda args, scratch, bind=bind: _Call(self, bind(args, scratch))
        return made

    def alloc(self, nbytes):
        self.step("alloc")
        return super().alloc(nbytes)

    def write(self, target, source):
        self.step("write")
        super().write(target, source)

    def read(self, source, target):
        self.step("read")
        super().read(source, target)


class _Call:
    def __init__(self, device, call):
        self.device, self.call = device, call

    def launch(self, profile=False):
        self.device.step("launch")
        self.event = self.call.launch(profile)
        return self

    def wait(self):
        self.device.step("wait")
        self.event.wait()

    def spans(self):
        return self.event.spans()


def graph_of(pinned=True):
    b = GraphBuilder("faults")
    pin = "npu" if pinned else None
    x = b.input("x", TensorType((3, 8), "float32"))
    one = b.add("tanh", x, pin=pin)
    two = b.add("relu", one, pin="cpu" if pinned else None)
    three = b.add("neg", two, pin=pin)
    return b.finish(b.add("add", three, b.add("relu", x, pin=pin), pin=pin, names=["y"]))


def open_session(graph, npu, mode, **options):
    return Session(
        graph,
        devices=[ToyDevice("cpu"), npu],
        execution_options=ExecutionOptions(passes=(), subgraphs=mode[1], execution=mode[2]),
        calibration=Calibration(),
        mode=mode[0],
        **options,
    )


@pytest.mark.parametrize("what", LOAD)
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_faults_at_load_time_come_out(what, mode):
    npu = Faulty("npu", what)
    with pytest.raises(LOAD[what], match=f"told to fail at {what}"):
        open_session(graph_of(), npu, mode)


def assert_names_the_launch(error, plan):
    """Its facts are the tasks that were launched together, their devices and nodes."""
    wanted = {f"task {t.index} on {t.device}: {t.nodes[0].label}" for t in plan.tasks}
    assert error.facts
    for fact in error.facts:
        assert any(fact.startswith(one) for one in wanted), (fact, wanted)


@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_a_launch_that_fails_in_any_way_is_typed_and_named(mode):
    """A device from outside may raise anything."""
    graph, npu = graph_of(), Faulty("npu", "launch")
    npu.error = ZeroDivisionError("its own fault")
    with open_session(graph, npu, mode) as session:
        with pytest.raises(DeviceError, match="ZeroDivisionError: its own fault") as caught:
            session.run({"x": X})
        assert_names_the_launch(caught.value, session.plan)
        with pytest.raises(DeviceError, match="ZeroDivisionError: its own fault") as caught:
            session.run_nodes({"x": X}, lambda step: None)
        assert_names_the_launch(caught.value, session.plan)
        with pytest.raises(RunError, match="item 0 of the stream: .*its own fault"):
            next(session.stream([{"x": X}]))


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("what", RUN)
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_faults_at_run_time_come_out_and_the_session_goes_on(what, mode, at):
    """The error is the device's own; nothing ran elsewhere instead; the next run is right."""
    graph, npu = graph_of(), Faulty("npu", what, at)
    want = run_reference(graph, {"x": X})["y"]
    with open_session(graph, npu, mode) as session:
        placed = dict(session.placement.device_of)
        uses = npu.uses
        for _ in range(4):
            try:
                np.testing.assert_array_equal(session.run({"x": X})["y"], want)
            except TriremeError as error:
                assert isinstance(error, DeviceError) and f"fail at {what}" in error.summary
                assert_names_the_launch(error, session.plan)
                break
        else:
            pytest.fail(f"no error came out of {npu.uses - uses} uses")
        assert dict(session.placement.device_of) == placed and not session.dropped
        npu.what = ""
        np.testing.assert_array_equal(session.run({"x": X})["y"], want)


@pytest.mark.parametrize("at", [0, 1, 2, 5])
@pytest.mark.parametrize("what", RUN)
def test_faults_of_a_stream_come_out_and_the_session_goes_on(what, at):
    """The runs that come are right, each other names itself; run and stream go on after it."""
    graph, npu = graph_of(), Faulty("npu", what, at)
    want = run_reference(graph, {"x": X})["y"]
    with open_session(graph, npu, MODES[0]) as session:
        placed = dict(session.placement.device_of)
        stream, failed = session.stream([{"x": X}] * 8, depth=2), 0
        for item in range(8):
            try:
                np.testing.assert_array_equal(next(stream)["y"], want)
            except RunError as error:
                assert str(error).startswith(f"item {item} of the stream: npu was told to fail")
                assert isinstance(error.__cause__, DeviceError)
                failed += 1
        assert failed and not list(stream)
        assert dict(session.placement.device_of) == placed and not session.dropped
        npu.what = ""
        np.testing.assert_array_equal(session.run({"x": X})["y"], want)
        again = [found["y"] for found in session.stream([{"x": X}] * 3, depth=2)]
        np.testing.assert_array_equal(again, [want] * 3)


@pytest.mark.parametrize("what", ["compile"])
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_a_fallback_is_in_the_report(what, mode):
    graph = graph_of(pinned=False)
    slow = ToyDevice("cpu", flops=1.0, bandwidth=1.0)
    npu = Faulty("npu", what, flops=1e15, bandwidth=1e15, launch_s=0.0, link_bandwidth=1e15)
    with Session(
        graph,
        devices=[slow, npu],
        execution_options=ExecutionOptions(passes=(), subgraphs=mode[1], execution=mode[2]),
        calibration=Calibration(),
        fallback=True,
        mode=mode[0],
    ) as session:
        assert f"fail at {what}" in session.dropped["npu"]
        assert not session.placement.nodes_on("npu") if "npu" in session.devices else True
        np.testing.assert_array_equal(
            session.run({"x": X})["y"], run_reference(graph, {"x": X})["y"]
        )
