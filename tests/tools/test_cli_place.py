"""The command line's placements: locks, pins, proofs, states, and what cannot be placed."""

import json
import re
import sys

import numpy as np
import pytest
from commands import call, save_small
from trace_rules import check_trace

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType

pytestmark = pytest.mark.usefixtures("no_calibration")


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


def test_place_locks_and_checks(model, tmp_path, capsys):
    path = str(tmp_path / "placement.toml")
    code, out, _ = call(capsys, "place", model, "--lock", path)
    assert code == 0 and "lower bound" in out and f"locked in {path}" in out
    code, out, _ = call(capsys, "place", model, "--check", path)
    assert code == 0 and "the placement is the same" in out
    text = (tmp_path / "placement.toml").read_text()
    (tmp_path / "placement.toml").write_text(text.replace('op = "conv"', 'op = "elu"'))
    code, out, _ = call(capsys, "place", model, "--check", path)
    assert code == 1 and "elu -> conv" in out
    with_far = text.replace("devices = []", 'devices = ["far", "cpu"]')
    (tmp_path / "placement.toml").write_text(with_far)
    code, out, _ = call(capsys, "place", model, "--check", path)
    assert code == 1 and "device far is not there: unknown device 'far'" in out


def test_a_proof_by_the_bounds_alone_names_them(model, capsys, monkeypatch):
    """No solver is asked, nor needed."""
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    code, out, _ = call(capsys, "place", model, "--prove")
    assert code == 0 and "placement is optimal" in out
    assert "from the only device" in out and "exact solver" not in out


def test_locks_that_cannot_be_read_or_written_are_named(model, tmp_path, capsys):
    for words, message in (
        (["--lock", f"{tmp_path}/no/x.toml"], "no/x.toml: cannot be written: No such file"),
        (["--check", f"{tmp_path}/no.toml"], "no.toml cannot be read: No such file"),
        (["--placement", str(tmp_path)], "cannot be read: Is a directory"),
    ):
        code, _, err = call(capsys, "place", model, *words)
        assert code == 4 and err.startswith("ModelFileError") and message in err


def test_place_compares_with_the_devices_that_are_asked_for(model, tmp_path, capsys):
    """--devices cpu is asked for although it is the default."""
    path = str(tmp_path / "placement.toml")
    assert call(capsys, "place", model, "--devices", "cpu,host", "--lock", path)[0] == 0
    assert call(capsys, "place", model, "--check", path)[0] == 0
    code, out, _ = call(capsys, "place", model, "--check", path, "--devices", "cpu")
    assert code == 1 and "device host was not asked for" in out


def test_place_keeps_states_on_the_host_as_a_session_does(tmp_path, capsys):
    b = GraphBuilder("counter")
    x = b.input("x", TensorType((3,), "float32"))
    # a state that begins with an input is the host's
    total = b.add("add", b.add("variable", x, state="total"), x, names=["total"])
    b.add("assign", total, state="total")
    model, path = str(tmp_path / "counter.trm"), str(tmp_path / "lock.toml")
    trireme.save(b.finish(total), model)
    code, out, err = call(capsys, "place", model, "--lock", path)
    assert code == 0 and re.search(r"cpu +1 +1 ", out) and re.search(r"host +2 ", out), err
    code, out, _ = call(capsys, "place", model, "--check", path)
    assert code == 0 and "the placement is the same" in out


@pytest.mark.parametrize("constant", [True, False])
def test_a_model_without_nodes_is_placed_and_run(tmp_path, capsys, constant):
    b = GraphBuilder("empty")
    x = b.input("x", TensorType((2,), "float32"))
    model = str(tmp_path / "empty.trm")
    trireme.save(b.finish(b.constant("c", np.ones(2, np.float32)) if constant else x), model)
    for words in (
        ["explain", "--all"],
        ["place", "--soc", "rk3588"],
        ["explain"],
        ["run"],
        ["place", "--prove"],
        ["whatif", "--soc", "rk3588"],
        ["place", "--soc", "rk3588", "--objective", "energy"],
        ["run", "--devices", "cpu,host", "--mode", "parallel"],
    ):
        code, out, err = call(capsys, words[0], model, *words[1:])
        assert code == 0 and not err, (words, err)
        assert words[0] in ("run", "whatif") or "the graph has no nodes" in out


def test_control_flow_is_placed_on_the_host_that_nobody_named(tmp_path, capsys):
    b = GraphBuilder("if")
    c, x = b.input("c", TensorType((), "bool")), b.input("x", TensorType((3,), "float32"))
    body = GraphBuilder("body")
    branch = body.finish(body.add("tanh", body.input("x", TensorType((3,), "float32"))))
    model, path = str(tmp_path / "if.trm"), str(tmp_path / "lock.toml")
    y = b.add("if", c, b.add("neg", x), then_branch=branch, else_branch=branch)
    trireme.save(b.finish(y), model)
    code, out, err = call(capsys, "place", model, "--lock", path)
    assert code == 0 and re.search(r"cpu +1 +1 ", out) and re.search(r"host +1 ", out), err
    code, out, _ = call(capsys, "explain", model, "--all")
    assert code == 0 and "the host drives control flow: cpu compiles no if" in out
    code, out, _ = call(capsys, "place", model, "--check", path)
    assert code == 0 and "the placement is the same" in out
    with trireme.Session(model, placement=path) as session:
        assert set(session.devices) == {"cpu", "host"}


def test_place_pins_by_name(model, capsys):
    code, out, _ = call(capsys, "place", model, "--pin", "z=cpu", "--objective", "serial")
    assert code == 0 and "serial" in out
    code, _, err = call(capsys, "place", model, "--pin", "w=cpu")
    assert code == 3 and "no node is called 'w'" in err and "there is z" in err
    code, _, err = call(capsys, "place", model, "--pin", "z=npu")
    assert code == 3 and "not among the devices" in err


def test_a_pin_of_a_held_placement_does_what_was_stated(tmp_path, capsys):
    """By name and by number; explain says what it comes to with all others placed anew as well."""
    b = GraphBuilder("three")
    value, model = b.input("x", TensorType((64, 64), "float32")), str(tmp_path / "three.trm")
    for op in ("softmax", "cum_sum", "softmax"):
        more = [b.constant("axis", np.int64(0))] if op == "cum_sum" else []
        value = b.add(op, value, *more, names=[f"{op}{value}"])
    trireme.save(b.finish(value), model)
    path, devices = str(tmp_path / "lock.toml"), ["--devices", "cpu,host"]
    code, out, _ = call(capsys, "place", model, *devices, "--lock", path, "--json")
    score = json.loads(out)["score"]
    code, out, _ = call(capsys, "explain", model, *devices, "cum_sum1", "--json")
    (node,) = json.loads(out)["nodes"]
    stated = next(one for one in node["alternatives"] if one["device"] == "host")
    assert (node["name"], node["id"]) == ("cum_sum1", 1) and stated["run_s"] > score
    for name in ("cum_sum1", "#1"):
        code, out, _ = call(
            capsys, "place", model, *devices, "--placement", path, "--pin", f"{name}=host", "--json"
        )
        assert code == 0 and json.loads(out)["score"] == stated["run_s"]
        anew = ["--multi-device", "any", "--shard", "off", "--json"]
        code, out, _ = call(capsys, "place", model, *devices, "--pin", f"{name}=host", *anew)
        assert code == 0 and json.loads(out)["score"] == stated["free_s"]
    code, out, _ = call(capsys, "explain", model, *devices, "#1")
    assert code == 0 and "cum_sum #1 'cum_sum1'" in out and "with all others placed anew" in out
    code, _, err = call(capsys, "explain", model, *devices, "#7")
    assert code == 3 and "explain #7: no node is called '#7'" in err


@pytest.mark.parametrize("command", ["run", "profile", "explain", "verify", "place"])
def test_pins_are_taken_wherever_a_model_is_placed(model, capsys, command):
    extra = ["--per-node"] if command == "verify" else []
    pins = ["--devices", "cpu,host", "--pin", "op:conv=cpu", "--pin", "*=host"]
    code, out, _ = call(capsys, command, model, *pins, *extra)
    assert code == 0 and re.search("cpu +unused: it refuses all", out) or command == "verify"
    code, _, err = call(capsys, command, model, "--pin", "conv", *extra)
    assert code == 2 and "expected NODE=DEVICE" in err


def test_place_measures(model, capsys):
    code, out, _ = call(capsys, "place", model, "--measure")
    assert code == 0 and "not measured: there is no other placement to try" in out


def test_run_holds_a_locked_placement(model, tmp_path, capsys):
    path = str(tmp_path / "placement.toml")
    call(capsys, "place", model, "--lock", path)
    code, out, _ = call(capsys, "run", model, "--placement", path)
    assert code == 0 and "z: float32" in out


def test_explain_prints_the_page_of_a_node(model, capsys):
    """By name, number and op; before, between and after the options; and nothing of the others."""
    for words in (["z", "--devices", "cpu"], ["--devices", "cpu", "#0"], ["op:conv", "--plan"]):
        code, out, _ = call(capsys, "explain", model, *words)
        assert code == 0 and "conv #0" in out and "reads x float32" in out, words
        assert "candidates" not in out and "an input" in out and "the model's output" in out
    code, _, err = call(capsys, "explain", model, "op:relu")
    assert code == 3 and "explain op:relu: no node is of op 'relu'" in err


@pytest.mark.parametrize("command", ["place", "explain", "profile"])
def test_a_described_machine_has_a_predicted_trace(model, tmp_path, capsys, command):
    trace = tmp_path / "t.json"
    words = ["--soc", "rk3588", "--vary", "cpu.bandwidth=x2", "--trace", str(trace)]
    code, out, err = call(capsys, command, model, *words, "--json")
    assert code == 0 and not err
    assert json.loads(out)["schema_version"] == 1
    events = check_trace(json.loads(trace.read_text()))
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"virtual clock, predicted"}
    assert {e["name"] for e in events if e.get("cat") == "node"} == {"z"}
    code, _, err = call(capsys, command, model, "--soc", "rk3588", "--threads", "2")
    assert code == 2 and "only described" in err
    code, _, err = call(capsys, command, model, "--vary", "cpu.bandwidth=x2")
    assert code == 2 and "add --soc" in err


@pytest.mark.parametrize("command", ["place", "explain"])
def test_what_is_here_has_a_predicted_trace_too(model, tmp_path, capsys, command):
    trace = tmp_path / "t.json"
    assert call(capsys, command, model, "--trace", str(trace))[0] == 0
    check_trace(json.loads(trace.read_text()))


def test_profile_of_a_described_machine_measures_nothing(model, capsys):
    code, out, _ = call(capsys, "profile", model, "--soc", "rk3588")
    assert code == 0 and "every time is predicted" in out and "conv z" in out
    code, _, err = call(capsys, "profile", model, "--soc", "rk3588", "--stream", "8")
    assert code == 2 and "--stream is for devices that run" in err
