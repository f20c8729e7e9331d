"""What `trireme bench` makes of measurements: ratios, means, quantiles, reports, agreement."""

import json

import numpy as np
import pytest

from trireme.tools.bench import report, result
from trireme.tools.bench.agree import Tolerance, judge
from trireme.tools.bench.result import BenchRow, EngineRun


def run_of(name, *rounds_ms, **more):
    return EngineRun(name, rounds=[[round(t * 1e6) for t in calls] for calls in rounds_ms], **more)


def row_of(model="m.onnx", threads=1, **rounds):
    engines = {name: run_of(name, *calls) for name, calls in rounds.items()}
    return BenchRow(model, threads, engines)


def test_the_ratio_is_the_median_over_rounds_of_best_over_best():
    row = row_of(
        trireme=[[2, 3], [4, 5], [2, 9]],
        mnn=[[4, 8], [4, 4], [3, 3]],  # 2.0, 1.0, 1.5
        ncnn=[[1, 1], [1, 1], [1, 1]],  # 0.5, 0.25, 0.5
    )
    assert row.ratio("mnn") == 1.5 and row.ratio("ncnn") == 0.5
    assert row.best_peer() == "ncnn"
    assert row.ours.best_s() == 2e-3
    assert row.median_ratio("ncnn") == pytest.approx(1 / 3)  # ours: 2 2 3 4 5 9


def test_rounds_weigh_the_same_however_many_calls_they_hold():
    run = run_of("x", [1] * 100, [5], [5])
    assert run.quantile_s(0.5) == 5e-3 and run.quantile_s(0.3) == 1e-3


def test_geometric_means_and_the_worst_model():
    rows = [
        row_of("a.onnx", trireme=[[1]], mnn=[[2]], ncnn=[[4]]),
        row_of("b.onnx", trireme=[[1]], mnn=[[0.5]]),
        row_of("c.onnx", 2, trireme=[[1]], mnn=[[3]]),
    ]
    one, two = result.summarise(rows)
    assert one.best_mean == pytest.approx(1.0) and two.best_mean == pytest.approx(3.0)
    assert one.worst == ("b.onnx", "mnn", 0.5)
    assert one.means == {"mnn": pytest.approx(1.0), "ncnn": pytest.approx(4.0)}
    assert one.counts == {"mnn": 2, "ncnn": 1}


def test_many_calls_are_kept_as_quantiles():
    assert result.thin([3, 1, 2]) == [3, 1, 2]
    kept = result.thin(list(range(1000, 0, -1)))
    assert len(kept) == result.PERCENTILES + 1 and (kept[0], kept[-1]) == (1, 1000)


def test_stored_runs_come_back_and_pool():
    first = row_of(trireme=[[1], [2]], mnn=[[2], [4]])
    first.ours.load_s, first.engines["mnn"].apart = 0.5, "off"
    second = row_of(trireme=[[1]], mnn=[[9]])
    second.ours.load_s = 0.25
    text = json.dumps(result.rows_json([first, second]))
    (pooled,) = result.rows_from_json(json.loads(text))
    assert pooled.ours.rounds == [[10**6], [2 * 10**6], [10**6]]
    assert pooled.ratio("mnn") == 2 and pooled.ours.load_s == 0.25
    assert pooled.engines["mnn"].apart == "off"


def test_the_report_says_everything_once():
    rows = [
        row_of("dir/a.onnx", trireme=[[1]], mnn=[[2]]),
        row_of("dir/b.onnx", trireme=[[1]], mnn=[[0.5]]),
    ]
    for row in rows:
        row.engines["ncnn"] = EngineRun("ncnn", reason="not installed (pip install ncnn)")
    rows[0].engines["mnn"].apart = "output y is 3 (relative) from trireme's"
    rows[1].ours.facts = {"reference_nodes": ["gather #3: numpy reference"]}
    rows[1].engines["mnn"].idle_share = 0.5
    text = report.report(rows)
    assert "| a.onnx | 1.000 1.000 1.000 | 2.000 2.000 2.000: 2.00 APART | mnn | **2.00** |" in text
    assert "worst model is b.onnx, 0.50 against mnn" in text
    assert text.count("not installed") == 1 and "[a.onnx, b.onnx]" in text
    assert "mnn disagrees: output y" in text and "b.onnx (1 on numpy)" in text
    assert "50% of a CPU in others' turns" in text


def test_a_remark_on_many_models_lists_a_few():
    rows = [row_of(f"{i}.onnx", trireme=[[1]]) for i in range(9)]
    for row in rows:
        row.engines["litert"] = EngineRun("litert", reason="litert cannot run .onnx files")
    note = "litert: litert cannot run .onnx files [0.onnx, 1.onnx, 2.onnx and 6 more]"
    assert report.remarks(rows) == [note]


# --- agreement ------------------------------------------------------------------------------------


def test_the_engine_that_disagrees_is_named():
    right, wrong = {"y": np.ones(3, np.float32)}, {"y": np.full(3, 2, np.float32)}
    tolerance = Tolerance(1e-3, 1)
    verdicts = judge({"trireme": right, "mnn": wrong, "ncnn": {"out0": right["y"]}}, tolerance)
    assert not verdicts["trireme"][0] and not verdicts["ncnn"][0]
    assert "output y" in verdicts["mnn"][0] and "from trireme's" in verdicts["mnn"][0]
    verdicts = judge({"trireme": wrong, "mnn": right, "ncnn": right}, tolerance)
    assert "from mnn's" in verdicts["trireme"][0] and not verdicts["mnn"][0]


def test_outputs_may_lack_the_batch_but_not_an_output():
    ours = {"y": np.ones((1, 3), np.float32), "z": np.ones(2, np.int8)}
    tolerance = Tolerance(1e-3, 1)
    flat = {"y": np.ones(3, np.float32), "z": np.full(2, 2, np.int8)}
    assert judge({"trireme": ours, "ncnn": flat}, tolerance)["ncnn"] == ("", 1.0)
    short = {"y": np.ones(3, np.float32)}
    assert "count" in judge({"trireme": ours, "ncnn": short}, tolerance)["ncnn"][0]
    shape = {**flat, "y": np.ones(4, np.float32)}
    assert "shape" in judge({"trireme": ours, "ncnn": shape}, tolerance)["ncnn"][0]
