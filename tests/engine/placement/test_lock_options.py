"""A lock keeps the options that its placement was made with, and whoever holds it uses them."""

import json
import re

import numpy as np
import pytest
from commands import call, save_small
from described import chain, soc_of

import trireme
from trireme.placement.lock import LockedOptions
from trireme.placement.lockfile import load_lock
from trireme.support.errors import PlacementError

pytestmark = pytest.mark.usefixtures("no_calibration")


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


@pytest.fixture
def locked(model, tmp_path, capsys):
    """The file of a lock that says something of every option."""
    path = str(tmp_path / "placement.toml")
    words = [
        "--devices",
        "host,cpu",
        "--objective",
        "serial",
        "--batch",
        "2",
        "--threads",
        "1",
        "--pin",
        "z=host",
        "--lock",
        path,
    ]
    assert call(capsys, "place", model, *words)[0] == 0
    return path


def test_a_lock_keeps_its_options(locked):
    options = load_lock(locked).options
    assert options == LockedOptions(("host", "cpu"), 2, 1, {"z": "host"})
    assert load_lock(locked).objective == "serial"


def test_a_held_lock_needs_no_other_options(model, locked, capsys):
    """Devices, objective, batch, threads and pins are the lock's, in every command."""
    code, out, err = call(capsys, "place", model, "--placement", locked, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["objective"] == "serial"
    (conv,) = data["nodes"]
    assert conv["device"] == "host" and conv["refusals"] == {"cpu": "the node is pinned to host"}
    code, out, err = call(capsys, "run", model, "--placement", locked)
    assert code == 0 and "[2,6,6,4]" in out.replace(" ", ""), (out, err)
    assert call(capsys, "place", model, "--check", locked)[0] == 0


def test_the_command_line_comes_before_the_lock(model, locked, capsys):
    code, out, err = call(capsys, "place", model, "--check", locked, "--objective", "makespan")
    assert code == 1 and "the objective is makespan, it was serial" in out, err
    code, out, _ = call(capsys, "place", model, "--placement", locked, "--pin", "z=cpu")
    assert code == 0 and re.search(r"cpu +1 +1 ", out) and "host      unused" in out


def test_a_session_takes_from_a_lock_what_its_caller_leaves_open(model, locked):
    with trireme.Session(model, placement=locked) as session:
        assert list(session.devices) == ["host", "cpu"]
        assert session.placement.score.objective == "serial"
        (value,) = session.inputs
        assert value.type.shape[0] == 2
        made = session.run({"x": np.ones(value.type.shape, np.float32)})
        assert made["z"].shape == (2, 6, 6, 4)
        assert session.devices["cpu"].spec.description.startswith("1 thread")
    with trireme.Session(model, placement=load_lock(locked), batch=2, devices=["cpu", "host"]) as s:
        assert list(s.devices) == ["cpu", "host"]


def test_a_sessions_placement_options_come_before_the_lock(model, locked):
    """The objective of the lock stands unless another is asked for."""
    for objective, found in ((None, "serial"), ("makespan", "makespan")):
        asked = trireme.PlacementOptions(objective=objective, fixed=locked)
        with trireme.Session(model, placement_options=asked) as session:
            assert session.placement.score.objective == found
            assert list(session.devices) == ["host", "cpu"]


def test_a_placement_is_given_once(model, locked):
    asked = trireme.PlacementOptions(fixed=locked)
    with pytest.raises(PlacementError, match="two placements are given"):
        trireme.Session(model, placement=locked, placement_options=asked)


def test_a_lock_of_a_described_machine_runs_nowhere(tmp_path, capsys):
    """It is held and checked without naming the machine again; a session says why it cannot."""
    soc_of(tmp_path)
    model, path = str(tmp_path / "chain.trm"), str(tmp_path / "lock.toml")
    trireme.save(chain(), model)
    words = ["--soc", str(tmp_path / "soc.toml"), "--vary", "link_bandwidth=x10"]
    code, out, err = call(capsys, "place", model, *words, "--lock", path, "--json")
    assert code == 0, err
    score = json.loads(out)["score"]
    plain = call(capsys, "place", model, *words[:2], "--json")[1]
    assert json.loads(plain)["score"] != score
    for option in ("--placement", "--check"):
        code, out, err = call(capsys, "place", model, option, path, "--json")
        assert code == 0 and json.loads(out)["score"] == score, err
    code, _, err = call(capsys, "run", model, "--placement", path)
    assert code == 3 and "is of the described machine" in err and "which runs nothing" in err
    with pytest.raises(PlacementError, match="described machine"):
        trireme.Session(model, placement=path)


@pytest.mark.parametrize(
    "row, message",
    [
        ("link_bandwidth=1..2", "expected one value"),
        ("nothing=1", "has no figure 'nothing'"),
        ("flops=x0", "cannot be varied so"),
        ("link_bandwidth", "expected FIGURE"),
    ],
)
def test_figures_that_cannot_be_set_are_named(tmp_path, capsys, row, message):
    soc_of(tmp_path)
    model = str(tmp_path / "chain.trm")
    trireme.save(chain(), model)
    code, _, err = call(capsys, "place", model, "--soc", f"{tmp_path}/soc.toml", "--vary", row)
    assert code == 2 and message in err
    code, _, err = call(capsys, "place", model, "--vary", "link_bandwidth=x2")
    assert code == 2 and "described machine" in err


def test_a_tolerance_allows_another_placement_that_gains_little(tmp_path, capsys):
    """The lock of a slower link is held on a faster one: it passes if that costs little."""
    soc_of(tmp_path)
    model, path = str(tmp_path / "chain.trm"), str(tmp_path / "lock.toml")
    trireme.save(chain(), model)
    words = ["place", model, "--soc", str(tmp_path / "soc.toml")]
    assert call(capsys, *words, "--vary", "link_bandwidth=x0.1", "--lock", path)[0] == 0
    faster = [*words, "--vary", "link_bandwidth=x100", "--check", path]
    assert call(capsys, *faster)[0] == 1
    code, out, _ = call(capsys, *faster, "--tolerance", "1%")
    assert code == 1 and "not within the tolerance of 1.0%" in out
    excess = float(re.search(r"predicted \+([0-9.]+)% against today's", out)[1])
    assert excess > 1
    code, out, _ = call(capsys, *faster, "--tolerance", f"{excess + 1}%")
    assert code == 0 and "-> far" in out and " within the tolerance" in out


def test_a_tolerance_is_of_the_prediction_too(model, tmp_path, capsys):
    """The same placement that is predicted to take much longer than when it was locked fails."""
    path = tmp_path / "lock.toml"
    assert call(capsys, "place", model, "--lock", str(path))[0] == 0
    text = path.read_text()
    path.write_text(re.sub(r"predicted = .*", "predicted = 1e-9", text))
    assert call(capsys, "place", model, "--check", str(path))[0] == 0
    code, out, _ = call(capsys, "place", model, "--check", str(path), "--tolerance", "0.05")
    assert code == 1 and "the placement is the same" in out
    assert "its prediction in the lockfile" in out
    with pytest.raises(SystemExit, match="2"):
        call(capsys, "place", model, "--check", str(path), "--tolerance=-5%")
    assert "expected a share, such as 5% or 0.05" in capsys.readouterr().err
