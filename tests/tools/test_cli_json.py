"""The JSON of every command says which schema it has."""

import json

import pytest
from commands import call, save_small

from trireme.tools.command_table import COMMANDS

pytestmark = pytest.mark.usefixtures("no_calibration")

WORDS = {
    "convert": ["{model}", "-o", "{folder}/other.trm"],
    "run": ["{model}"],
    "profile": ["{model}", "--runs", "2"],
    "explain": ["{model}"],
    "place": ["{model}"],
    "whatif": ["{model}", "--soc", "rk3588"],
    "verify": ["{model}", "--per-node"],
    "quantize": ["{model}", "--data", "random", "-o", "{folder}/q.trm"],
    "bench": ["--from", "{folder}/rows.json"],
    "replay": ["{model}", "{folder}/run", "--record"],
    "info": ["{model}"],
    "devices": ["--soc", "rk3588"],
    "supported-ops": ["--table"],
    "calibrate": ["--cores", "-o", "{folder}/calibration.json"],
    "demo": ["--write", "{folder}/digits"],
}


def test_every_command_is_here():
    assert set(WORDS) == set(COMMANDS) - {"serve"}, "serve ends when it is told to"


@pytest.mark.parametrize("command", WORDS)
def test_json_has_a_schema_version(command, tmp_path, capsys):
    model = save_small(tmp_path / "small.trm")
    (tmp_path / "rows.json").write_text('{"rows": []}')
    words = [word.format(model=model, folder=tmp_path) for word in WORDS[command]]
    _, out, _ = call(capsys, command, *words, "--json")
    assert json.loads(out)["schema_version"] == 1
    report = tmp_path / "report.json"
    _, out, _ = call(capsys, command, *words, "--json", str(report))
    assert json.loads(report.read_text())["schema_version"] == 1
