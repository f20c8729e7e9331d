"""Bad command lines: each ends with a typed error that says what to do, and none is ignored."""

import re

import numpy as np
import pytest
from commands import call
from onnx import parser

pytestmark = pytest.mark.usefixtures("no_calibration")

ADVICE = re.compile(r"\n  (fix: |known|there is |the model takes |signatures: |ops: )|expected ")
"""A fix, what there is to choose from, or what the option takes."""
MODEL = """<ir_version: 10, opset_import: ["" : 22]>
m (float[n, 4] x, float[k, 4] y) => (float[n, 4] z) {
    s = Add(x, y)
    z = Relu(s)
}"""
CHOICE = """<ir_version: 10, opset_import: ["" : 22]>
m (bool which, float[n] x) => (float[k] z) {
    z = If (which) <
        then_branch = wide () => (float[k] v) {
            four = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() v = Add(x, four)
        },
        else_branch = narrow () => (float[l] t) {
            two = Constant<value_floats = [1.0, 2.0]>() t = Add(x, two)
        }
    >
}"""
SIZES = ["--at", "n=2,k=2"]
COMMANDS = ["info", "place", "explain", "convert", "run", "profile", "verify"]
RUN = [
    ["--at", "n=2,k=3"],
    ["--at", "q=2"],
    ["--at", "n"],
    ["--shape", "x=2"],
    ["--shape", "x=2,5"],
    ["--shape", "q=2,4"],
    ["--shape", "x="],
    ["--shape", "x"],
    [],
    [*SIZES, "--input", "x=nosuch.npy"],
    [*SIZES, "--input", "x={folder}/several.npz"],
    [*SIZES, "--input", "x={model}"],
    [*SIZES, "--input", "q=random"],
    [*SIZES, "--devices", "gpu"],
    [*SIZES, "--devices", ""],
    [*SIZES, "--isa", "nosuch"],
    [*SIZES, "--npu-spec", "mobile"],
    [*SIZES, "--pin", "nosuch=cpu"],
    [*SIZES, "--pin", "nosuch"],
    [*SIZES, "--shard", "nosuch"],
    [*SIZES, "--passes-off", "nosuch"],
    [*SIZES, "--objective", "energy"],
    [*SIZES, "--bucket", "n=a"],
    [*SIZES, "--state", "x"],
]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "several.npz", a=np.zeros(3), b=np.zeros(3))
    (tmp_path / "model.onnx").write_bytes(parser.parse_model(MODEL).SerializeToString())
    return str(tmp_path / "model.onnx")


def refused(capsys, *arguments):
    code, out, err = call(capsys, *arguments)
    assert code not in (0, 70), (code, out, err)
    assert ADVICE.search(err), err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("given", RUN, ids=" ".join)
def test_a_bad_run_says_what_to_do(model, tmp_path, capsys, given):
    refused(capsys, "run", model, *(one.format(folder=tmp_path, model=model) for one in given))


@pytest.mark.parametrize("command", COMMANDS)
def test_sizes_that_do_not_fit_have_a_fix_in_each_command(model, capsys, command):
    shown = refused(capsys, command, model, "--at", "n=2,k=3")
    assert "fix: give other sizes than n=2 (of x) or k=3 (of y)" in shown


def test_several_arrays_are_no_input(model, tmp_path, capsys):
    given = f"x={tmp_path / 'several.npz'}"
    shown = refused(capsys, "run", model, *SIZES, "--input", given)
    assert "a file of several arrays (a, b)" in shown and ".npy file" in shown


def test_an_option_of_a_device_that_is_not_used(model, capsys):
    shown = refused(capsys, "place", model, *SIZES, "--npu-spec", "mobile")
    assert "--npu-spec is an option of npu, and the devices are cpu" in shown
    given = ["--npu-spec", "mobile", "--isa", "generic", "--devices", "npu,cpu"]
    assert call(capsys, "place", model, *SIZES, *given)[0] == 0


def test_calibrate_without_devices_writes_no_file(tmp_path, capsys):
    target = tmp_path / "calibration.json"
    shown = refused(capsys, "calibrate", "--devices", "", "--output", str(target))
    assert "fix: --devices cpu" in shown and not target.exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["run", "--top", "3"], "--top says nothing without --labels"),
        (["run", "--normalise", "unit"], "--normalise says nothing without --image"),
        (["run", "--image", "cat.png"], "--image: no input takes a picture"),
        (["place", "--tolerance", "5%"], "--tolerance says nothing without --check"),
    ],
    ids=str,
)
def test_an_option_that_says_nothing_is_refused(model, capsys, given, sentence):
    command, *rest = given
    assert sentence in refused(capsys, command, model, *SIZES, *rest)


@pytest.mark.parametrize("name", ["m.pt2", "m.foo"])
def test_a_suffix_that_names_no_format_is_not_written(model, tmp_path, capsys, name):
    shown = refused(capsys, "convert", model, "-o", str(tmp_path / name))
    assert "known suffixes: .onnx, .tflite; .trm" in shown
    assert not (tmp_path / name).exists()
    assert call(capsys, "convert", model, "-o", str(tmp_path / "bare"))[0] == 0


def test_outputs_are_written_whole_or_not_at_all(model, tmp_path, capsys, monkeypatch):
    assert call(capsys, "run", model, *SIZES, "--output", str(tmp_path / "out"))[0] == 0
    with np.load(tmp_path / "out.npz") as stored:
        assert stored["z"].shape == (2, 4)
    code, _, err = call(capsys, "run", model, *SIZES, "--output", str(tmp_path / "no" / "out"))
    assert code == 4 and "out.npz: cannot be written: No such file or directory" in err


def test_python_files_that_are_not_there(model, capsys):
    code, _, err = call(capsys, "run", model, *SIZES, "--python-ops", "nosuch.py")
    assert code and "there is no file nosuch.py" in err
    refused(capsys, "quantize", model, "--loader", "nosuch:f")


def test_a_model_that_chooses_a_branch_is_verified(model, tmp_path, capsys):
    path = tmp_path / "choice.onnx"
    path.write_bytes(parser.parse_model(CHOICE).SerializeToString())
    np.save(tmp_path / "yes.npy", np.array(True))
    chosen = ["--at", "n=4", "--input", f"which={tmp_path / 'yes.npy'}"]
    code, out, err = call(capsys, "verify", str(path), *chosen)
    assert code == 0 and "ok    z" in out, err


def test_what_needs_a_known_size_says_to_give_it(tmp_path, capsys):
    text = """<ir_version: 10, opset_import: ["" : 22]>
    m (float[n, 4] x) => (float[n, 4] z) {
        parts = SplitToSequence<axis = 0, keepdims = 0>(x)
        z = ConcatFromSequence<axis = 0, new_axis = 1>(parts)
    }"""
    path = tmp_path / "split.onnx"
    path.write_bytes(parser.parse_model(text).SerializeToString())
    assert "fix: give the sizes of the inputs' open dimensions" in refused(
        capsys, "info", str(path)
    )
    assert call(capsys, "run", str(path), "--shape", "x=3,4")[0] == 0
