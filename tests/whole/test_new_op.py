"""A new elementwise op touches one engine file, and one file of each device that has a kernel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import new_op
import pytest
from zoo import CHECKOUT

LINES = {
    "ops/unary.py": (
        'unary("square",',
        'unary("bump", "y = e^(-x^2)", in_double(lambda x: np.exp(-x * x)), 12, 2e-6)',
    ),
    "devices/cpu/kernels/expressions.py": (
        '    "exp": _single(',
        '    "bump": _single(_plain(lambda fn, x: mathfn.exp(fn, -(x * x)))),',
    ),
    "devices/opencl/kernels/expressions.py": (
        '    "exp": Expression(',
        '    "bump": Expression("exp(-{0} * {0})"),',
    ),
}
"""A line of each file, and the line that is put before it."""


@pytest.fixture
def tree(tmp_path):
    """A copy of the package in which somebody has added an op."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "engine", tmp_path / "trireme", ignore=without)
    for folder in ("schema", "converters", "devices", "tools"):
        shutil.copytree(CHECKOUT / folder, tmp_path / "trireme" / folder, ignore=without)
    for name, (before, line) in LINES.items():
        path = tmp_path / "trireme" / name
        text = path.read_text()
        assert text.count(before) == 1, name
        path.write_text(text.replace(before, f"{line}\n{before}"))
    return tmp_path


def test_a_new_elementwise_op_is_known_in_every_stage(tree):
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, str(Path(new_op.__file__))]
    ran = subprocess.run(
        command, env=environment, cwd=tree, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
