"""Random programs with nested control flow: a captured graph gives what Python gives."""

import numpy as np
import pytest
from random_python import load, source
from sweep import sweep

import trireme

RUNS = 6


@pytest.mark.parametrize("seed", sweep(list(range(200)), always=list(range(25))))
def test_a_random_program_gives_what_python_gives(seed, tmp_path):
    rng = np.random.default_rng(seed)
    text = source(rng)
    program = load(text, tmp_path / f"random_{seed}.py")
    cases = [
        (np.int64(rng.integers(-9, 20)), np.int64(rng.integers(-9, 20)), np.float64(rng.normal()))
        for _ in range(RUNS)
    ]
    captured = trireme.capture(program, *cases[0], fallback=False)
    for case in cases:
        wanted = program(*case)
        got = captured(*case)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, err_msg=f"seed {seed}: {case}\n{text}")
