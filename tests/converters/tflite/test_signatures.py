"""TFLite files of several graphs, against LiteRT: a signature chooses, and without one the first
graph is taken and a warning names the others.
"""

import logging

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from tflite_builder import Op, Signature, Sub, T, model_of

import trireme
from trireme.runtime.options import ExecutionOptions
from trireme.runtime.session import Session
from trireme.support.errors import ConvertError, ModelFileError
from trireme.tools.cli import main

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def unary(code, name):
    return Sub([T((2, 3)), T((2, 3))], [Op(code, [0], [1])], [0], [1], name)


SUBS = [unary("TANH", "main"), unary("NEG", "negate"), unary("ABS", "spare")]
SIGNATURES = [
    Signature("encode", 0, {"sound": 0}, {"code": 1}),
    Signature("decode", 1, {"code": 0}, {"sound": 1}),
]
WANTED = {"encode": np.tanh(X), "decode": -X}


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "two.tflite"
    path.write_bytes(model_of(SUBS, SIGNATURES))
    return path


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.key)
def test_a_signature_chooses_its_graph_and_names(path, signature, caplog):
    (name,), (out,) = signature.inputs, signature.outputs
    wanted = Interpreter(str(path)).get_signature_runner(signature.key)(**{name: X})[out]
    np.testing.assert_allclose(wanted, WANTED[signature.key], rtol=1e-5)
    for model in (path, path, path.read_bytes()):
        with Session(model, execution_options=ExecutionOptions(signature=signature.key)) as session:
            np.testing.assert_allclose(session.run({name: X})[out], wanted, rtol=1e-5)
    assert not caplog.records


def test_without_one_the_first_is_taken_and_the_others_are_named(path, caplog):
    for model in (path, path, path.read_bytes()):  # empty cache, full cache, none
        caplog.clear()
        with caplog.at_level(logging.WARNING), Session(model) as session:
            np.testing.assert_allclose(session.run({"t0": X})["t1"], np.tanh(X), rtol=1e-5)
        assert "holds 3 graphs: 'encode' is taken, not 'decode', 'spare'" in caplog.text
        assert "--signature NAME" in caplog.text


def test_a_graph_without_a_signature_is_chosen_by_its_name(path):
    with Session(path, execution_options=ExecutionOptions(signature="spare")) as session:
        np.testing.assert_array_equal(session.run({"t0": X})["t1"], np.abs(X))


def test_an_unknown_signature_lists_those_there_are(path):
    with pytest.raises(ConvertError, match="no signature 'other'") as caught:
        trireme.convert(path, signature="other")
    assert caught.value.facts == ("signatures: 'encode', 'decode', 'spare'",)


def test_models_without_signatures_refuse_one(tmp_path):
    graph = trireme.convert(model_of(SUBS[:1]))
    trireme.save(graph, tmp_path / "one.trm")
    for model in (graph, tmp_path / "one.trm"):
        with pytest.raises(ConvertError, match="has no signatures, 'decode' was asked for"):
            Session(model, execution_options=ExecutionOptions(signature="decode", model_cache=None))


def test_a_file_of_one_graph_needs_no_word(caplog):
    trireme.convert(model_of(SUBS[:1], SIGNATURES[:1]))
    assert not caplog.records


def test_a_signature_of_no_subgraph_is_a_damaged_file():
    with pytest.raises(ModelFileError, match=r"signature_defs\[0\]\.subgraph_index is 3"):
        trireme.convert(model_of(SUBS, [Signature("lost", 3, {}, {})]))


def test_the_command_line_takes_a_signature(path, tmp_path, capsys):
    out = tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", X)
    given = ["run", str(path), "--input", f"code={tmp_path / 'x.npy'}", "--output", str(out)]
    assert main([*given, "--signature", "decode"]) == 0
    np.testing.assert_array_equal(np.load(out)["sound"], -X)
    assert main(["info", str(path), "--signature", "other"]) == 3
    assert "signatures: 'encode', 'decode', 'spare'" in capsys.readouterr().err
