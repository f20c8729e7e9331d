"""TFLite files of several graphs, against LiteRT: a signature chooses, and without one the first
graph is taken and a warning names the others.
"""

import logging

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from litert import interpreter
from tflite_builder import Op, SignatureDef, Sub, T, constant, model_of

import trireme
from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.errors import ConvertError, ModelFileError, RunError, TriremeError
from trireme.tools.cli import main

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


RESOURCE = T((1,), "resource")


def once(subgraph):
    return Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": subgraph})


def handle(tensor):
    options = {"Container": "", "SharedName": "counter"}
    return Op("VAR_HANDLE", [], [tensor], "VarHandleOptions", options)


def read(source, target):
    return Op("READ_VARIABLE", [source], [target], "ReadVariableOptions")


def assign(source, value):
    return Op("ASSIGN_VARIABLE", [source, value], [], "AssignVariableOptions")


def add_op(a, b, y):
    return Op("ADD", [a, b], [y], "AddOptions")


def unary(code, name):
    return Sub([T((2, 3)), T((2, 3))], [Op(code, [0], [1])], [0], [1], name)


SUBS = [unary("TANH", "main"), unary("NEG", "negate"), unary("ABS", "spare")]
SIGNATURES = [
    SignatureDef("encode", 0, {"sound": 0}, {"code": 1}),
    SignatureDef("decode", 1, {"code": 0}, {"sound": 1}),
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
        trireme.convert(model_of(SUBS, [SignatureDef("lost", 3, {}, {})]))


def test_the_command_line_takes_a_signature(path, tmp_path, capsys):
    out = tmp_path / "out.npz"
    np.save(tmp_path / "x.npy", X)
    given = ["run", str(path), "--input", f"code={tmp_path / 'x.npy'}", "--output", str(out)]
    assert main([*given, "--signature", "decode"]) == 0
    np.testing.assert_array_equal(np.load(out)["sound"], -X)
    assert main(["info", str(path), "--signature", "other"]) == 3
    assert "signatures: 'encode', 'decode', 'spare'" in capsys.readouterr().err


def test_a_run_may_name_its_signature(path):
    for model in (path, path.read_bytes()):
        with Session(model) as session:
            np.testing.assert_allclose(session.run({"t0": X})["t1"], np.tanh(X), rtol=1e-5)
            for signature in [*SIGNATURES, SIGNATURES[0]]:
                (name,), (out,) = signature.inputs, signature.outputs
                found = session.run({name: X}, signature=signature.key)
                np.testing.assert_allclose(found[out], WANTED[signature.key], rtol=1e-5)
            with pytest.raises(ConvertError, match="no signature 'other'"):
                session.run({"t0": X}, signature="other")
        with pytest.raises(RunError, match="closed"):
            session.run({"code": X}, signature="decode")


@pytest.mark.parametrize("suffix", [".trm", ""])
def test_a_run_of_a_model_without_signatures_refuses_one(tmp_path, suffix):
    model = trireme.convert(model_of(SUBS[:1]))
    if suffix:
        trireme.save(model, tmp_path / f"one{suffix}")
        model = tmp_path / f"one{suffix}"
    refused = pytest.raises(TriremeError, match="has no signatures, 'decode' was asked for")
    with Session(model) as session, refused:
        session.run({"t0": X}, signature="decode")


def counters():
    """Two signatures over one variable: one adds x to it, one reads it twice over."""
    shape = X.shape
    add = Sub(
        [RESOURCE, T(shape), T(shape), T(shape)],
        [once(2), handle(0), read(0, 2), add_op(1, 2, 3), assign(0, 3)],
        [1],
        [3],
    )
    look = Sub(
        [RESOURCE, T(shape), T(shape)],
        [once(2), handle(0), read(0, 1), add_op(1, 1, 2)],
        [],
        [2],
    )
    signatures = [
        SignatureDef("add", 0, {"x": 1}, {"total": 3}),
        SignatureDef("look", 1, {}, {"twice": 2}),
    ]
    start = np.full(shape, 3, np.float32)
    first = Sub([RESOURCE, constant(start)], [handle(0), assign(0, 1)], [], [])
    return model_of([add, look, first], signatures)


def test_signatures_of_a_session_share_its_variables(tmp_path):
    path = tmp_path / "counters.tflite"
    path.write_bytes(counters())
    peer = interpreter(path)  # LiteRT's fast kernels crash here
    peers = {name: peer.get_signature_runner(name) for name in ("add", "look")}
    how = ExecutionOptions(signature="add")
    with Session(path, execution_options=how) as session, Session(path) as plain:
        for name in ("look", "add", "add", "look", "add", "look", "look"):
            feeds = {"x": X} if name == "add" else {}
            (wanted,) = peers[name](**feeds).values()
            for one in (session, plain):
                (found,) = one.run(feeds, signature=name).values()
                np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(session.states["counter"], plain.states["counter"])
        session.set_state({"counter": X})
        (found,) = session.run({}, signature="look").values()
        np.testing.assert_array_equal(found, 2 * X)
        session.reset()
        (found,) = session.run({}, signature="look").values()
        np.testing.assert_array_equal(found, np.full(X.shape, 6, np.float32))
