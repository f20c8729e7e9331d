"""The command line: what users type, what they read, and the exit codes."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from commands import call, save_small
from forced import open_all

import trireme
from trireme.devices.cpu.runtime.cores import all_cores
from trireme.devices.cpu.runtime.native import has_futex
from trireme.tools.cli import main
from trireme.tools.command_table import COMMANDS, EXAMPLES
from trireme.tools.parser import make_parser

pytestmark = pytest.mark.usefixtures("no_calibration")


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


def test_run_and_store(model, tmp_path, capsys):
    x = np.ones((1, 6, 6, 3), np.float32)
    np.save(tmp_path / "x.npy", x)
    target = tmp_path / "out.npz"
    code, out, _ = call(
        capsys, "run", model, "--input", f"x={tmp_path / 'x.npy'}", "--output", str(target)
    )
    assert code == 0 and "z: float32[1, 6, 6, 4]" in out
    with np.load(target) as outputs:
        assert outputs["z"][0, 3, 3, 0] == pytest.approx(2.7, rel=1e-5)


@pytest.mark.parametrize("command", ["run", "profile", "explain", "info", "convert"])
def test_json_is_json(model, capsys, command):
    extra = ["--runs", "2"] if command == "profile" else []
    code, out, err = call(capsys, command, model, "--json", *extra)
    assert code == 0 and not err
    assert json.loads(out)


def test_profile_of_a_stream(model, capsys):
    code, out, _ = call(capsys, "profile", model, "--runs", "2", "--stream", "8", "--depth", "2")
    assert code == 0 and "8 runs, 2 in flight (asked for)" in out
    code, out, _ = call(capsys, "profile", model, "--runs", "2", "--stream", "8", "--json")
    assert code == 0 and json.loads(out)["stream"]["runs"] == 8
    code, out, _ = call(capsys, "profile", model, "--stream", "8", "--replicas", "2")
    assert code == 0 and "2 replicas of one thread: " in out
    code, out, err = call(capsys, "profile", model, "--stream", "2")
    assert code and "says nothing" in out + err


def test_place_says_how_a_stream_would_run_and_what_is_sharded(model, capsys):
    code, out, _ = call(capsys, "place", model, "--objective", "throughput")
    assert code == 0 and "as a stream: " in out
    assert "nothing is sharded: there is one device, cpu" in out
    code, out, err = call(capsys, "place", model, "--shard", "z=cpu,npu:rows")
    assert code and "'npu' is not among the devices cpu" in out + err
    code, out, _ = call(capsys, "place", model, "--shard", "off", "--json")
    assert code == 0 and json.loads(out)["shards"] == []


def test_profile_trace(model, tmp_path, capsys):
    trace, report = tmp_path / "t.json", tmp_path / "p.json"
    code, out, _ = call(
        capsys, "profile", model, "--runs", "2", "--trace", str(trace), "--json", str(report)
    )
    assert code == 0 and "virtual clock" in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert json.loads(report.read_text())["tasks"]


def test_explain_names_every_node(model, capsys):
    code, out, _ = call(capsys, "explain", model, "--plan", "--all")
    assert code == 0
    assert "lower bound" in out and "test:conv" in out and "arena host" in out


def test_json_keeps_progress_out_of_pipes(model):
    run = subprocess.run(
        [sys.executable, "-m", "trireme.tools.cli", "explain", model, "--json"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and run.stderr == "" and json.loads(run.stdout)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["run", "{model}", "--input", "q=random"], 2, "no input is called 'q'"),
        (["run", "{model}", "--input", "x=absent.npy"], 2, "cannot be read"),
        (["run", "{model}", "--devices", "tpu"], 5, "unknown device 'tpu'"),
        (["run", "absent.trm"], 4, "cannot be read"),
        (["run", "{garbage}"], 4, "garbage"),
        (["run", "{text}"], 4, "no known kind"),
        (["verify", "{model}"], 3, "no other runtime reads"),
        (["convert", "{model}", "-o", "/nonexistent/folder/m.trm"], 4, ""),
    ],
)
def test_errors_are_sentences_with_codes(model, tmp_path, capsys, arguments, code, words):
    garbage, text = tmp_path / "garbage.trm", tmp_path / "text.txt"
    garbage.write_bytes(b"garbage" * 100)
    text.write_text("hello")
    filled = [a.format(model=model, garbage=garbage, text=text) for a in arguments]
    found, out, err = call(capsys, *filled)
    assert found == code, err
    assert words in err and "Traceback" not in err
    assert not out


def test_usage_errors_exit_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["run"])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err == (
        "usage: trireme run [options] model\n"
        "trireme run: the following arguments are required: model (see trireme run --help)\n"
    )


@pytest.mark.parametrize(
    ("words", "unknown"),
    [
        ("explain model.trm --sco rk3588", "--sco rk3588; did you mean --soc?"),
        ("serve model.trm --port 80", "--port 80; did you mean --http or --grpc?"),
        ("explain model.trm --qqqq", "--qqqq ("),
        (
            "run model.trm --devices npu cpu",
            "cpu; several devices are one argument, as in --devices npu,cpu",
        ),
    ],
)
def test_an_unknown_argument_shows_the_usage_and_what_is_meant(words, unknown, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    usage, message = capsys.readouterr().err.splitlines()
    name = words.split()[0]
    assert usage.startswith(f"usage: trireme {name} [options]")
    assert message.startswith(f"trireme {name}: unknown arguments: {unknown}")


def test_interrupt_is_130(model, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("trireme.tools.commands.open_session", interrupted)
    code, _, err = call(capsys, "run", model)
    assert code == 130 and "interrupted" in err


def test_fallback_is_reported(model, capsys):
    code, out, _ = call(capsys, "run", model, "--devices", "tpu,cpu", "--fallback")
    assert code == 0 and "left out: tpu" in out


def test_devices_and_supported_ops(capsys):
    code, out, _ = call(capsys, "devices")
    assert code == 0 and "cpu" in out and "npu" in out
    if len(all_cores()) > 1 and has_futex():
        assert "side by side as 2 instances: cpu#1 cores 0" in out
    code, out, _ = call(capsys, "supported-ops", "--json")
    assert code == 0
    rows = {row["op"]: row["kernels"] for row in json.loads(out)["ops"]}
    assert "float32" in rows["conv"]["cpu"]


def test_instances_of_a_device(model, capsys):
    if len(all_cores()) < 2 or not has_futex():
        pytest.skip("instances need Linux and two cores")
    pair = ("--devices", "cpu#1,cpu#2", "--threads", "1", "--batch", "4")
    code, out, _ = call(capsys, "place", model, *pair, "--shard", "*=cpu#1,cpu#2:batch")
    assert code == 0 and "=cpu#1,cpu#2:batch:2" in out
    code, _, err = call(capsys, "run", model, "--devices", "cpu,cpu#1")
    assert code != 0 and "cpu and cpu#1 share core" in err
    code, _, err = call(capsys, "calibrate", "--devices", "cpu#1")
    assert code != 0 and "uses the calibration of cpu" in err


def test_verify(tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Exp", ["x"], ["y"])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 1, [64, 64])], [info("y", 1, [64, 64])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = tmp_path / "exp.onnx"
    path.write_bytes(model.SerializeToString())
    code, out, _ = call(capsys, "verify", str(path))
    assert code == 0 and "onnxruntime" in out and "ok" in out
    code, out, _ = call(capsys, "verify", str(path), "--tolerance", "0")
    assert code == 1 and "APART" in out


def test_demo(capsys):
    opened, absent = open_all()
    for device in opened.values():
        device.close()
    if absent:
        pytest.skip(str(absent))
    code, out, err = call(capsys, "demo", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report.pop("schema_version") == 1 and report.pop("same_digits")
    for outcome in report.values():
        assert outcome["accuracy"] > 0.97
    spread = list(report.values())[1]["profile"]
    assert {"npu", "opencl", "cpu"} <= {row["device"] for row in spread["tasks"]}


def test_convert_script(model, tmp_path):
    target = tmp_path / "again.trm"
    script = trireme.__file__.replace("engine/__init__.py", "tools/convert.py")
    run = subprocess.run([sys.executable, script, model, "-o", str(target)], capture_output=True)
    assert run.returncode == 0, run.stderr
    assert target.read_bytes() == pathlib.Path(model).read_bytes()


def test_verify_per_node(model, capsys):
    code, out, _ = call(capsys, "verify", model, "--per-node", "--all")
    assert code == 0 and "ok    conv" in out and "values agree" in out
    code, out, _ = call(capsys, "verify", model, "--per-node", "--tolerance", "0", "--json")
    report = json.loads(out)
    assert code == 1 and report["first_divergence"]["source"] == "test:conv"


def test_run_shows_nodes(model, capsys):
    arguments = ["--nodes", "--execution", "interactive", "--subgraphs", "split"]
    code, out, _ = call(capsys, "run", model, *arguments)
    assert code == 0 and "cpu: conv" in out and "float32[1,6,6,4]" in out


def test_dump_code(model, tmp_path, capsys):
    for form, suffix in (("ir", ".ll"), ("asm", ".s")):
        folder = tmp_path / form / "kernels"
        code, _, err = call(capsys, "run", model, f"--dump-{form}", str(folder))
        assert code == 0, err
        files = sorted(folder.iterdir())
        assert files and all(file.suffix == suffix for file in files)
        text = files[0].read_text()
        assert "conv #0 (test:conv" in text and "float32[1,6,6,3]" in text
        assert files[0].name.split(".")[0] in text
    with trireme.Session(model) as session, pytest.raises(trireme.RunError, match="no form"):
        session.kernels("c")


def test_modes(model, capsys):
    short = ["--modes", "--threads", "1", "--rounds", "1", "--round-s", "0.001"]
    code, out, err = call(capsys, "bench", model, *short, "--json")
    assert code == 0, err
    rows = json.loads(out)["modes"]
    assert len(rows) == 9 and all(row["wall_s"] > 0 and row["apart"] < 1e-5 for row in rows)
    code, out, err = call(capsys, "bench", model, *short)
    assert code == 0 and "auto is serial" in out and "the default takes" in out, err


def test_replay(model, tmp_path, capsys):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    node_by_node = ["--execution", "interactive"]
    code, out, err = call(capsys, "replay", model, one, "--record", *node_by_node)
    assert code == 0 and "tensors" in out, err
    code, out, err = call(capsys, "replay", model, one)
    assert code == 0 and "the same, bit for bit" in out, err
    on_host = ["--devices", "cpu,host", "--pin", "op:conv=host"]
    code, out, err = call(capsys, "replay", model, two, "--record", *on_host)
    code, out, err = call(capsys, "replay", model, two)
    assert code == 0 and "the same, bit for bit" in out, err
    call(capsys, "replay", model, two, "--record", "--seed", "1", *node_by_node)
    code, out, err = call(capsys, "replay", model, one, "--against", two)
    assert code == 1 and "first divergent tensor" in out, err
    code, _, err = call(capsys, "replay", model, str(tmp_path))
    assert code == 4 and "is not a bundle" in err


def test_help_groups_options_and_ends_with_examples_that_parse(capsys):
    assert set(EXAMPLES) == set(COMMANDS)
    parser = make_parser()
    for name, examples in EXAMPLES.items():
        with pytest.raises(SystemExit):
            parser.parse_args([name, "--help"])
        out = capsys.readouterr().out
        assert "examples:" in out and f"trireme {name}" in out
        for example in examples:
            assert parser.parse_args([name, *example.split()]).name == name
    with pytest.raises(SystemExit):
        parser.parse_args(["explain", "--help"])
    out = capsys.readouterr().out
    assert all(f"\n{title}:\n" in out for title in ("model", "devices", "placement", "machine"))
