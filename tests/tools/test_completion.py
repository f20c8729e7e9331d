"""Shell completion: commands, options, files, devices, described machines."""

import os
import subprocess
import sys

import pytest
from commands import save_small

pytest.importorskip("argcomplete")


@pytest.fixture
def completed(tmp_path):
    """Return what a shell is told that a line can go on with."""
    save_small(tmp_path / "small.trm")
    (tmp_path / "notes.txt").write_text("no model")

    def complete(line):
        answer = tmp_path / "answer"
        environment = {
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "COMP_TYPE": "9",
        }
        words = [sys.executable, "-m", "trireme.tools.cli"]
        subprocess.run(words, env=environment, cwd=tmp_path, check=True, capture_output=True)
        return {word.strip() for word in answer.read_text().split("\n") if word.strip()}

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("trireme exp", {"explain"}),
        ("trireme explain --so", {"--soc"}),
        ("trireme explain ", {"small.trm"}),
        ("trireme explain small.trm --soc rk", {"rk3588"}),
        ("trireme run small.trm --devices npu,op", {"npu,opencl"}),
        ("trireme run small.trm --mode se", {"serial"}),
    ],
)
def test_completion(completed, line, expected):
    found = completed(line)
    assert expected <= found and "notes.txt" not in found, found
