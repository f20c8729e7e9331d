"""Random nested control flow through a Session, against ONNX Runtime."""

import numpy as np
import pytest
from programs import peer
from random_programs import random_program
from sweep import sweep

from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session


@pytest.mark.parametrize("seed", sweep(range(120), always=range(0, 120, 8)))
def test_random_programs_equal_onnx_runtime(seed):
    print("seed", seed)
    model, rng = random_program(seed), np.random.default_rng(seed)
    devices = (None, ["cpu", "opencl"], ["npu", "cpu"])[seed % 3]
    how = ExecutionOptions(execution=("sunk", "interactive")[seed % 2])
    with Session(model, devices=devices, execution_options=how) as session:
        for turns in (3, 0, 1):
            feeds = {
                "n": np.array(turns),
                "x": rng.standard_normal(3).astype(np.float32),
                "xs": rng.standard_normal((4, 3)).astype(np.float32),
            }
            found = session.run(feeds)
            for name, right in peer(model, feeds).items():
                np.testing.assert_allclose(found[name], right, rtol=1e-3, atol=1e-4)
