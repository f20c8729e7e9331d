"""What ends with a session, or in a run that a device fails, runs no Python code.

An interrupt that came there would be lost: see python_of_ends.
"""

import gc

import numpy as np
import pytest
from ends import python_of_ends
from failing_sessions import X, chain
from faults import Fault, inject
from opencl import need_opencl

from trireme.model_file import save
from trireme.placement.options import PlacementOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import FaultKind

FAULTS = [None, ("launch", None), ("wait", None), ("wait", FaultKind.HANG)]


def opened(model):
    return Session(
        model,
        devices=["opencl", "cpu"],
        fallback=True,
        placement_options=PlacementOptions(pins={"a": "cpu", "d": "opencl"}),
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_in_which_another_session_ends(fault):
    """The sessions share what is known of opencl, and the thread that looks at their runs."""
    need_opencl()
    graph = chain(("a", "d"))
    faults = [] if fault is None else [Fault("opencl", fault[0], 7, fault[1])]
    with inject(*faults) as points, opened(graph) as session:
        others = [opened(graph)]
        for one in (session, *others):
            for _ in range(3):
                one.run({"x": X})
        session.prepare_fallbacks()
        others[0].close()
        with python_of_ends() as called:
            others.clear()
            del one
            for _ in range(2):
                found = session.run({"x": X})["d"]
        assert bool(points.raised) is bool(faults)
    assert not called
    with Session(graph) as plain:
        np.testing.assert_allclose(found, plain.run({"x": X})["d"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("where", ["graph", "file", "stored"])
def test_a_session_that_is_closed(tmp_path, where, monkeypatch):
    monkeypatch.setenv("TRIREME_CACHE_DIR", str(tmp_path / "caches"))
    model = chain()
    if where != "graph":
        save(model, tmp_path / "m.trm")
        model = tmp_path / "m.trm"
    if where == "stored":
        with Session(model) as session:
            session.run({"x": X})
    held = [Session(model)]
    assert held[0].is_stored is (where == "stored")
    held[0].run({"x": X})
    held[0].close()
    gc.collect()
    with python_of_ends() as called:
        held.clear()
        gc.collect()
    assert not called
