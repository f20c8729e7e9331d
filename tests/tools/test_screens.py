"""The default screens of place and explain are summaries: 30 lines of 100 columns at most.

A terminal has a width; into a pipe or a file every sentence goes whole.
"""

import json
import sys
from importlib.resources import files

import pytest
from commands import call, save_small
from sweep import sweep
from zoo import zoo_path

pytestmark = pytest.mark.usefixtures("no_calibration")

MODELS = (
    "digits",
    "kws_dscnn_int8",
    "yamnet",
    "ssd_mobilenet_v1_quant",
    "mobilenet_v1_0.25_224_f32",
)
DEVICES = (["--devices", "npu,cpu"], ["--soc", "rk3588"], ["--devices", "cpu", "--pin", "*=cpu"])


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    if request.param != "digits":
        return str(zoo_path(f"{request.param}.tflite"))
    path = tmp_path / "digits.onnx"
    path.write_bytes((files("trireme.tools") / "demo" / "digits.onnx").read_bytes())
    return str(path)


@pytest.fixture
def terminal(monkeypatch):
    """Has standard output be a terminal of some columns, from its call in a test on."""

    def of_columns(count):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(count))

    return of_columns


@pytest.mark.parametrize(
    ("command", "words"),
    sweep(
        [(command, words) for command in ("place", "explain") for words in DEVICES],
        always=lambda command, words: command == "place" or words == DEVICES[0],
    ),
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_a_screen_holds_the_summary(model, command, words, capsys, terminal):
    terminal(100)
    code, out, _ = call(capsys, command, model, *words)
    lines = out.rstrip("\n").split("\n")
    assert code == 0 and lines[0].startswith("placement of ")
    assert len(lines) <= 30 and max(map(len, lines)) <= 100, out


def test_advice_comes_before_the_nodes_and_is_whole(capsys):
    """A line of advice that is cut says nothing."""
    model = str(zoo_path("mobilenet_v1_0.25_224_f32.tflite"))
    _, out, _ = call(capsys, "explain", model, "--soc", "rk3588")
    advice, nodes = out.index("advice: npu refuses"), out.index("nodes that cost most")
    assert advice < nodes and "for all of them" in out[advice:nodes]
    assert "`trireme explain MODEL NODE` for one node, --all for every node" in out[nodes:]


@pytest.mark.parametrize("command", ["place", "explain"])
def test_a_refusal_is_whole_where_no_terminal_ends_its_line(command, tmp_path, capsys):
    model = save_small(tmp_path / "small.trm")
    words = ("--devices", "npu,cpu")
    _, out, _ = call(capsys, "place", model, *words, "--json")
    (reason,) = {node["refusals"]["npu"] for node in json.loads(out)["nodes"]}
    code, out, _ = call(capsys, command, model, *words)
    assert code == 0 and len(reason) > 60
    (line,) = [line for line in out.split("\n") if line.startswith("  npu ")]
    assert line.endswith(f"({reason})") and "..." not in line


@pytest.mark.parametrize("command", ["place", "explain"])
def test_a_terminal_cuts_what_its_line_has_no_room_for(command, tmp_path, capsys, terminal):
    terminal(70)
    _, out, _ = call(capsys, command, save_small(tmp_path / "small.trm"), "--devices", "npu,cpu")
    (line,) = [line for line in out.split("\n") if line.startswith("  npu ")]
    assert len(line) <= 70 and line.endswith("...")
