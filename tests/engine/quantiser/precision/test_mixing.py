"""quantize with a budget: what it may lose, the front, the reasons, and its errors."""

import json
import re

import numpy as np
import onnxruntime
import pytest
from float_graphs import conv_net, samples_of

import trireme

SEED = 6
NET = conv_net(SEED)
DATA = samples_of(NET, 12, SEED)


def placed(budget, metric, **more):
    options = {"ranges": "min_max", "repairs": "none", **more}
    return trireme.quantize(NET, DATA, budget=budget, metric=metric, **options)


@pytest.fixture(scope="module")
def made():
    whole = trireme.quantize(NET, DATA, ranges="min_max", repairs="none").quantization
    return placed(whole.outputs[0].snr_db + 2, "snr", soc="rk3588")


def test_the_budget_is_kept_and_costs_least(made):
    report = made.quantization.precision
    assert report.chosen.loss <= report.limit and report.target == "rk3588"
    assert report.front == made.quantization.front
    measured = min(one.snr_db for one in made.quantization.outputs)
    assert measured == pytest.approx(report.chosen.snr_db, abs=1e-6), f"seed {SEED}"
    latencies = [point.latency_s for point in report.front]
    losses = [point.loss for point in report.front]
    assert latencies == sorted(latencies) and losses == sorted(losses, reverse=True)
    names = [one.name for one in report.usual]
    assert names[:2] == ["all integers", "first and last product float"]
    assert names[2:] == ["greedy by sensitivity", "all float16"]
    assert not report.usual[0].meets
    for one in report.usual:
        assert not one.meets or report.chosen.latency_s <= one.latency_s


def test_with_repairs_the_budget_is_of_the_float_model_too():
    """A correction of a node that stays float would be an error that the search does not see."""
    made = trireme.quantize(NET, DATA, budget=33, metric="snr", soc="rk3588").quantization
    tried = {one.name for one in made.repairs}
    assert "equalisation" in tried and not tried & {"bias_correction", "rounding"}
    measured = min(one.snr_db for one in made.outputs)
    assert measured == pytest.approx(made.precision.chosen.snr_db, abs=1e-6), f"seed {SEED}"
    assert measured >= 33
    with pytest.raises(trireme.GraphError, match="bias_correction does not go with a budget"):
        placed(33, "snr", repairs=["bias_correction"])


def test_each_float_node_has_its_reason(made):
    report = made.quantization.precision
    assert tuple(one.name for one in report.reasons) == report.chosen.float_names != ()
    for one in report.reasons:
        assert one.device in ("cpu", "gpu", "npu")
        if one.why in ("budget", "both"):
            assert one.loss > report.limit
        if one.why in ("latency", "both"):
            assert one.latency_s >= report.chosen.latency_s
        what = "float16" if one.precision == "float16" else "float"
        assert f"{one.op} {one.name} is {what} on" in report.sentence(one)
    text = str(made.quantization)
    assert "for a millisecond more" in text and "precision placed on rk3588" in text
    data = json.loads(json.dumps(made.quantization.to_json()))["precision"]
    assert len(data["front"]) == len(report.front) and data["metric"] == "snr"


def test_the_mixed_graph_runs_as_measured(made):
    floats = {one.name for one in made.quantization.floats}
    assert floats == set(made.quantization.precision.chosen.float_names)
    with trireme.Session(made) as session, trireme.Session(NET) as real:
        x = DATA["x"][0]
        y, want = session.run({"x": x})["y"], real.run({"x": x})["y"]
    assert np.abs(y - want).max() < 0.2


def test_float16_keeps_a_budget_that_integers_break(tmp_path):
    """ONNX Runtime computes the written float16 nodes alike, on its own."""
    made = placed(55.0, "snr", soc="rk3588")
    report = made.quantization.precision
    assert report.chosen.halves and report.chosen.loss <= -55.0
    halves = {one.name for one in report.reasons if one.precision == "float16"}
    assert len(halves) == report.chosen.halves and "(float16)" not in halves
    assert f"({len(halves)} float16)" in str(report) and "is float16 on" in str(report)
    reasons = {one.name: one.reason for one in made.quantization.floats}
    assert {reasons[name] for name in halves} == {"float16 keeps the loss budget in less time"}
    trireme.save(made, tmp_path / "m.trm")
    trireme.export(made, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=PROVIDERS)
    with trireme.Session(trireme.load(tmp_path / "m.trm")) as ours, trireme.Session(NET) as real:
        x = {"x": DATA["x"][0]}
        y, want, (peer,) = ours.run(x)["y"], real.run(x)["y"], session.run(None, x)
    assert snr_db(y, want) > 45 and snr_db(peer, want) > 45 and snr_db(peer, y) > 50


def test_a_model_without_integers_is_not_called_int8():
    made = placed(62.0, "snr", soc="rk3588")
    assert made.quantization.precision.chosen.integers == 0
    assert made.name == f"{NET.name} (float16)"
    assert placed(30.0, "snr", soc="rk3588").name == f"{NET.name} (int8)"


def test_a_time_limit_stops_the_search_and_is_reported(tmp_path):
    """The usual ways are tried all the same, so that the answer is no slower than they are."""
    made = placed(30.0, "snr", soc="rk3588", time_limit_s=1e-6)
    report, free = made.quantization.precision, placed(30.0, "snr", soc="rk3588", time_limit_s=600)
    assert report.time_limit_s == 1e-6 and not report.is_exhaustive
    assert report.placements < free.quantization.precision.placements
    assert "stopped by its time limit of 1e-06 s" in str(report)
    usual = [one.latency_s for one in report.usual if one.meets]
    assert report.chosen.loss <= -30 and all(report.chosen.latency_s <= one for one in usual)
    assert free.quantization.precision.time_limit_s is None
    trireme.save(made, tmp_path / "m.trm")
    stored = trireme.load(tmp_path / "m.trm").quantization.precision
    assert stored.time_limit_s == 1e-6


PROVIDERS = ["CPUExecutionProvider"]


def snr_db(got, want):
    return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())


def test_a_machine_without_float16_has_no_float16(tmp_path):
    """The float16 of a Coral board's cpu is no faster than its float32."""
    report = placed(30.0, "snr", soc="coral_dev_board").quantization.precision
    assert not report.chosen.halves and "all float16" not in {one.name for one in report.usual}


def test_a_metric_may_be_a_function_or_agreement():
    def mean_error(outputs, labels):
        assert outputs["y"].shape == (12, 1, 10) and labels is None
        return -float(np.abs(outputs["y"]).sum())

    assert placed(10.0, mean_error).quantization.precision.metric == "mean_error"
    report = placed(0.0, "agreement").quantization.precision
    assert report.float_score == 1.0 and report.chosen.loss <= 0


def test_labels_are_compared_in_order(tmp_path):
    with trireme.Session(NET) as real:
        labels = [int(real.run({"x": x})["y"].argmax()) for x in DATA["x"]]
    wrong = labels[:-3] + [(label + 1) % 10 for label in labels[-3:]]
    report = placed(0.0, "top1", labels=wrong).quantization.precision
    assert report.float_score == pytest.approx(9 / 12)
    np.save(tmp_path / "y.npy", labels)
    report = placed(0.0, "top1", labels=tmp_path / "y.npy").quantization.precision
    assert report.float_score == 1.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 400, "metric": "snr"}, "no choice with an integer node.*\n.*best that is reac"),
        ({"budget": 0.1}, "a budget is of a metric"),
        ({"metric": "top1"}, "metric is of a budget"),
        ({"labels": [1]}, "labels is of a budget"),
        ({"budget": 0.1, "metric": "top5"}, "unknown metric 'top5'"),
        ({"budget": 0.1, "metric": "top1"}, "needs? .*labels|with labels, and none"),
        ({"budget": 0.1, "metric": "top1", "labels": [1, 2]}, "2 labels are given.*12 answers"),
        ({"budget": 9, "metric": "snr", "labels": [1]}, "the metric snr needs no labels"),
        ({"budget": -0.1, "metric": "agreement"}, "a loss below 0"),
        ({"budget": float("nan"), "metric": "snr"}, "expected a finite number"),
        ({"time_limit_s": 9}, "time_limit_s is of a budget"),
        ({"budget": 9, "metric": "snr", "time_limit_s": 0}, "time_limit_s is 0, expected more"),
        ({"budget": 9, "metric": "snr", "soc": "rk1"}, "no description 'rk1'"),
        ({"budget": 9, "metric": "snr", "soc": "rk3588", "devices": ["tpu"]}, "no device 'tpu'"),
        ({"budget": 9, "metric": lambda outputs, labels: 1 / 0}, "the metric failed"),
        ({"budget": 9, "metric": lambda outputs, labels: np.nan}, "the metric returned nan"),
        ({"budget": 0.1, "metric": "top1", "labels": "no.npy"}, "no.npy cannot be read as labels"),
    ],
)
def test_what_does_not_fit_has_a_sentence(options, sentence):
    with pytest.raises(trireme.TriremeError) as caught:
        trireme.quantize(NET, DATA, ranges="min_max", repairs="none", **options)
    assert re.search(sentence, str(caught.value)), str(caught.value)


def test_data_that_can_be_read_once_serve_no_metric():
    feeds = iter([{"x": x} for x in DATA["x"]])
    with pytest.raises(trireme.RunError, match="the data can be read once"):
        trireme.quantize(
            NET, feeds, ranges="min_max", repairs="none", budget=0.1, metric="agreement"
        )
