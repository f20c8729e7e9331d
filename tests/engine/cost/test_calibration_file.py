"""A file of curves: kept as it is, named where it is damaged, unused in another version."""

import json
from dataclasses import replace

import pytest
from priced_toys import relu, toy_calibration
from toy_device import ToyDevice

from trireme.backend.calibrate_hint import command
from trireme.cost.calibration import (
    VERSION,
    Calibration,
    DeviceCalibration,
    load_calibration,
)
from trireme.model_file import save
from trireme.support.errors import ModelFileError
from trireme.tools.cli import main


def test_save_and_load(tmp_path):
    path = tmp_path / "deep" / "c.json"
    toy_calibration().save(path)
    assert load_calibration(path) == toy_calibration()
    assert load_calibration(tmp_path / "absent.json") == Calibration()


def test_other_devices_are_kept():
    other = Calibration.of_devices(DeviceCalibration("cpu", "more threads", 1e-6))
    both = toy_calibration().with_(other)
    assert len(both.devices) == 2
    assert both.with_(toy_calibration()) == both


KEY = "cpu: toy cpu"


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(version="1"),
        lambda d: d.pop("version"),
        lambda d: d["devices"][KEY].update(launch_s="soon"),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(fixed_s=-1.0),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"]["per"].update(bytes=-1.0),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(high=float("nan")),
        lambda d: d["devices"][KEY]["curves"]["elementwise/float32"].update(colour="red"),
        lambda d: d["devices"][KEY]["copies"].update(read=[1e-5, 0.0]),
        lambda d: d["devices"][KEY]["sharing"]["gpu"].update(latency_s=None),
        lambda d: d["devices"][KEY]["sharing"]["gpu"].update(bandwidth=0.0),
        lambda d: d.update(devices=[]),
    ],
)
def test_damaged_files_are_named(tmp_path, change):
    path = tmp_path / "c.json"
    toy_calibration().save(path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ModelFileError, match=r"(?s)c\.json.*trireme calibrate"):
        load_calibration(path)


@pytest.mark.parametrize("version, which", [(VERSION - 1, "older"), (VERSION + 1, "newer")])
def test_another_versions_file_is_told_and_unused(tmp_path, version, which, caplog):
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"version": version, "devices": {KEY: {"made": "otherwise"}}}))
    found = load_calibration(path)
    assert not found.devices and which in found.stale
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "trireme calibrate" in record.getMessage()
    spec = ToyDevice("cpu").spec
    (line,) = found.unmeasured([spec])
    assert line.startswith("priced by description") and found.stale in line
    assert line.endswith("trireme calibrate --devices cpu")
    assert not toy_calibration().unmeasured([spec])
    (line,) = Calibration().unmeasured([spec])
    assert "never measured" in line
    assert not Calibration().unmeasured([replace(spec, clock="virtual")])
    toy_calibration().save(path)
    assert load_calibration(path) == toy_calibration()


@pytest.mark.parametrize("command", ["place", "profile", "explain"])
def test_commands_say_what_is_not_measured(tmp_path, command, monkeypatch, capsys):
    calibration, model = tmp_path / "c.json", tmp_path / "m.trm"
    calibration.write_text(json.dumps({"version": VERSION - 1, "devices": {}}))
    monkeypatch.setenv("TRIREME_CALIBRATION", str(calibration))
    save(relu(), model)
    assert main([command, str(model), "--devices", "cpu"]) == 0
    assert "priced by description" in capsys.readouterr().out
    assert main([command, str(model), "--devices", "cpu", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["unmeasured"]) == 1


def test_instances_are_measured_as_their_kind():
    assert command(["cpu#1", "opencl", "cpu#2"]) == "trireme calibrate --devices cpu,opencl"
    assert command(["cpu#1"], "--cores") == "trireme calibrate --cores --devices cpu"
