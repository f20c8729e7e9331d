"""Sweeps that begin too late are left out, and the summary says so."""

import os
import subprocess
import sys
import time
from pathlib import Path

FILE = "tests/devices/npu/test_values.py"
ROOT = Path(__file__).parents[2]


def run(until):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "sweep", "-p", "no:cacheprovider", FILE],
        cwd=ROOT,
        env={**os.environ, "TRIREME_TEST_SWEEPS_UNTIL": str(until)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_sweeps_that_begin_too_late_are_named():
    late = run(time.time() - 1)
    assert late.returncode == 0, late.stdout + late.stderr
    assert "sweeps left out" in late.stdout and f" {FILE}" in late.stdout
    assert "passed" not in late.stdout
