"""Random nested control flow through a Session, against ONNX Runtime."""

import numpy as np
import pytest
from programs import peer
from random_programs import random_program
from sweep import sweep

from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session


def runs(model, seed, threads):
    """The results of runs of several numbers of turns, on the cpu."""
    rng = np.random.default_rng(seed)
    with Session(model, devices=["cpu"], threads=threads) as session:
        return [session.run(feeds_of(turns, rng)) for turns in (3, 0, 1)]


def feeds_of(turns, rng):
    return {
        "n": np.array(turns),
        "x": rng.standard_normal(3).astype(np.float32),
        "xs": rng.standard_normal((4, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("seed", sweep(range(60), always=(7, 14, 35, 47)))
def test_native_turns_of_random_programs_have_the_bits_of_driven_ones(seed, monkeypatch):
    print("seed", seed)
    model = random_program(seed)
    native = runs(model, seed, 1), runs(model, seed, 2)
    monkeypatch.setattr("trireme.runtime.control.repeat.native_turns", lambda *_: None)
    driven = runs(model, seed, 1)
    for found in native:
        for one, other in zip(found, driven, strict=True):
            for name, array in one.items():
                assert array.tobytes() == other[name].tobytes()


@pytest.mark.parametrize("seed", sweep(range(120), always=range(0, 120, 8)))
def test_random_programs_equal_onnx_runtime(seed):
    print("seed", seed)
    model, rng = random_program(seed), np.random.default_rng(seed)
    devices = (None, ["cpu", "opencl"], ["npu", "cpu"])[seed % 3]
    how = ExecutionOptions(execution=("sunk", "interactive")[seed % 2])
    with Session(model, devices=devices, execution_options=how) as session:
        for turns in (3, 0, 1):
            feeds = feeds_of(turns, rng)
            found = session.run(feeds)
            for name, right in peer(model, feeds).items():
                np.testing.assert_allclose(found[name], right, rtol=1e-3, atol=1e-4)
