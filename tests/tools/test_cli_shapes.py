"""Open shapes on the command line: symbols that stay open, sizes of symbols, and ranges."""

import json

import numpy as np
import pytest

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.tools.cli import main


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    b = GraphBuilder("open")
    x = b.input("x", TensorType(("n", "seq"), "float32"))
    y = b.add("softmax", b.add("tanh", x), axis=-1, names=["y"])
    trireme.save(b.finish(y), tmp_path / "open.trm")
    return str(tmp_path / "open.trm")


def test_sizes_of_symbols(model, capsys):
    assert main(["run", model, "--at", "n=2", "--at", "seq=5"]) == 0
    assert "y: float32[2, 5]" in capsys.readouterr().out
    assert main(["place", model, "--at", "n=2,seq=5"]) == 0
    assert "cpu" in capsys.readouterr().out


def test_buckets(model, capsys):
    assert main(["run", model, "--at", "n=2,seq=5", "--bucket", "seq=4,8"]) == 0
    shown = capsys.readouterr().out
    assert "y: float32[2, 5]" in shown
    assert "bucket seq=8" in shown
    assert main(["profile", model, "--at", "n=2,seq=5", "--bucket", "seq=4,8", "--runs", "1"]) == 0
    assert main(["run", model, "--at", "n=2,seq=9", "--bucket", "seq=4,8"]) != 0
    assert "its largest bucket is 8" in capsys.readouterr().err


def test_an_input_from_a_file_has_its_own_size(model, capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 4), np.float32))
    assert main(["run", model, "--input", f"x={tmp_path / 'x.npy'}", "--shape", "x=n<=8,seq"]) == 0
    assert "y: float32[3, 4]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--at", "q=2"], "symbols: n, seq"),
        (["--at", "n"], "expected SYMBOL=128"),
        (["--shape", "x=n<8,4"], "a symbol such as 'seq<=512'"),
        (["--shape", "x=n<=8,seq", "--at", "n=9,seq=3"], "symbol n is 9, expected 0..8"),
        (["--shape", "x=4<=n<=8,seq", "--at", "n=3,seq=3"], "symbol n is 3, expected 4..8"),
        (["--shape", "x=9<=n<=8,seq"], "the least size is above the most"),
        (["--shape", "x=n<=-8,seq"], "a symbol such as 'seq<=512'"),
        (["--shape", "x=-1,seq"], "shape [-1, 'seq'] was given"),
        (["--bucket", "seq=4,a"], "expected SYMBOL=64,128,512"),
        (["--shape", "x="], "expected NAME=1,3,224,224"),
        ([], "has open dimensions"),
    ],
)
def test_what_cannot_be_read(model, capsys, arguments, sentence):
    assert main(["run", model, *arguments]) != 0
    assert sentence in capsys.readouterr().err


def test_a_file_whose_shape_contradicts_a_bound(model, capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((9, 4), np.float32))
    given = ["run", model, "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([*given, "--shape", "x=n<=8,seq"]) != 0
    shown = capsys.readouterr().err
    assert "symbol n is 9, expected 0..8" in shown
    assert "the inputs' shapes: x [9, 4]" in shown


def test_a_range_of_sizes(model, capsys):
    assert main(["place", model, "--at", "n=2", "--over", "seq=1..64", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["symbol"] == "seq"
    (one,) = shown["ranges"]
    assert (one["low"], one["high"], one["nodes"]) == (1, 64, {"cpu": 2})
    assert 0 < one["predicted_s_at_low"] <= one["predicted_s_at_high"]
    assert main(["place", model, "--at", "n=2", "--over", "seq=1..64"]) == 0
    assert "one placement holds for the whole range" in capsys.readouterr().out
    assert main(["place", model, "--at", "n=2", "--over", "seq"]) != 0
    assert "expected SYMBOL=1..512" in capsys.readouterr().err


def test_a_profile_in_stages(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    b = GraphBuilder("chosen")
    x = b.input("x", TensorType(("n", 8), "float32"))
    where = b.add("non_zero", b.add("relu", x), names=["where"])
    trireme.save(b.finish(where), tmp_path / "chosen.trm")
    np.save(tmp_path / "x.npy", np.ones((3, 8), np.float32))
    given = ["profile", str(tmp_path / "chosen.trm"), "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([*given, "--runs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "in stages, 2 runs" in shown
    assert "then host: non_zero" in shown
    assert "grew outside of the arenas" in shown
    assert main([*given, "--runs", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["grown_bytes"] == 2 * 24 * 8
    assert main([*given, "--trace", str(tmp_path / "t.json")]) != 0
    assert "no one plan" in capsys.readouterr().err


def test_usual_sizes_where_none_are_given(model, capsys):
    assert main(["explain", model]) == 0
    assert "at usual sizes n=64, seq=64" in capsys.readouterr().out
    assert main(["explain", model, "--shape", "x=n<=8,seq", "--json"]) == 0
    assert "n=8, seq=64" in json.loads(capsys.readouterr().out)["remarks"][0]
    assert main(["place", model, "--at", "n=2"]) == 0
    assert "at usual sizes seq=64" in capsys.readouterr().out


def test_stages_are_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    b = GraphBuilder("chosen")
    x = b.input("x", TensorType(("n", 8), "float32"))
    trireme.save(b.finish(b.add("non_zero", b.add("relu", x))), tmp_path / "chosen.trm")
    assert main(["explain", str(tmp_path / "chosen.trm")]) == 0
    assert "then host: non_zero" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "chosen.trm"), "--plan"]) != 0
    assert "no one plan" in capsys.readouterr().err
