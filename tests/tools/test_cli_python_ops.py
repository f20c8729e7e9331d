"""`--python-ops FILE`: Python operators on the command line, from a file that the user names."""

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.tools.cli import main

FILE = """
import trireme

@trireme.python_op
def double(x):
    return x + x

python_ops = {"double": double}
"""


@pytest.fixture
def model(tmp_path):
    double = trireme.python_op(lambda x: x + x, name="double")
    b = GraphBuilder("g")
    x = b.input("x", TensorType((2, 3), "float32"))
    path = tmp_path / "g.trm"
    trireme.save(b.finish(b.add("python", b.add("relu", x), **double.attrs(), names=["y"])), path)
    np.save(tmp_path / "x.npy", np.float32([[1, -2, 3], [0, 4, -5]]))
    return path


def written(folder, text):
    path = folder / "own.py"
    path.write_text(text)
    return str(path)


def test_a_model_runs_with_the_functions_of_the_file(model, tmp_path, capsys):
    own = written(tmp_path, FILE)
    given, out = f"x={tmp_path / 'x.npy'}", tmp_path / "out.npz"
    command = ["run", str(model), "--python-ops", own, "--input", given, "--output", str(out)]
    assert main(command) == 0
    assert np.load(out)["y"].tolist() == [[2, 0, 6], [0, 8, 0]]
    for name in ("info", "place", "profile"):
        assert main([name, str(model), "--python-ops", own]) == 0
    assert "python function double" in capsys.readouterr().out


def test_bench_times_a_model_with_python_operators(model, tmp_path, capsys):
    own = written(tmp_path, FILE)
    command = ["bench", str(model), "--python-ops", own, "--threads", "1", "--against", ""]
    assert main([*command, "--rounds", "2", "--duration", "0.05"]) == 0
    printed = capsys.readouterr().out
    assert "trireme" in printed and "not given" not in printed


@pytest.mark.parametrize(
    "text, sentence",
    [
        (None, "there is no file"),
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "has no dict python_ops of Python operators"),
        ("python_ops = {'double': len}", "has no dict python_ops of Python operators"),
        ("python_ops = {}", "not given: double"),
    ],
)
def test_what_is_wrong_with_the_file_is_said(model, tmp_path, capsys, text, sentence):
    own = str(tmp_path / "none.py") if text is None else written(tmp_path, text)
    assert main(["run", str(model), "--python-ops", own]) != 0
    assert sentence in capsys.readouterr().err


def test_without_the_file_the_functions_are_listed(model, capsys):
    assert main(["run", str(model)]) != 0
    assert "functions that are not given: double" in capsys.readouterr().err
