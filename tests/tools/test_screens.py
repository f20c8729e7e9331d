"""The default screens of place and explain are summaries: 30 lines of 100 columns at most."""

from importlib.resources import files

import pytest
from commands import call
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


@pytest.mark.parametrize("words", DEVICES, ids=" ".join)
@pytest.mark.parametrize("command", ["place", "explain"])
def test_a_screen_holds_the_summary(model, command, words, capsys):
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
