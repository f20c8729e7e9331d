"""Recurrent layers of Keras as WHILE, against LiteRT: all turns run inside native code."""

import numpy as np
import pytest
from keras_loops import CELLS, LISTS, Layer, keras_loop
from litert import litert_run, random_inputs

from trireme import Session
from trireme.runtime.control.repeat import NATIVE
from trireme.support.errors import RunError

LAYERS = [Layer(cell, lists) for cell in CELLS for lists in LISTS]
LAYERS += [
    Layer("gru", "rows", batch=3, steps=1, inputs=5, units=7),
    Layer("lstm", "last", batch=2, steps=40, inputs=3, units=33),
    Layer("lstm", "rows", batch=2, steps=2, inputs=64, units=64),
    Layer("gru", "rows", turns=0),
    Layer("lstm", "update", turns=5),
    Layer("lstm", "rows", hybrid=True),
    Layer("lstm", "rows", masked=True),
    Layer("gru", "last", batch=2, masked=True),
]


def drivers(session):
    return [
        one
        for call in session.ready.latest().calls
        for one in getattr(call, "drivers", {}).values()
    ]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_all_turns_run_natively_with_the_bits_of_driven_ones(layer, monkeypatch):
    data = keras_loop(layer)
    feeds = random_inputs(data, layer.seed)
    if layer.masked:
        feeds["t0"][0, 1::3] = 0
    with Session(data, devices=["cpu"], threads=1) as session:
        assert [driver.kernel for driver in drivers(session)] == [NATIVE]
        found = session.run(feeds)
    for name, want in litert_run(data, feeds, reference=False).items():
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=2e-6)
    with Session(data, devices=["cpu"], threads=2) as session:
        for name, array in session.run(feeds).items():
            assert array.tobytes() == found[name].tobytes()
    monkeypatch.setattr("trireme.runtime.control.repeat.native_turns", lambda *_: None)
    with Session(data, devices=["cpu"], threads=1) as session:
        for name, array in session.run(feeds).items():
            assert array.tobytes() == found[name].tobytes()


@pytest.mark.parametrize("lists", LISTS)
def test_a_step_beyond_the_input_is_the_error_of_its_node(lists, monkeypatch):
    layer = Layer("gru", lists, steps=3, turns=4)
    data = keras_loop(layer)
    feeds = {"t0": np.zeros((1, 3, layer.inputs), np.float32)}
    messages = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr("trireme.runtime.control.repeat.native_turns", lambda *_: None)
        with Session(data, devices=["cpu"], threads=1) as session:
            with pytest.raises(RunError) as caught:
                session.run(feeds)
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "GATHER" in messages[0]
