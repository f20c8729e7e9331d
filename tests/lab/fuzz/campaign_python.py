"""Random programs of Python, captured, beside plain Python: on the references and in a session."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from random_python import load, source

import trireme
from lab.fuzz.campaign import Report

_RUNS = 6


def campaign_python(seeds: Iterable[int], folder: Path | None = None) -> Report:
    """Return what became of the programs of some seeds; failing ones are written to the folder."""
    report = Report()
    with tempfile.TemporaryDirectory() as own:
        for seed in seeds:
            rng = np.random.default_rng(seed)
            text = source(rng)
            path = Path(own) / f"program_{seed}.py"
            wrong = _difference(load(text, path), rng)
            report.counts["equal" if not wrong else "wrong"] += 1
            if wrong:
                report.failed.append(f"seed {seed}: {wrong}\n{text}")
                if folder is not None:
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / path.name).write_text(text)
    return report


def _difference(program: Callable[..., Any], rng: np.random.Generator) -> str:
    """Return how the captured program differs from the program; "" where it does not."""
    cases = [
        (*(np.int64(n) for n in rng.integers(-9, 20, 2)), np.float64(rng.normal()))
        for _ in range(_RUNS)
    ]
    wanted = [program(*case) for case in cases]
    if any(abs(number) > 1 << 62 for found in wanted for number in found):
        return ""  # Python's integers do not wrap
    try:
        captured = trireme.capture(program, *cases[0], fallback=False)
        graph = captured.graph()
        with trireme.Session(graph, threads=1) as session:
            for case, right in zip(cases, wanted, strict=True):
                np.testing.assert_allclose(captured(*case), right, rtol=1e-12)
                made = list(session.run(dict(zip("abx", case, strict=True))).values())
                if len(made) == len(right):  # a constant result is no output of the graph
                    np.testing.assert_allclose(made, right, rtol=1e-12)
    except (AssertionError, trireme.TriremeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
