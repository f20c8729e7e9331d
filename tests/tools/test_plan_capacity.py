"""`trireme plan-capacity`: rows of setups from predictions and from runs."""

import json
import time

import numpy as np
import pytest
from commands import call, save_small

import trireme
from trireme.ir.builder import GraphBuilder
from trireme.ir.graph import TensorType
from trireme.runtime.options import AS_GIVEN
from trireme.serving.capacity.arrivals import Arrivals
from trireme.serving.capacity.queueing import ReplicaQueue, simulate
from trireme.serving.capacity.times import drawn, measured_times

pytestmark = pytest.mark.usefixtures("no_calibration")
SEED = 2


@pytest.fixture
def model(tmp_path):
    return save_small(tmp_path / "small.trm")


def rows_of(capsys, *words):
    code, out, _ = call(capsys, "plan-capacity", *words, "--json", "-")
    return code, json.loads(out)["setups"]


def test_the_ways_to_share_cores_are_rows(model, capsys):
    words = (model, "--qps", "100", "--p99", "50ms", "--cores", "4", "--max-batch", "2")
    code, out, _ = call(capsys, "plan-capacity", *words)
    assert code == 0
    assert "100 requests a second, 99 of 100 within 50.0 ms:" in out
    for way in ("4 calls of 1 thread", "2 calls of 2 threads", "1 call of 4 threads"):
        assert way in out
    assert "fewest cores: 1 replica, each with" in out
    code, rows = rows_of(capsys, *words, "--max-delay", "1ms")
    assert code == 0
    assert len(rows) == 9 and {row["cores"] for row in rows} == {4}
    assert {row["delay_s"] for row in rows} == {0.0, 0.001}
    assert all(row["p50_s"] <= row["p99_s"] <= 0.05 for row in rows)


def test_more_load_and_less_free_cores_need_more(model, capsys):
    needs = []
    for words in (("1e3",), ("1e6",), ("1e6", "--spare", "0.6")):
        asked = (model, "--qps", *words, "--p99", "5ms", "--cores", "1", "--max-batch", "1")
        code, rows = rows_of(capsys, *asked)
        assert code == 0
        needs.append(rows[0]["replicas"])
    assert needs == sorted(set(needs))


def test_a_described_machine_answers_call_after_call(model, capsys):
    words = (model, "--qps", "10", "--p99", "1s", "--soc", "rk3588")
    code, rows = rows_of(capsys, *words)
    assert code == 0
    assert {row["calls"] for row in rows} == {1}
    code, _, err = call(capsys, "plan-capacity", *words, "--measure")
    assert code == 2 and "--soc describes another" in err


def test_a_limit_that_no_number_keeps_ends_with_1(model, capsys):
    code, out, _ = call(capsys, "plan-capacity", model, "--qps", "10", "--p99", "1us")
    assert code == 1
    assert "a call alone takes" in out and "no number of replicas keeps to the limit" in out


def test_measured_calls(model, capsys):
    words = (model, "--qps", "20", "--p99", "1s", "--cores", "2", "--max-batch", "2", "--measure")
    code, rows = rows_of(capsys, *words)
    assert code == 0 and len(rows) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--qps", "0", "--p99", "1s"), "a number of more than 0"),
        (("--qps", "1", "--p99", "50"), "a time with its unit, such as 50ms"),
        (("--qps", "1"), "required: --p99"),
    ],
)
def test_what_is_no_load_is_refused(model, words, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        call(capsys, "plan-capacity", model, *words)
    assert sentence in capsys.readouterr().err


def test_cores_with_nothing_left_are_an_error(model, capsys):
    words = (model, "--qps", "1", "--p99", "1s", "--spare", "1")
    code, _, err = call(capsys, "plan-capacity", *words)
    assert code == 2 and "a core with nothing left" in err


def heavy():
    """Return a graph whose run takes some milliseconds."""
    b = GraphBuilder("heavy")
    x = b.input("x", TensorType((1, 128, 512), "float32"))
    rng = np.random.default_rng(SEED)
    for layer in range(8):
        x = b.add("matmul", x, b.constant(f"w{layer}", rng.standard_normal((512, 512), "f4") / 23))
    return b.finish(x)


def answer(session, feeds, arrivals):
    """Run a load for real, first come first served; return the latencies and times of calls."""
    latencies, times = np.zeros(len(arrivals)), np.zeros(len(arrivals))
    start = time.perf_counter() + 0.01
    for number, due in enumerate(arrivals.tolist()):
        while (now := time.perf_counter()) < start + due:
            time.sleep(min(max(start + due - now - 2e-4, 0), 0.01))
        session.run(feeds)
        end = time.perf_counter()
        latencies[number], times[number] = end - start - due, end - now
    return latencies, times


@pytest.mark.timed
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_the_simulation_is_within_15_percent_of_a_measured_load(load):
    """The mean and the 95th percentile; the 99th of 1,500 requests is uncertain itself."""
    graph = heavy()

    def open_session(sized):
        return trireme.Session(sized, threads=1, execution_options=AS_GIVEN)

    times = measured_times(open_session, graph, [1], 1, runs=300)
    rate = load / float(times[1].mean())
    arrivals = Arrivals(rate, seed=SEED).times(1500)
    with open_session(graph) as session:
        feeds = {"x": np.zeros((1, 128, 512), np.float32)}
        session.run(feeds)
        measured, took = answer(session, feeds, arrivals)
    simulated = simulate(arrivals, ReplicaQueue(drawn({1: took}, SEED))).latencies_s
    for name, of in (("mean", np.mean), ("p95", lambda x: np.percentile(x, 95))):
        assert of(simulated) == pytest.approx(of(measured), rel=0.15), f"{name}, seed {SEED}"
