"""`trireme quantize` with a budget, from the command line."""

import json

import numpy as np
import pytest
from commands import call
from float_graphs import conv_net, samples_of

import trireme


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget")
    net = conv_net(2)
    trireme.save(net, folder / "net.trm")
    data = samples_of(net, 8, 2)
    np.savez(folder / "d.npz", **data)
    with trireme.Session(net) as session:
        np.save(folder / "y.npy", [int(session.run({"x": x})["y"].argmax()) for x in data["x"]])
    return folder


def budget(files, capsys, *more):
    start = ("quantize", str(files / "net.trm"), "--data", str(files / "d.npz"))
    return call(capsys, *start, "--ranges", "min_max", "--repairs", "none", *more)


def test_a_budget_of_labels_on_a_described_machine(files, capsys):
    options = ["--max-loss", "0.01", "--metric", "top1", "--labels", str(files / "y.npy")]
    out = files / "m8.trm"
    code, text, err = budget(
        files, capsys, *options, "--soc", "rk3588", "-o", str(out), "--report", str(files / "q")
    )
    assert code == 0, err
    assert "precision placed on rk3588: loss by top1, 0.01 at most" in text
    report = json.loads((files / "q").read_text())["precision"]
    chosen = next(point for point in report["front"] if point["is_chosen"])
    assert chosen["loss"] <= 0.01 and report["float_score"] == 1.0
    code, placed, err = call(capsys, "place", str(out), "--soc", "rk3588", "--json")
    assert code == 0, err
    predicted = json.loads(placed)["makespan_s"]
    assert predicted == pytest.approx(chosen["latency_s"], rel=1e-6)


def test_a_budget_of_noise(files, capsys):
    code, text, err = budget(files, capsys, "--min-snr-db", "25", "--soc", "rk3588")
    assert code == 0 and "loss by snr, 25 dB at least" in text, err


def test_a_time_limit_is_told(files, capsys):
    options = ["--min-snr-db", "25", "--soc", "rk3588", "--time-limit", "0.000001"]
    code, text, err = budget(files, capsys, *options)
    assert code == 0 and "the search was stopped by its time limit of 1e-06 s" in text, err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-loss", "1%"], "a budget is of a metric"),
        (["--max-loss", "1%", "--min-snr-db", "9"], "give one of them"),
        (["--time-limit", "9"], "time_limit_s is of a budget"),
        (["--labels", "y.npy"], "labels is of a budget"),
        (["--min-snr-db", "9", "--soc", "none"], "no description 'none'"),
    ],
)
def test_options_that_do_not_fit_have_a_sentence(files, capsys, options, sentence):
    code, _, err = budget(files, capsys, *options)
    assert code and sentence in err, err
