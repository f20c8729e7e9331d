"""Streams: many runs in flight, the bits and the order of one run after another."""

import threading
import time

import numpy as np
import pytest
from forced import pinned_at_random
from random_graphs import random_feeds, random_graph
from sweep import sweep
from toy_device import ToyDevice

from trireme.cost.calibration import Calibration
from trireme.ir.builder import GraphBuilder, scalar
from trireme.ir.graph import TensorType
from trireme.placement.options import PlacementOptions
from trireme.plan.flow import flow_of, state_waits, steady_s
from trireme.plan.plan import make_plan
from trireme.runtime.program.options import AS_GIVEN
from trireme.runtime.session.replicas import profile_stream
from trireme.runtime.session.session import Session
from trireme.support.errors import DeviceError, PlanError, RunError


def chain(stages=3):
    """x + 1 + 2 + ..., a node a device."""
    b = GraphBuilder("chain")
    value = b.input("x", TensorType((4, 100), "float32"))
    for stage in range(stages):
        one = b.constant(f"c{stage}", scalar(stage + 1.0))
        value = b.add_node("add", [value, one], {}, names=["y"], pin=f"d{stage}")[0]
    return b.finish(value)


def toys(stages=3, **options):
    return [ToyDevice(f"d{stage}", launch_s=1e-3, **options) for stage in range(stages)]


def open_chain(stages=3, **options):
    return Session(
        chain(stages),
        devices=toys(stages, **options),
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    )


def items(count):
    return [{"x": np.full((4, 100), i, np.float32)} for i in range(count)]


@pytest.mark.parametrize("depth", [None, 1, 2, 3, 7])
def test_a_chain_over_three_devices(depth):
    with open_chain() as session:
        outputs = list(session.stream(items(20), depth))
    assert len(outputs) == 20
    for i, output in enumerate(outputs):
        assert (output["y"] == i + 6).all()


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("seed", sweep(range(6), always=[1, 4]))
def test_random_graphs_on_the_devices(devices, seed, quantised):
    graph = pinned_at_random(random_graph(seed, 12, quantised=quantised), devices, seed)
    feeds = [random_feeds(graph, 100 * seed + i) for i in range(7)]
    with Session(
        graph,
        devices=list(devices.values()),
        execution_options=AS_GIVEN,
        calibration=Calibration(),
        placement_options=PlacementOptions(sharding="off", objective="serial"),
    ) as session:
        want = [session.run(one) for one in feeds]
        for depth in (None, 2, 4):
            got = list(session.stream(iter(feeds), depth))
            assert len(got) == len(want)
            for ours, theirs in zip(got, want, strict=True):
                for name, array in theirs.items():
                    assert ours[name].tobytes() == array.tobytes(), f"seed {seed} depth {depth}"


def test_runs_overlap():
    """The second run is on the first device while the first run is on the second."""
    begun, seen = threading.Event(), []
    one, two, three = toys()
    one.on_launch = lambda: begun.set() if one.launches == 2 else None
    two.on_launch = lambda: seen.append(begun.wait(30)) if two.launches == 1 else None
    with Session(
        chain(),
        devices=[one, two, three],
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    ) as session:
        assert len(list(session.stream(items(4)))) == 4
    assert seen == [True]


@pytest.mark.timed
def test_runs_that_overlap_take_less():
    """Three devices of 20 ms each: a run alone takes 60, the next one comes 20 later."""
    with open_chain(delay_s=0.02) as session:
        list(session.stream(items(3)))
        start = time.perf_counter()
        list(session.stream(items(10)))
        seconds = time.perf_counter() - start
    assert 0.2 < seconds < 0.45, f"10 runs took {seconds:.3f} s, one after another 0.6"


def counter():
    """y = x + s; s := y * 2, with work before and after on another device."""
    b, type = GraphBuilder("counter"), TensorType((8,), "float32")
    x = b.input("x", type)
    first = b.add("tanh", x, pin="d0")
    zeros = b.constant("zeros", np.zeros(8, np.float32))
    old = b.add("variable", zeros, state="s")
    y = b.add("add", first, old, pin="d1")
    new = b.add("mul", y, b.constant("two", scalar(2.0)), pin="d0")
    b.add("assign", new, state="s")
    return b.finish(b.add_node("sub", [y, first], {}, names=["y"], pin="d1")[0])


@pytest.mark.parametrize("depth", [None, 2, 5])
def test_states_keep_their_order(depth):
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal(8).astype(np.float32)} for _ in range(25)]
    with Session(
        counter(),
        devices=toys(2),
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    ) as session:
        assert state_waits(session.plan)
        want = [session.run(one)["y"] for one in feeds]
        state = session.states["s"]
        session.states.clear()
        got = [output["y"] for output in session.stream(feeds, depth)]
        assert session.states["s"].tobytes() == state.tobytes()
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


class Failing(ToyDevice):
    """A toy whose launch number `at` fails."""

    at = 3

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.count = 0

    def compile(self, graphs):
        made = super().compile(graphs)
        for executable in made:
            bind = executable.bind
            executable.bind = lambda a, s, bind=bind: _Counted(self, bind(a, s))
        return made


class _Counted:
    def __init__(self, device, call):
        self.device, self.call = device, call

    def launch(self, profile=False):
        self.device.count += 1
        if self.device.count - 1 == self.device.at:
            raise DeviceError("it was told to fail")
        return self.call.launch(profile)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("depth", [1, 3])
def test_a_failure_names_its_item_and_the_others_go_on(place, depth):
    made = toys()
    made[place] = Failing(f"d{place}", launch_s=1e-3)
    with Session(
        chain(),
        devices=made,
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    ) as session:
        stream, got = session.stream(items(8), depth), {}
        for number in range(8):
            try:
                got[number] = next(stream)["y"]
            except RunError as error:
                assert error.summary.startswith("item 3 of the stream: it was told to fail")
                assert f"on d{place}: add" in str(error)
                assert isinstance(error.__cause__, DeviceError)
        assert next(stream, None) is None
        assert sorted(got) == [0, 1, 2, 4, 5, 6, 7]
        assert all((got[i] == i + 6).all() for i in got)
        assert (session.run(items(2)[1])["y"] == 7).all()


def test_inputs_that_do_not_fit_and_iterables_that_break():
    def feeds():
        yield from items(2)
        yield {"x": np.zeros(3, np.float32)}
        yield items(4)[3]
        raise KeyError("no more")

    with open_chain() as session:
        stream = session.stream(feeds())
        assert (next(stream)["y"] == 6).all() and (next(stream)["y"] == 7).all()
        with pytest.raises(RunError, match="item 2 of the stream: input 'x' is float32"):
            next(stream)
        assert (next(stream)["y"] == 9).all()
        with pytest.raises(KeyError):
            next(stream)
        assert next(stream, None) is None
        assert len(list(session.stream(items(4)))) == 4


def test_a_stream_that_is_left_leaves_nothing_behind():
    before = threading.active_count()
    with open_chain(delay_s=0.002) as session:
        with session.stream(items(1000)) as stream:
            assert (next(stream)["y"] == 6).all()
            with pytest.raises(RunError, match="a stream of this session is under way"):
                session.stream(items(1))
        assert list(stream) == []
        with session.stream(items(5)) as again:
            assert len(list(again)) == 5
        left = session.stream(items(1000))
        next(left)
    assert left.closed
    assert threading.active_count() <= before


def test_a_task_that_has_started_is_over_when_the_stream_is_closed():
    begun, over = threading.Event(), []

    def slowly():
        if two.launches == 2:
            begun.set()
            time.sleep(0.05)
            over.append("second item")

    one, two, three = toys()
    two.on_launch = slowly
    with Session(
        chain(),
        devices=[one, two, three],
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    ) as session:
        stream = session.stream(items(1000))
        next(stream)
        assert begun.wait(30)
        stream.close()
        assert over == ["second item"]
        launches = [one.launches, two.launches, three.launches]
        time.sleep(0.02)
        assert launches == [one.launches, two.launches, three.launches]


def test_reused_input_arrays_are_read_when_they_are_taken():
    array = np.zeros((4, 100), np.float32)

    def feeds():
        for i in range(12):
            array[:] = i
            yield {"x": array}

    with open_chain() as session:
        outputs = [o["y"][0, 0] for o in session.stream(feeds(), 4)]
    assert outputs == [i + 6.0 for i in range(12)]


def test_the_steady_state_is_the_busiest_resource():
    with open_chain() as session:
        plan = session.plan
    seconds = [task.estimate_s for task in plan.tasks]
    assert steady_s(plan, seconds, 1) == pytest.approx(sum(seconds))
    found = flow_of(plan, seconds)
    assert found.steady_s == pytest.approx(found.busy_s, rel=1e-2)
    assert found.alone_s == pytest.approx(sum(seconds))
    assert 2 <= found.depth <= 5
    for depth in range(1, 8):
        assert steady_s(plan, seconds, depth) >= found.busy_s * (1 - 1e-9)


def test_lanes_that_do_not_fit_are_refused_or_fewer():
    with Session(
        chain(),
        devices=toys(memory_bytes=2 * 1600 * 2),
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off"),
    ) as s:
        plan = s.plan
        each = plan.arenas["d0"].nbytes
        room = 2 * 1600 * 2 // each
        assert flow_of(plan, [1.0] * len(plan.tasks)).depth <= room
        with pytest.raises(PlanError, match="runs in flight do not fit: the memory of d0"):
            s.stream(items(3), room + 1)
        with pytest.raises(PlanError, match="at least 1 run"):
            s.stream(items(3), 0)
        assert len(list(s.stream(items(9)))) == 9


def test_the_plan_of_throughput_is_what_runs():
    """The predicted steady state of a placement for throughput is its score."""
    with Session(
        chain(),
        devices=toys(),
        execution_options=AS_GIVEN,
        placement_options=PlacementOptions(sharding="off", objective="throughput"),
    ) as session:
        plan = make_plan(session.placement)
        found = flow_of(plan, [task.estimate_s for task in plan.tasks])
        assert found.steady_s == pytest.approx(session.placement.score.value, rel=0.02)


def test_a_stream_is_profiled():
    with open_chain(delay_s=0.003) as session:
        found = profile_stream(session, items(1)[0], runs=24)
    assert 2 <= found.predicted.depth == found.virtual.depth
    assert not found.simulated
    assert found.virtual.steady_s < 0.6 * found.virtual.alone_s
    text = str(found)
    assert "in flight" in text and "times)" in text and "contexts" in text


@pytest.mark.timed
def test_a_profiled_stream_takes_less_than_its_runs_alone():
    with open_chain(delay_s=0.003) as session:
        found = profile_stream(session, items(1)[0], runs=24)
    assert found.wall_s < 0.7 * found.wall_alone_s
