"""`trireme bench`: real runs of the command, and who is named when it fails."""

import dataclasses
import json
import os
import pathlib
import sys
import time
from functools import partial

import numpy as np
import pytest
from bench_engine import ENGINE
from onnx import parser
from programs import HEAD
from zoo import zoo_path

from trireme.runtime.program.options import ExecutionOptions
from trireme.runtime.session.session import Session
from trireme.support.installing import install_command
from trireme.tools.bench import command, peers
from trireme.tools.bench.model import set_batch
from trireme.tools.bench.peers import ncnn
from trireme.tools.cli import main

pytestmark = pytest.mark.usefixtures("no_calibration")

SHORT = ["--rounds", "2", "--round-s", "0.002"]


def call(capsys, *arguments):
    code = main(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def fake_peer(monkeypatch, tmp_path, kind, name):
    """Put an engine that gives nines, or that crashes after its first results, among the peers."""
    file = tmp_path / f"{name}.py"
    body = ENGINE.replace('task["model"]', repr(kind)).replace("array + 1", "array * 0 + 9")
    if kind == "crashes":
        body = body.replace('kind == "crashes"', "len(count) > 1 or count.append(1)")
        body = body.replace("def call", "count = []\n    def call")
        body = body.replace("array * 0 + 9", "array.clip(0)")
    file.write_text(body)

    class Fake(peers.Peer):
        file = property(lambda self: tmp_path / f"{self.name}.py")

    peer = Fake(name, "json", "nothing", (".onnx",))
    monkeypatch.setitem(peers.PEERS, name, peer)
    return peer


@pytest.fixture
def relu(tmp_path):
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, [2, 3])], [info("y", 1, [2, 3])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path / "relu.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_an_absent_peer_is_named(relu, capsys, monkeypatch):
    gone = peers.Peer("ncnn", "no_such_module", "ncnn", (".onnx",))
    monkeypatch.setitem(peers.PEERS, "ncnn", gone)
    code, out, _ = call(capsys, relu, "--against", "ncnn,litert", "--threads", 1, *SHORT)
    assert code == 0
    assert f"ncnn: not installed ({install_command('ncnn')})" in out
    assert "litert cannot run .onnx files" in out


STAGED = {
    "decides": "decides (float[3,4] x) => (int64[2,q] y) { y = NonZero(x) }",
    "loop": """
    loop (float[3] x) => (float[3] y, float[m,3] all)
    {
        n = Constant <value = int64 {4}> ()  half = Constant <value = float {0.5}> ()
        y, all = Loop (n, , x) <body = turn
            (int64 i, bool on, float[3] s) => (bool more, float[3] t, float[3] row)
            {
                a = ReduceMax <keepdims = 0> (s)  more = Greater(a, half)
                t = Mul(s, half)  row = Neg(t)
            }
        >
    }
    """,
}


@pytest.mark.parametrize("name", STAGED)
def test_a_model_that_no_one_program_runs(name, tmp_path, capsys):
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(parser.parse_model(HEAD + STAGED[name]).SerializeToString())
    code, out, _ = call(capsys, path, "--against", "onnxruntime", "--threads", 1, *SHORT)
    assert code == 0 and f"{name}.onnx | trireme |" in out
    ran = {"decides": "the host ran non_zero", "loop": "the host ran loop"}[name]
    assert ran in out and "RunError" not in out and "disagrees" not in out
    for modes in ("--modes", "--singles"):
        code, _, err = call(capsys, path, modes, "--threads", 1, *SHORT)
        assert code == 2 and "its shapes are open" in err
        assert "fix: bench without --modes and --singles" in err


def test_a_peer_that_disagrees_or_crashes_is_reported(relu, capsys, monkeypatch, tmp_path):
    fake_peer(monkeypatch, tmp_path, "works", "odd")
    fake_peer(monkeypatch, tmp_path, "crashes", "frail")
    against = ["--against", "odd,frail", "--threads", 1]
    code, out, _ = call(capsys, relu, *against, *SHORT, "--json")
    engines = json.loads(out)["rows"][0]["engines"]
    assert code == 1
    assert "output" in engines["odd"]["apart"] and engines["odd"]["ratio"] > 0
    assert "killed by signal 6" in engines["frail"]["reason"]
    assert "fatal: out of luck" in engines["frail"]["reason"]
    assert not engines["trireme"]["reason"] and not engines["trireme"]["apart"]


def test_json_schema_and_reprint(relu, capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "bench.json"
    threads = ",".join(str(n + 1) for n in range(min(2, len(os.sched_getaffinity(0)))))
    arguments = [relu, "--against", "onnxruntime", "--threads", threads, *SHORT]
    code, out, _ = call(capsys, *arguments, "--json", file)
    assert code == 0 and "relu.onnx" in out
    data = json.loads(file.read_text())
    assert set(data) == {"schema_version", "machine", "command", "rows", "summary"}
    assert [row["threads"] for row in data["rows"]] == [int(n) for n in threads.split(",")]
    ours, theirs = (data["rows"][0]["engines"][n] for n in ("trireme", "onnxruntime"))
    for engine in (ours, theirs):
        assert engine["best_s"] <= engine["median_s"] <= engine["p90_s"]
        assert 0 < engine["load_s"] <= engine["first_s"] and engine["warm_first_s"] > 0
        assert engine["peak_bytes"] > engine["imported_bytes"] > 0
        assert len(engine["rounds"]) == 2 and engine["facts"]["version"]
    assert theirs["ratio"] > 0 and theirs["median_ratio"] > 0 and theirs["largest"] == 0
    code, again, _ = call(capsys, "--from", file)
    assert code == 0 and again == out


MOMENTS = ["inputs_s", "imported_s", "ready_s", "first_s", "steady_s"]


def starts(capsys, *arguments):
    code, out, _ = call(capsys, *arguments, "--start", "--threads", 1, "--rounds", 2, "--json")
    found = {(row["engine"], row["caches"]): row for row in json.loads(out)["starts"]}
    return code, found


def test_the_start_of_every_engine_is_timed(relu, capsys):
    pytest.importorskip("onnxruntime")
    code, found = starts(capsys, relu, "--against", "onnxruntime,litert")
    assert code == 0
    assert found["litert", "none"]["reason"] == "litert cannot run .onnx files"
    timed = [("trireme", "empty"), ("trireme", "full"), ("onnxruntime", "none")]
    for row in map(found.get, timed):
        assert len(row["starts"]) == 2 and not row["apart"]
        for start in (*row["starts"], row["median"]):
            seconds = [start[moment] for moment in MOMENTS]
            assert start["cpu_s"] > 0 and seconds[0] > 0 and sorted(seconds) == seconds
    empty, full = (found["trireme", caches]["median"]["ready_s"] for caches in ("empty", "full"))
    assert full < empty


def test_a_start_that_fails_or_changes_its_outputs_is_reported(relu, capsys, monkeypatch, tmp_path):
    fake_peer(monkeypatch, tmp_path, "crashes", "frail")
    moody = fake_peer(monkeypatch, tmp_path, "works", "moody")
    text = moody.file.read_text().replace("* 0 + 9", "* 0 + time.monotonic()")
    moody.file.write_text(text)
    monkeypatch.setitem(peers.PEERS, "moody", dataclasses.replace(moody, caches=True))
    code, found = starts(capsys, relu, "--against", "moody,frail")
    assert code == 1
    assert "killed by signal 6" in found["frail", "none"]["reason"]
    assert found["moody", "full"]["apart"].startswith("output x differs")
    assert not found["moody", "empty"]["apart"] and not found["trireme", "full"]["apart"]


def test_another_batch(relu, capsys):
    pytest.importorskip("onnxruntime")
    arguments = [relu, "--batch", 5, "--against", "onnxruntime", "--threads", 1, *SHORT, "--json"]
    code, out, _ = call(capsys, *arguments)
    engines = json.loads(out)["rows"][0]["engines"]
    assert code == 0 and engines["onnxruntime"]["largest"] == 0
    assert not engines["onnxruntime"]["apart"] and engines["trireme"]["rounds"]


def test_weights_made_by_nodes_or_listed_as_inputs_become_plain(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper, info = onnx.helper, onnx.helper.make_tensor_value_info
    shape = onnx.numpy_helper.from_array(np.array([2, 3]), "shape")
    value = onnx.numpy_helper.from_array(np.array([7], np.float32), "v")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"], value=value),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    inputs = [info("x", 1, [2, 3]), info("shape", 7, [2])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", 1, [2, 3])], [shape])
    onnx.save(helper.make_model(graph), tmp_path / "old.onnx")
    ncnn._make_plain(str(tmp_path / "old.onnx"), tmp_path / "plain.onnx")
    plain = onnx.load(tmp_path / "plain.onnx").graph
    assert [node.op_type for node in plain.node] == ["Add"]
    assert [v.name for v in plain.input] == ["x"]
    (weight,) = plain.initializer
    assert weight.name == "w" and (onnx.numpy_helper.to_array(weight) == np.full((2, 3), 7)).all()


def test_our_cold_load_finds_nothing_and_leaves_nothing(relu, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    against = ["--against", "ncnn", "--threads", 1]
    assert call(capsys, relu, *against, *SHORT)[0] == 0
    assert not list((tmp_path / "home").rglob("*"))


def test_usage(relu, capsys, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    assert call(capsys, relu, "--against", "tensorrt")[0] == 2
    assert call(capsys, relu, "--threads", "0")[0] == 2
    assert call(capsys, "--from", broken)[0] == 4
    assert call(capsys)[0] == 2
    assert call(capsys, tmp_path / "m.tflite", "--batch", 2)[0] == 4


def test_ctrl_c_leaves_no_worker_behind(relu):
    import signal
    import subprocess

    code = "from trireme.tools.cli import main; import sys; sys.exit(main())"
    argv = [
        sys.executable,
        "-c",
        code,
        "bench",
        str(relu),
        "--against",
        "onnxruntime",
        "--threads",
        "1",
        "--duration",
        "60",
    ]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's `&` ignores Ctrl-C
    run = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    children = pathlib.Path(f"/proc/{run.pid}/task/{run.pid}/children")
    end = time.monotonic() + 60
    while len(workers := children.read_text().split()) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130 and "interrupted" in run.stderr.read()
    end = time.monotonic() + 10  # one that was just starting ends with its input, a moment later
    while alive := [pid for pid in workers if pathlib.Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, f"still there: {alive}"
        time.sleep(0.05)


def test_a_real_model_against_litert(capsys):
    pytest.importorskip("ai_edge_litert")
    model = zoo_path("resnet8_cifar10_int8.tflite")
    against = ["--against", "onnxruntime,litert", "--threads", 1, "--isa", "generic"]
    code, out, _ = call(capsys, model, *against, "--limit-peers", "generic", *SHORT, "--json")
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert row["engines"]["trireme"]["facts"]["notes"] == ["cpu: isa=generic"]
    assert row["engines"]["litert"]["facts"]["notes"] == ["cannot be limited to generic"]
    assert row["best_peer"] == "litert" and row["engines"]["litert"]["ratio"] > 0
    assert row["engines"]["onnxruntime"]["reason"] == "onnxruntime cannot run .tflite files"


def test_threads_and_peers_are_checked():
    assert command.thread_counts("1") == [1]
    assert [peer.name for peer in command.chosen_peers("mnn, ncnn")] == ["mnn", "ncnn"]


@pytest.mark.parametrize("name", ["vww_96_int8.tflite", "resnet8_cifar10_f32.tflite"])
def test_a_rewritten_model_gives_what_its_items_give(name, tmp_path):
    path = zoo_path(name)
    batched = set_batch(str(path), 3, tmp_path / name)
    with (
        Session(batched, threads=1, execution_options=ExecutionOptions(model_cache=None)) as many,
        Session(path, threads=1, execution_options=ExecutionOptions(model_cache=None)) as one,
    ):
        (value,) = many.graph.input_values()
        x = np.random.default_rng(5).integers(0, 100, value.type.dims).astype(value.dtype)
        (found,) = many.run({value.name: x}).values()
        for item in range(3):
            (want,) = one.run({value.name: x[item : item + 1]}).values()
            np.testing.assert_allclose(found[item : item + 1], want, atol=1e-5)
