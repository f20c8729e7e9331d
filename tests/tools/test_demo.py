"""The demo says what a run is, fits a narrow terminal, and writes its model for other commands."""

import numpy as np
import pytest

from trireme.backend.registry import open_devices
from trireme.tools.cli import main
from trireme.tools.demo import DEVICES


@pytest.fixture
def all_devices():
    """Skips where a device of the demo is absent."""
    opened, absent = open_devices(DEVICES, {}, 1, True)
    for device in opened.values():
        device.close()
    if absent:
        pytest.skip(str(absent))


@pytest.mark.usefixtures("all_devices")
def test_the_report_fits_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 60
    assert "360 handwritten digits" in out
    assert "predicted  measured" in out
    assert "Both runs give the same digits." in out


def test_the_model_is_written(tmp_path, capsys):
    assert main(["demo", "--write", str(tmp_path / "digits")]) == 0
    assert "images.npy: 360 images, float32[360, 1, 8, 8]" in capsys.readouterr().out
    assert np.load(tmp_path / "digits" / "labels.npy").shape == (360,)
    assert main(["info", str(tmp_path / "digits" / "digits.onnx")]) == 0
