"""The names of the package itself: all there, each imported when it is first used, and soon."""

import statistics
import subprocess
import sys
import time

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

LOADED = (
    "import sys, trireme; print(*(name for name in sys.modules if name.startswith('trireme.')))"
)


def test_every_public_name_is_there():
    for name in trireme.__all__:
        assert getattr(trireme, name) is not None
        assert name in dir(trireme)
    with pytest.raises(AttributeError, match="no attribute 'Sesion'"):
        trireme.Sesion  # noqa: B018


def test_importing_the_package_loads_no_room_but_support():
    made = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True
    )
    rooms = {name.split(".")[1] for name in made.stdout.split()}
    assert rooms == {"support", "version"}


def test_ops_are_there_when_they_are_first_looked_up():
    code = "from trireme.ir.op import {0}; print({1})"
    for name, call in (("get_op", "get_op('relu').name"), ("has_op", "has_op('relu')")):
        run = [sys.executable, "-c", code.format(name, call)]
        made = subprocess.run(run, capture_output=True, text=True, check=True)
        assert made.stdout.split()[0] in ("relu", "True")


@pytest.mark.timed
def test_importing_the_package_takes_a_quarter_of_a_second():
    took = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import trireme"], check=True)
        took.append(time.perf_counter() - start)
    print(f"{statistics.median(took):.3f} s")
    assert statistics.median(took) <= 0.25


def test_objects_are_shown_by_their_text():
    b = GraphBuilder("small <net>")
    graph = b.finish(b.add("relu", b.input("x", TensorType((2,), "float32"))))
    with trireme.Session(graph, devices=["cpu"]) as session:
        placement, profile = session.placement, session.profile({"x": np.ones(2, np.float32)}, 1, 0)
        assert repr(session) == "<Session: 'small <net>' on cpu: x float32[2]>"
        assert repr(placement).startswith("<Placement: placement of 'small <net>': ")
        assert repr(profile).startswith("<Profile: profile of 'small <net>', 1 runs")
        for one in (session, placement, profile):
            assert one._repr_html_().startswith("<pre>") and "&lt;net&gt;" in one._repr_html_()
