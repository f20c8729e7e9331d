"""`trireme quantize`: samples from files and functions, the file it writes, its errors."""

import json

import numpy as np
import pytest
from commands import call
from float_graphs import conv_net, samples_of
from PIL import Image

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantize")
    net = conv_net(2)
    trireme.save(net, folder / "net.trm")
    np.savez(folder / "s.npz", **samples_of(net, 8, 2))
    (folder / "s.py").write_text(
        "import numpy as np\ndef images():\n    return dict(np.load(r'%s'))\n" % (folder / "s.npz")
    )
    return folder


def test_samples_of_a_file_or_a_function(files, capsys):
    made = []
    for how in (["--data", str(files / "s.npz")], ["--loader", f"{files / 's.py'}:images"]):
        code, out, err = call(
            capsys, "quantize", str(files / "net.trm"), *how, "--report", str(files / "q.json")
        )
        assert code == 0, err
        assert "net_int8.trm" in out and "output y" in out
        made.append((files / "net_int8.trm").read_bytes())
    assert made[0] == made[1]
    report = json.loads((files / "q.json").read_text())
    assert report["samples"] == 8 and len(report["tensors"]) > 10
    assert any(v.dtype == "int8" for v in trireme.load(files / "net_int8.trm").values.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "needs sample inputs"),
        (["--loader", "nowhere"], "expected MODULE:FUNCTION"),
        (["--loader", "no_such_module:f"], "No module named"),
        (["--loader", "json:nothing"], "json has no function nothing"),
        (["--data", "a", "--loader", "b:c"], "give one of them"),
    ],
)
def test_bad_arguments_have_a_sentence(files, capsys, arguments, sentence):
    code, _, err = call(capsys, "quantize", str(files / "net.trm"), *arguments)
    assert code == 2 and sentence in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scheme", "int9"], "unknown scheme 'int9'"),
        (
            ["--scheme", "int16x8", "--devices", "npu"],
            "no named device runs products of",
        ),
        (["--scheme", "weights_int4", "--devices", "npu"], "no named device runs products of the"),
    ],
)
def test_schemes_that_do_not_run_have_the_librarys_sentence(files, capsys, arguments, sentence):
    code, _, err = call(capsys, "quantize", str(files / "net.trm"), *arguments)
    assert code == 3 and sentence in err


def test_weights_alone_need_no_samples(files, capsys):
    arguments = ["--weights", "int4", "--group", "64", "--export", str(files / "w.onnx")]
    code, out, err = call(capsys, "quantize", str(files / "net.trm"), *arguments)
    assert code == 0, err
    assert "net_weights_int4.trm" in out and "int4 in groups of 64" in out
    assert (files / "w.onnx").stat().st_size > 1000
    code, _, err = call(
        capsys, "quantize", str(files / "net.trm"), "--weights", "int8", "--scheme", "int8"
    )
    assert code == 2 and "--weights int8 is scheme weights_int8" in err


def test_a_folder_of_pictures(files, capsys):
    """Pixels go through the preprocessing, which the report names."""
    folder = files / "pictures"
    folder.mkdir()
    rng = np.random.default_rng(2)
    for number in range(9):
        pixels = rng.integers(0, 256, (20, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    model = str(files / "net.trm")
    report = str(files / "p.json")
    low = {}
    for how in ("mobilenet", "unit"):
        arguments = ["--data", str(folder), "--preprocess", how, "--report", report]
        code, out, err = call(capsys, "quantize", model, *arguments)
        assert code == 0, err
        found = json.loads((files / "p.json").read_text())
        assert found["samples"] == 9 and found["source"].startswith("9 pictures of pictures/ by ")
        low[how] = next(one for one in found["tensors"] if one["name"] == "x")["low"]
    assert -1 <= low["mobilenet"] < -0.5 and 0 <= low["unit"] < 0.25
    code, _, err = call(capsys, "quantize", model, "--data", str(folder))
    assert code == 2 and "--preprocess" in err
    code, _, err = call(capsys, "quantize", model, "--data", str(files), "--preprocess", "unit")
    assert code == 2 and "holds no picture" in err
    code, _, err = call(capsys, "quantize", model, "--preprocess", "unit")
    assert code == 2 and "--preprocess is for a folder of pictures" in err


def test_a_metric_reads_pictures_again(files, capsys):
    folder = files / "again"
    folder.mkdir()
    rng = np.random.default_rng(3)
    for number in range(9):
        pixels = rng.integers(0, 256, (20, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    arguments = ["--data", str(folder), "--preprocess", "unit", "--ranges", "min_max"]
    budget = ["--max-loss", "1", "--metric", "agreement", "--soc", "rk3588", "--repairs", "none"]
    code, out, err = call(capsys, "quantize", str(files / "net.trm"), *arguments, *budget)
    assert code == 0, err
    assert "precision placed on rk3588: loss by agreement" in out


def test_devices_decide_what_products_make(tmp_path, capsys):
    b = GraphBuilder("normed")
    rng = np.random.default_rng(4)
    x = b.input("x", TensorType((1, 4, 8), "float32"))
    one, zero = (b.constant("c", np.full(8, value, np.float32)) for value in (1, 0))
    normed = b.add("layer_normalization", x, one, zero, axis=-1)
    w = b.constant("w", rng.standard_normal((8, 8)).astype(np.float32))
    net = b.finish(b.add("fully_connected", normed, w, names=["y"]))
    trireme.save(net, tmp_path / "t.trm")
    np.savez(tmp_path / "s.npz", **samples_of(net, 8, 2))
    start = ["quantize", str(tmp_path / "t.trm"), "--data", str(tmp_path / "s.npz"), "--explain"]
    _, text, err = call(capsys, *start, "--repairs", "none")
    assert "products: rows" in text, err
    _, text, err = call(capsys, *start, "--repairs", "none", "--devices", "npu,cpu")
    assert "products: integers, a named device runs products that make integers" in text, err
    assert "npu: tensors must be of a dtype that the NPU has" in text
