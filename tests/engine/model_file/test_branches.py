"""Sizes that one branch of a model takes and the other refuses, given when a session opens."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

import trireme
from trireme.runtime.session.session import Session
from trireme.support.errors import BranchError, ConvertError, RunError, TriremeError
from trireme.tools.cli import main

HEAD = '<ir_version: 10, opset_import: ["" : 22]>'
TWO_RATES = """
rates (float[b, n] x, int64 rate) => (float[b, k] y)
{
    axis = Constant<value_ints = [2]>()
    high = Constant<value_int = 16000>()
    is_high = Equal(rate, high)
    y = If (is_high) <
        then_branch = wide () => (float[b, k] v) {
            rows = Constant<value_ints = [-1, 8, 64]>()
            w = Reshape(x, rows)
            v = ReduceSum<keepdims = 0>(w, axis)
        },
        else_branch = narrow () => (float[b, l] t) {
            others = Constant<value_ints = [-1, 4, 96]>()
            u = Reshape(x, others)
            t = ReduceSum<keepdims = 0>(u, axis)
        }
    >
}
"""


@pytest.fixture
def two_rates(tmp_path):
    path = tmp_path / "rates.onnx"
    path.write_bytes(parser.parse_model(HEAD + TWO_RATES).SerializeToString())
    return path


def sources(path):
    """The model in every form that a session takes."""
    graph, saved = trireme.convert(path), path.with_suffix(".trm")
    trireme.save(graph, saved)
    return {
        "file": path,
        "bytes": path.read_bytes(),
        "graph": graph,
        "trm": saved,
        "trm bytes": saved.read_bytes(),
    }


@pytest.mark.parametrize("form", ["file", "bytes", "graph", "trm", "trm bytes"])
@pytest.mark.parametrize(("size", "rate"), [(512, 16000), (384, 8000), (768, 8000)])
def test_the_branch_that_a_run_takes_decides(two_rates, form, size, rate):
    feeds = {
        "x": np.random.default_rng(size).standard_normal((1, size)).astype(np.float32),
        "rate": np.array(rate),
    }
    wanted = ort.InferenceSession(two_rates, providers=["CPUExecutionProvider"]).run(None, feeds)
    model = sources(two_rates)[form]
    for _ in range(2):  # from the cache of optimised graphs, too
        with Session(model, shapes={"x": (1, size)}) as session:
            assert [value.shape for value in session.inputs] == [(1, size), ()]
            np.testing.assert_allclose(session.run(feeds)["y"], wanted[0], rtol=1e-5, atol=1e-5)
            with pytest.raises(RunError, match=f"{size + 192}.*, expected .*{size}"):
                session.run(feeds | {"x": np.zeros((1, size + 192), np.float32)})
            other = np.array(8000 if rate == 16000 else 16000)
            with pytest.raises(RunError, match=f"{size} elements do not reshape"):
                session.run(feeds | {"rate": other})


def test_sizes_that_no_branch_takes_are_refused_when_a_session_opens(two_rates):
    with pytest.raises(ConvertError, match="100 elements do not reshape") as caught:
        Session(two_rates, shapes={"x": (1, 100)})
    assert not isinstance(caught.value, BranchError)
    with pytest.raises(ConvertError, match="no input is called 'z'"):
        Session(two_rates, shapes={"x": (1, 512), "z": (1,)})


@pytest.mark.parametrize("form", ["file", "trm"])
def test_a_graph_of_such_sizes_is_refused(two_rates, form):
    with pytest.raises(BranchError, match="512 elements do not reshape") as caught:
        trireme.convert(sources(two_rates)[form], shapes={"x": (1, 512)})
    assert "leave the model's shapes open and give them to a session" in caught.value.fix


@pytest.mark.parametrize("form", ["file", "trm"])
def test_sizes_that_no_branch_takes_have_a_fix(two_rates, form):
    with pytest.raises(TriremeError, match="100 elements do not reshape") as caught:
        trireme.convert(sources(two_rates)[form], shapes={"x": (1, 100)})
    assert caught.value.fix == "give other sizes than b=1 (of x) or n=100 (of x)"


def test_commands_that_run_nothing_take_the_sizes(two_rates, tmp_path, capsys):
    model, stored = str(two_rates), str(tmp_path / "stored.trm")
    assert main(["info", model, "--shape", "x=1,512"]) == 0
    assert "input  x float32[1,512]" in capsys.readouterr().out
    assert main(["convert", model, "--shape", "x=1,512", "-o", stored]) == 0
    np.save(tmp_path / "rate.npy", np.array(16000))
    assert main(["run", stored, "--at", "b=1", "--input", f"rate={tmp_path / 'rate.npy'}"]) == 0
    assert "y: float32[1, 8]" in capsys.readouterr().out
    assert main(["place", model, "--shape", "x=1,512"]) == 0
    shown = capsys.readouterr().out
    assert "refuses these sizes and is left out: " in shown
    assert "512 elements do not reshape" in shown
    assert main(["explain", model, "--shape", "x=1,512"]) != 0
    shown = capsys.readouterr().err
    assert "zeros take a branch that fails: " in shown and "512 elements do not reshape" in shown
    assert "\n  fix: --input rate=rate.npy gives elements that take another branch" in shown


@pytest.mark.parametrize("sizes", [["--shape", "x=1,512"], ["--at", "n=512", "--at", "b=1"]])
def test_the_command_line_takes_the_sizes(two_rates, tmp_path, capsys, sizes):
    np.save(tmp_path / "rate.npy", np.array(16000))
    rate = ["--input", f"rate={tmp_path / 'rate.npy'}"]
    assert main(["run", str(two_rates), *sizes, *rate]) == 0
    assert "y: float32[1, 8]" in capsys.readouterr().out
