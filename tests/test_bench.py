"""`trireme bench`: the arithmetic of its tables, who is named when it fails, and a real run."""

import json
import os
import pathlib
import sys
import time

import numpy as np
import pytest
from zoo import zoo_path

from trireme.session import Session
from trireme.tools import bench, bench_report, bench_result, peers
from trireme.tools.bench_agree import Tolerance, judge
from trireme.tools.bench_model import set_batch
from trireme.tools.bench_process import WorkerFailed, WorkerProcess
from trireme.tools.bench_result import EngineRun, Row
from trireme.tools.cli import main
from trireme.tools.peers import ncnn

SHORT = ["--rounds", "2", "--round-s", "0.002"]


def run_of(name, *rounds_ms, **more):
    return EngineRun(name, rounds=[[round(t * 1e6) for t in calls] for calls in rounds_ms], **more)


def row_of(model="m.onnx", threads=1, **rounds):
    engines = {name: run_of(name, *calls) for name, calls in rounds.items()}
    return Row(model, threads, engines)


def call(capsys, *arguments):
    code = main(["bench", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --- figures --------------------------------------------------------------------------------------


def test_the_ratio_is_the_median_over_rounds_of_best_over_best():
    row = row_of(
        trireme=[[2, 3], [4, 5], [2, 9]],
        mnn=[[4, 8], [4, 4], [3, 3]],  # 2.0, 1.0, 1.5
        ncnn=[[1, 1], [1, 1], [1, 1]],  # 0.5, 0.25, 0.5
    )
    assert row.ratio("mnn") == 1.5 and row.ratio("ncnn") == 0.5
    assert row.best_peer() == "ncnn"
    assert row.ours.best_s() == 2e-3
    assert row.median_ratio("ncnn") == pytest.approx(1 / 3)  # ours: 2 2 3 4 5 9


def test_rounds_weigh_the_same_however_many_calls_they_hold():
    run = run_of("x", [1] * 100, [5], [5])
    assert run.quantile_s(0.5) == 5e-3 and run.quantile_s(0.3) == 1e-3


def test_geometric_means_and_the_worst_model():
    rows = [
        row_of("a.onnx", trireme=[[1]], mnn=[[2]], ncnn=[[4]]),
        row_of("b.onnx", trireme=[[1]], mnn=[[0.5]]),
        row_of("c.onnx", 2, trireme=[[1]], mnn=[[3]]),
    ]
    one, two = bench_result.summarise(rows)
    assert one.best_mean == pytest.approx(1.0) and two.best_mean == pytest.approx(3.0)
    assert one.worst == ("b.onnx", "mnn", 0.5)
    assert one.means == {"mnn": pytest.approx(1.0), "ncnn": pytest.approx(4.0)}
    assert one.counts == {"mnn": 2, "ncnn": 1}


def test_many_calls_are_kept_as_quantiles():
    assert bench_result.thin([3, 1, 2]) == [3, 1, 2]
    kept = bench_result.thin(list(range(1000, 0, -1)))
    assert len(kept) == bench_result.PERCENTILES + 1 and (kept[0], kept[-1]) == (1, 1000)


def test_stored_runs_come_back_and_pool():
    first = row_of(trireme=[[1], [2]], mnn=[[2], [4]])
    first.ours.load_s, first.engines["mnn"].apart = 0.5, "off"
    second = row_of(trireme=[[1]], mnn=[[9]])
    second.ours.load_s = 0.25
    text = json.dumps(bench_result.rows_json([first, second]))
    (pooled,) = bench_result.rows_from_json(json.loads(text))
    assert pooled.ours.rounds == [[10**6], [2 * 10**6], [10**6]]
    assert pooled.ratio("mnn") == 2 and pooled.ours.load_s == 0.25
    assert pooled.engines["mnn"].apart == "off"


def test_the_report_says_everything_once():
    rows = [
        row_of("dir/a.onnx", trireme=[[1]], mnn=[[2]]),
        row_of("dir/b.onnx", trireme=[[1]], mnn=[[0.5]]),
    ]
    for row in rows:
        row.engines["ncnn"] = EngineRun("ncnn", reason="not installed (pip install ncnn)")
    rows[0].engines["mnn"].apart = "output y is 3 (relative) from trireme's"
    rows[1].ours.facts = {"reference_nodes": ["gather #3: numpy reference"]}
    rows[1].engines["mnn"].idle_share = 0.5
    text = bench_report.report(rows)
    assert "| a.onnx | 1.000 1.000 1.000 | 2.000 2.000 2.000: 2.00 APART | mnn | **2.00** |" in text
    assert "worst model is b.onnx, 0.50 against mnn" in text
    assert text.count("not installed") == 1 and "[a.onnx, b.onnx]" in text
    assert "mnn disagrees: output y" in text and "b.onnx (1 on numpy)" in text
    assert "50% of a CPU in others' turns" in text


def test_a_remark_on_many_models_lists_a_few():
    rows = [row_of(f"{i}.onnx", trireme=[[1]]) for i in range(9)]
    for row in rows:
        row.engines["litert"] = EngineRun("litert", reason="litert cannot run .onnx files")
    note = "litert: litert cannot run .onnx files [0.onnx, 1.onnx, 2.onnx and 6 more]"
    assert bench_report.remarks(rows) == [note]


# --- agreement ------------------------------------------------------------------------------------


def test_the_engine_that_disagrees_is_named():
    right, wrong = {"y": np.ones(3, np.float32)}, {"y": np.full(3, 2, np.float32)}
    tolerance = Tolerance(1e-3, 1)
    verdicts = judge({"trireme": right, "mnn": wrong, "ncnn": {"out0": right["y"]}}, tolerance)
    assert not verdicts["trireme"][0] and not verdicts["ncnn"][0]
    assert "output y" in verdicts["mnn"][0] and "from trireme's" in verdicts["mnn"][0]
    verdicts = judge({"trireme": wrong, "mnn": right, "ncnn": right}, tolerance)
    assert "from mnn's" in verdicts["trireme"][0] and not verdicts["mnn"][0]


def test_outputs_may_lack_the_batch_but_not_an_output():
    ours = {"y": np.ones((1, 3), np.float32), "z": np.ones(2, np.int8)}
    tolerance = Tolerance(1e-3, 1)
    flat = {"y": np.ones(3, np.float32), "z": np.full(2, 2, np.int8)}
    assert judge({"trireme": ours, "ncnn": flat}, tolerance)["ncnn"] == ("", 1.0)
    short = {"y": np.ones(3, np.float32)}
    assert "count" in judge({"trireme": ours, "ncnn": short}, tolerance)["ncnn"][0]
    shape = {**flat, "y": np.ones(4, np.float32)}
    assert "shape" in judge({"trireme": ours, "ncnn": shape}, tolerance)["ncnn"][0]


# --- processes ------------------------------------------------------------------------------------

ENGINE = """
import os, sys, time
def convert(model, folder):
    return model + "!"
def open_engine(task, feeds):
    print("engines print what they like")
    print("warning: something", file=sys.stderr)
    kind = task["model"]
    if kind == "refuses":
        raise ValueError("Exception from core.cpp:84:\\n\\nno kernel for it")
    def call():
        if kind == "crashes":
            print("fatal: out of luck", file=sys.stderr, flush=True)
            os.abort()
        if kind == "hangs":
            time.sleep(60)
        return {name: array + 1 for name, array in feeds.items()}
    return call, {"version": "7"}
"""


@pytest.fixture
def start(tmp_path):
    from trireme.tools.bench_agree import save_arrays

    (tmp_path / "engine.py").write_text(ENGINE)
    save_arrays(tmp_path / "feeds.npz", {"a/b": np.zeros(2, np.float32)})
    opened = []

    def open_one(model):
        task = {"file": str(tmp_path / "engine.py"), "module": "json", "model": model,
                "threads": 1, "cpus": []}  # fmt: skip
        opened.append(WorkerProcess("fake", task))
        return opened[-1]

    open_one.feeds = str(tmp_path / "feeds.npz")
    yield open_one
    for process in opened:
        process.close()
        assert not pathlib.Path(f"/proc/{process.pid}").exists()


def test_a_worker_answers(start, tmp_path):
    from trireme.tools.bench_agree import load_arrays

    worker = start("works")
    assert worker.ask("convert", 10, folder="")["model"] == "works!"
    loaded = worker.ask("load", 10, feeds=start.feeds)
    assert loaded["facts"] == {"version": "7"} and loaded["first_s"] >= loaded["load_s"]
    assert loaded["peak_bytes"] >= loaded["imported_bytes"] > 0
    worker.ask("save", 10, to=str(tmp_path / "out.npz"))
    (array,) = load_arrays(tmp_path / "out.npz").items()
    assert array[0] == "a/b" and (array[1] == 1).all()
    times = worker.ask("turn", 10, seconds=0.01)["times_ns"]
    assert len(times) >= 3 and min(times) > 0
    assert worker.settle() and worker.cpu_s() > 0


def test_a_worker_holds_nothing_of_trireme(start, tmp_path):
    listing = tmp_path / "engine.py"
    listing.write_text(
        ENGINE.replace('"version": "7"', '"seen": [m for m in sys.modules if "trireme" in m]')
    )
    seen = start("works").ask("load", 10, feeds=start.feeds)["facts"]["seen"]
    assert not [name for name in seen if not name.startswith("__editable__")]


def test_a_failed_worker_says_why(start):
    with pytest.raises(WorkerFailed, match="ValueError: no kernel for it"):
        start("refuses").ask("load", 10, feeds=start.feeds)
    with pytest.raises(WorkerFailed, match=r"died at 'load' \(killed by signal 6\)"):
        start("crashes").ask("load", 10, feeds=start.feeds)
    started = time.monotonic()
    with pytest.raises(WorkerFailed, match="hung: no answer to 'load' within 1 s"):
        start("hangs").ask("load", 1, feeds=start.feeds)
    assert time.monotonic() - started < 10


def test_adapters_import_no_trireme():
    for peer in peers.PEERS.values():
        assert "trireme" not in peer.file.read_text().replace("of trireme", "")


# --- the command ----------------------------------------------------------------------------------


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


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIREME_CALIBRATION", str(tmp_path / "calibration.json"))


def test_an_absent_peer_is_named(relu, capsys, monkeypatch):
    gone = peers.Peer("ncnn", "no_such_module", "ncnn", (".onnx",))
    monkeypatch.setitem(peers.PEERS, "ncnn", gone)
    code, out, _ = call(capsys, relu, "--against", "ncnn,litert", "--threads", 1, *SHORT)
    assert code == 0
    assert "ncnn: not installed (pip install ncnn)" in out
    assert "litert cannot run .onnx files" in out


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
    assert set(data) == {"machine", "command", "rows", "summary"}
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
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["w"], value=value),
             helper.make_node("Add", ["x", "w"], ["y"])]  # fmt: skip
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
    command = [sys.executable, "-c", code, "bench", str(relu), "--against", "onnxruntime",
               "--threads", "1", "--duration", "60"]  # fmt: skip
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
    assert row["engines"]["trireme"]["facts"]["notes"] == ["generates code for generic"]
    assert row["engines"]["litert"]["facts"]["notes"] == ["cannot be limited to generic"]
    assert row["best_peer"] == "litert" and row["engines"]["litert"]["ratio"] > 0
    assert row["engines"]["onnxruntime"]["reason"] == "onnxruntime cannot run .tflite files"


def test_threads_and_peers_are_checked():
    assert bench.thread_counts("1") == [1]
    assert [peer.name for peer in bench.chosen_peers("mnn, ncnn")] == ["mnn", "ncnn"]


# --- another batch --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vww_96_int8.tflite", "resnet8_cifar10_f32.tflite"])
def test_a_rewritten_model_gives_what_its_items_give(name, tmp_path):
    path = zoo_path(name)
    batched = set_batch(str(path), 3, tmp_path / name)
    with (
        Session(batched, threads=1, model_cache=None) as many,
        Session(path, threads=1, model_cache=None) as one,
    ):
        (value,) = many.graph.input_values()
        x = np.random.default_rng(5).integers(0, 100, value.type.dims).astype(value.dtype)
        (found,) = many.run({value.name: x}).values()
        for item in range(3):
            (want,) = one.run({value.name: x[item : item + 1]}).values()
            np.testing.assert_allclose(found[item : item + 1], want, atol=1e-5)
