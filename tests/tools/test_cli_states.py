"""States on the command line: kept in a file from one command to the next."""

import json

import numpy as np
import pytest
from onnx import parser
from programs import HEAD
from stateful_models import PeerRuns, random_model

from trireme.tools.cli import main


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "model.onnx"
    path.write_bytes(random_model(1, True).model.SerializeToString())
    return str(path)


def test_a_state_goes_from_one_command_to_the_next(model, tmp_path, capsys):
    stateful, state = random_model(1, True), str(tmp_path / "state.npz")
    peer = PeerRuns(stateful.model, stateful.initial())
    rng = np.random.default_rng(1)
    for k, rows in enumerate((3, 1, 2)):
        x = rng.standard_normal((2, rows, 4)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        arguments = ["run", model, "--state", "past.*=present.*", "--input"]
        arguments += [f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "y.npz")]
        arguments += ["--save-state", state, *(["--load-state", state] if k else [])]
        assert main(arguments) == 0
        assert "present" not in capsys.readouterr().out
        with np.load(tmp_path / "y.npz") as made:
            assert made.files == ["y"]
            np.testing.assert_allclose(made["y"], peer.run({"x": x})["y"], rtol=1e-5, atol=1e-6)


@pytest.fixture
def sum_of_inputs(tmp_path):
    """A model whose one output is a state."""
    text = "sum (float[1,4] x, float[1,4] s) => (float[1,4] t) { t = Add(s, x) }"
    path = tmp_path / "sum.onnx"
    path.write_bytes(parser.parse_model(HEAD + text).SerializeToString())
    return str(path)


def test_a_run_without_outputs_shows_the_states(sum_of_inputs, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.full((1, 4), 2, np.float32))
    arguments = ["run", sum_of_inputs, "--state", "s=t", "--input", f"x={tmp_path / 'x.npy'}"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == ["state s: float32[1, 4] [2.0, 2.0, 2.0, 2.0]"]
    assert main([*arguments, "--labels", str(tmp_path / "x.npy")]) == 2
    assert "there is none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--state", "past"], "expected INPUT=OUTPUT"),
        (["--state", "past.9=present.9"], "no input is called 'past.9'"),
        (["--state", "past.*=present.*", "--load-state", "none.npz"], "no file of states"),
    ],
)
def test_states_that_do_not_fit(model, capsys, arguments, sentence):
    assert main(["run", model, "--shape", "x=2,1,4", *arguments]) != 0
    assert sentence in capsys.readouterr().err


def test_a_profile_leaves_the_state(model, capsys):
    arguments = ["--state", "past.*=present.*", "--shape", "x=2,1,4", "--runs", "2", "--json"]
    assert main(["profile", model, *arguments]) == 0
    assert json.loads(capsys.readouterr().out)
