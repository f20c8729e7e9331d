"""`trireme convert FILE.py:FUNCTION` captures a function; other commands take the .trm file."""

import numpy as np
import pytest

import trireme
from trireme.tools.cli import main

PROGRAM = """
import numpy as np


def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def scaled(x, factor=2):
    return np.tanh(x) * factor


def printed(x):
    print(x)
    return x


number = 3
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_with_a_loop_is_converted_and_run(program, tmp_path, capsys):
    assert main(["convert", f"{program}:collatz", "--input", "n=int64[]"]) == 0
    np.save(tmp_path / "n.npy", np.int64(27))
    out = tmp_path / "out.npz"
    fed = ["--input", f"n={tmp_path / 'n.npy'}", "--output", str(out)]
    assert main(["run", str(program.with_suffix(".trm")), *fed]) == 0
    (steps,) = np.load(out).values()
    assert steps == 111


def test_symbols_have_their_bounds(program, tmp_path):
    made = tmp_path / "scaled.trm"
    row = "x=float32[n<=8,3]"
    assert main(["convert", f"{program}:scaled", "--input", row, "-o", str(made)]) == 0
    with trireme.Session(made) as session:
        for n in (1, 8):
            x = np.ones((n, 3), np.float32)
            (y,) = session.run({"x": x}).values()
            np.testing.assert_allclose(y, np.tanh(x) * 2, rtol=1e-6)
        with pytest.raises(trireme.RunError, match=r"symbol n is 9, expected 0\.\.8"):
            session.run({"x": np.ones((9, 3), np.float32)})


WRONG = {
    "no input": (["{}:collatz"], "the type of parameter n is missing"),
    "no type": (["{}:collatz", "--input", "n=7"], "--input n=7 is no type"),
    "no dtype": (["{}:collatz", "--input", "n=word[]"], "word"),
    "no parameter": (["{}:collatz", "--input", "m=int64[]"], "the function has no parameter m"),
    "no function": (["{}:number"], "has no function number"),
    "cannot be captured": (["{}:printed", "--input", "x=float32[2]"], "program.py:18: `print(x)`"),
    "a file that is missing": (["{}.py:f"], "there is no file"),
    "types of a model": (["{}.onnx", "--input", "x=float32[2]"], "the model is a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_programs_get_a_sentence(program, name, capsys):
    arguments, sentence = WRONG[name]
    assert main(["convert", *(one.format(program) for one in arguments)]) != 0
    said = capsys.readouterr().err
    assert sentence in said, said
    assert "Traceback" not in said
