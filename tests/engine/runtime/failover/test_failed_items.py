"""Items of streams and replicas, and profiles, that a device fails go to other devices."""

import numpy as np
import pytest
from failing_sessions import ALL, X, chain, failing, open_mixed, sums
from faults import Fault, inject
from opencl import need_opencl

from trireme.placement.options import PlacementOptions
from trireme.runtime.session.replicas import Replicas
from trireme.runtime.session.session import Session
from trireme.support.errors import FaultKind

ITEMS = [{"x": X + k} for k in range(8)]


def on_opencl(*faults, **more):
    """A session of two tasks, the second of which the faults' device runs."""
    pins = PlacementOptions(pins={"a": "cpu", "d": "opencl"})
    graph = chain(("a", "d"))
    return failing(*faults, graph=graph, placement_options=pins, **more)


@pytest.mark.parametrize("depth", [1, None])
@pytest.mark.parametrize(
    "point, kind", [("launch", None), ("wait", None), ("wait", FaultKind.HANG)]
)
def test_items_of_a_stream_go_to_other_devices(point, kind, depth):
    """An array that the caller fills again meanwhile does not change what an item is."""
    need_opencl()
    with Session(chain(("a", "d")), devices=["cpu"]) as session:
        left = [session.run(one)["d"] for one in ITEMS]
    with on_opencl() as (session, _):
        whole = [session.run(one)["d"] for one in ITEMS]
    buffer = {"x": np.empty_like(X)}

    def fed():
        for one in ITEMS:
            buffer["x"][...] = one["x"]
            yield buffer

    with on_opencl(Fault("opencl", point, 4, kind)) as (session, points):
        session.run(ITEMS[0])
        with session.stream(fed(), depth) as stream:
            found = [one["d"] for one in stream]
        assert points.raised and session.events[0].action == "ran again"
        moved = [np.array_equal(one, want) for one, want in zip(found, left, strict=True)]
        kept = [np.array_equal(one, want) for one, want in zip(found, whole, strict=True)]
        assert all(a or b for a, b in zip(moved, kept, strict=True)) and any(moved)
        assert session.devices_out == {"opencl"}
        assert session.devices["opencl"].is_lost is bool(kind)


def test_items_of_replicas_go_to_other_devices():
    need_opencl()
    pins = PlacementOptions(pins={"a": "cpu", "d": "opencl"})
    with inject(Fault("opencl", "launch", 3)) as points:
        replicas = Replicas(
            chain(("a", "d")),
            2,
            devices=["cpu", "opencl"],
            fallback=True,
            placement_options=pins,
        )
        with replicas:
            found = [one["d"] for one in replicas.stream(ITEMS)]
        assert points.raised
    with Session(chain(("a", "d"))) as session:
        for one, feeds in zip(found, ITEMS, strict=True):
            np.testing.assert_allclose(one, session.run(feeds)["d"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ["cpu", "opencl"])
@pytest.mark.parametrize("depth", [None, 3])
def test_items_of_a_stream_with_states_begin_with_whole_states(device, point, depth):
    """Items of such a stream read what those before them wrote: the item that fails, too."""
    need_opencl()
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    left = {"cpu": "opencl", "opencl": "cpu"}[device]
    with Session(sums(), devices=[left]) as session:
        want = [one["z"] for one in session.stream(ITEMS)]
        state = session.get_state()["sum"]
    for nth in range(1, 7):
        with failing(Fault(device, point, nth), graph=sums(), placement_options=pins) as found:
            session, points = found
            made = [one["z"] for one in session.stream(ITEMS, depth)]
            np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(session.get_state()["sum"], state)
            if points.raised:
                assert session.events[-1].action == "ran again"


@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("point", ["launch", "wait"])
@pytest.mark.parametrize("device", ALL)
def test_a_profile_is_that_of_the_devices_that_are_left(device, point, nth):
    need_opencl()
    with inject(Fault(device, point, nth)) as points, open_mixed(chain()) as session:
        made = session.profile({"x": X}, runs=2, warmup=1)
        assert made.runs == 2
        if points.raised:
            assert device not in {row.device for row in made.tasks}
            assert (made.events[-1].action, made.events[-1].device) == ("ran again", device)
        session.run({"x": X})


def test_a_profile_leaves_the_states_of_its_runs():
    need_opencl()
    pins = PlacementOptions(pins={"z": "opencl", "y": "cpu"})
    faults = [Fault("opencl", "launch", 3)]
    with failing(*faults, graph=sums(), placement_options=pins) as (session, points):
        made = session.profile({"x": X}, runs=2, warmup=1)
        assert points.raised and made.runs == 2
        state = session.get_state()["sum"]
        whole = round(float(state.sum() / X.sum()))
        np.testing.assert_allclose(state, whole * X, rtol=1e-4, atol=1e-5)
