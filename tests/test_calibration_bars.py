"""Predictions beside measurements: the bars, on models that no curve was fitted to.

The first test runs everywhere, on a short calibration and without bars; the slow ones want a quiet
machine: `chrt -f 10 pytest -s -m slow tests/test_calibration_bars.py`.
"""

import json

import numpy as np
import pytest
from zoo import zoo_path

from trireme.builder import GraphBuilder
from trireme.calibration_nets import NETS
from trireme.graph import TensorType
from trireme.model_file import save
from trireme.tools.cli import main

MODELS = (
    "mobilenet_v1_0.25_224_f32", "vww_96_float", "resnet8_cifar10_f32", "deeplabv3_f32",
    "tf2_mobilenet_v2_1.0_224_ptq", "mobilenet_v2_1.0_224_quant", "vww_96_int8",
    "resnet8_cifar10_int8", "kws_dscnn_int8",
)  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("calibration") / "c.json"


@pytest.fixture(autouse=True)
def own_file(monkeypatch, file):
    monkeypatch.setenv("TRIREME_CALIBRATION", str(file))


def test_calibrate_and_check_from_the_command_line(file, tmp_path, capsys):
    assert main(["calibrate", "--devices", "cpu,npu", "--threads", "1,2", "--limit", "3"]) == 0
    said = capsys.readouterr().out
    assert "conv_f32" in said and "npu: simulated" in said
    assert len(json.loads(file.read_text())["devices"]) == 2
    b = GraphBuilder("small")
    x = b.input("x", TensorType((1, 64), "float32"))
    w = b.constant("w", np.ones((32, 64), np.float32))
    model = tmp_path / "small.trm"
    save(b.finish(b.add("fully_connected", x, w)), model)
    code = main(
        ["calibrate", "--devices", "cpu", "--threads", "1", "--check", str(model), "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["met"] else 1)
    (row,) = found["rows"]
    assert row["what"] == "run" and row["predicted_s"] > 0 and row["measured_s"] > 0


def test_a_device_that_was_not_measured_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRIREME_CALIBRATION", str(tmp_path / "none.json"))
    model = zoo_path("vww_96_int8.tflite")
    assert main(["calibrate", "--check", str(model), "--devices", "cpu"]) == 2
    assert "trireme calibrate --devices cpu" in capsys.readouterr().err


def models():
    assert not {net.name for net in NETS} & set(MODELS)
    return [str(zoo_path(f"{name}.tflite")) for name in MODELS]


def check(capsys, *arguments):
    main(["calibrate", "--check", *models(), "--json", *arguments])
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_predictions_on_a_quiet_machine(capsys):
    """Within 10 % on 80 % of (model, devices, threads), median error at most 5 %."""
    assert main(["calibrate", "--devices", "cpu,opencl", "--threads", "1,2"]) == 0
    capsys.readouterr()
    rows = check(capsys, "--devices", "cpu,opencl", "--threads", "1,2")["rows"]
    runs = [row for row in rows if row["what"] == "run"]
    quiet = [row for row in runs if abs(row["pace"] - 1) <= 0.05]
    if len(quiet) < 0.8 * len(runs):
        pytest.skip(f"not quiet: {len(quiet)} of {len(runs)} at the pace of the calibration")
    errors = [abs(row["error"]) for row in quiet]
    assert np.median(errors) <= 0.05 and np.mean(np.array(errors) <= 0.1) >= 0.8


@pytest.mark.slow
def test_random_placements_rank_as_they_run(capsys):
    assert main(["calibrate", "--devices", "cpu,opencl", "--threads", "2"]) == 0
    capsys.readouterr()
    model = models()[0]
    main(["calibrate", "--devices", "cpu,opencl", "--threads", "2", "--check", model,
          "--placements", "20", "--json"])  # fmt: skip
    ((rank, count),) = json.loads(capsys.readouterr().out)["ranks"].values()
    assert count == 20 and rank >= 0.95
