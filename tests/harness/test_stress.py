"""`python -m lab.stress`: parts are chosen, cases end as they should, failures can be replayed."""

import json
import os
import signal
import sys

import numpy as np
import pytest

pytest.importorskip("resource")
from lab.stress import bounded, command, faults, race_cases  # noqa: E402
from lab.stress.command import main  # noqa: E402
from lab.stress.guard_cases import GuardedMemory  # noqa: E402
from lab.stress.part import SIZES, StressPart, StressRun  # noqa: E402
from lab.stress.rows import Figure, markdown  # noqa: E402
from random_graphs import random_graph  # noqa: E402

from trireme.ir.builder import GraphBuilder  # noqa: E402
from trireme.ir.graph import TensorType  # noqa: E402
from trireme.model_file import save  # noqa: E402
from trireme.plan.plan import Plan  # noqa: E402
from trireme.support.errors import RunError  # noqa: E402

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux")

CHILD = """
import os, signal, sys, time
from trireme.support.errors import RunError
from lab.stress.bounded import try_cases

def attempt(case):
    if case == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if case == 2:
        raise RunError("typed")
    if case == 3:
        raise ValueError("untyped")
    if case == 4:
        while True:
            pass
    if case == 5:
        time.sleep(600)
    if case == 6:
        bytearray(5 << 30)
    return "ran well"

cases = ((n, n) for n in range(int(sys.argv[1]), 8))
try_cases(cases, attempt, int(sys.argv[1]), cpu_s=1.0)
"""


@linux
def test_each_way_to_end_a_case_is_told():
    ends = dict(bounded.ends_of(["-c", CHILD], stall_s=15))
    kinds = [ends[number].kind for number in range(8)]
    assert kinds[:5] == ["ran", "killed", "RunError", "untyped", "hang"]
    assert kinds[5:] == ["killed", "untyped", "ran"]
    assert f"-{signal.SIGSEGV.value}" in ends[1].text and "a stall" in ends[5].text
    assert "MemoryError" in ends[6].text and ends[7].text == "well"
    assert [number for number, end in ends.items() if end.is_bad] == [1, 3, 4, 5, 6]


def broken_part(first_good):
    """A part whose cases below a number fail."""

    def run(asked: StressRun):
        bad = [asked.failure(n, "wrong", "too small") for n in asked.cases if n < first_good]
        return asked.row(cases=len(asked.cases), ends={"ran": len(asked.cases)}, failures=bad)

    return StressPart("cases", ("one", "two"), "cases", {"": {size: 4 for size in SIZES}}, run)


def test_a_failure_is_shown_with_the_command_that_replays_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "PARTS", {"broken": broken_part(3)})
    report = tmp_path / "rows.md"
    code = main(["--part", "broken/two", "--seed", "7", "--report", str(report)])
    out = capsys.readouterr().out
    replay = "python -m lab.stress --part broken/two --seed 7 --case 2"
    assert code == 1 and "FAILED" in out and replay in out
    assert "| broken/two | 4 | FAILED |" in report.read_text()
    monkeypatch.setattr(command, "PARTS", {"broken": broken_part(2)})
    assert main(replay.split()[3:]) == 0
    assert "1 cases" in capsys.readouterr().out


def test_rows_are_typed(monkeypatch, capsys):
    monkeypatch.setattr(command, "PARTS", {"broken": broken_part(1)})
    assert main(["--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["subject"] for row in rows] == ["one", "two"]
    assert rows[0]["failures"][0]["case"] == 0 and rows[0]["verdict"] == "FAILED"


def test_a_missed_bar_fails_a_row():
    asked = StressRun("part", "subject", 1, 0)
    met = asked.row(figures=[Figure("goodput", 0.95, bar=0.9, sense="least")])
    missed = asked.row(figures=[Figure("p99", 0.2, "s", bar=0.1)])
    assert met.is_ok and not missed.is_ok
    assert "p99 0.2 s (at most 0.1: MISSED)" in markdown([missed], "about")


def test_what_is_not_there_is_refused(capsys):
    with pytest.raises(RunError, match="no part 'nothing'"):
        command.choose(["nothing"])
    with pytest.raises(SystemExit):
        main(["--case", "1"])
    assert "a case of one subject" in capsys.readouterr().err


def test_every_subject_has_every_size():
    for part in command.PARTS.values():
        for subject in part.subjects:
            amounts = [part.amount(subject, size) for size in SIZES]
            assert amounts == sorted(amounts) and amounts[0] > 0


@linux
@pytest.mark.parametrize("name", ["mutants/trm", "mutants/onnx", "mutants/tflite"])
def test_some_mutants(name, capsys):
    assert main(["--part", name, "--amount", "20", "--seed", "5"]) == 0
    assert "20 cases" in capsys.readouterr().out


def test_a_session_may_lack_memory_and_a_reader_may_not(monkeypatch):
    from lab.stress import damaged_files

    def lacking(*given):
        raise RunError("no room") from MemoryError()

    assert damaged_files.attempt_with(lacking)((0, b"")).startswith("untyped")
    monkeypatch.setattr(damaged_files, "check", lambda graph: None)
    monkeypatch.setattr(damaged_files, "run", lacking)
    with pytest.raises(RunError, match="no room"):
        damaged_files.attempt_with(lambda data: None, every=1)((0, b""))


@linux
@pytest.mark.parametrize("name", ["plans", "orders", "arenas", "kernels"])
def test_some_races(name, capsys):
    assert main(["--part", f"races/{name}", "--amount", "5"]) == 0
    assert "5 cases" in capsys.readouterr().out


def test_a_plan_without_its_waits_is_wrong(monkeypatch):
    """The case ends "wrong", which no subject takes for good."""
    from dataclasses import replace

    made = race_cases.make_plan

    def careless(*given: object) -> Plan:
        plan = made(*given)
        return replace(plan, tasks=[replace(task, waits=()) for task in plan.tasks])

    monkeypatch.setattr(race_cases, "make_plan", careless)
    attempt = race_cases.plans(0, [], "plans")
    assert any(attempt(number).startswith("wrong") for number in range(6))


@linux
@pytest.mark.parametrize("at_end", [False, True])
def test_memory_of_a_session_ends_at_guard_pages(at_end):
    memory = GuardedMemory(at_end)
    buffer = memory.alloc(100)
    start = buffer.handle.ctypes.data
    assert start % 64 == 0 and not buffer.handle.any()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        import ctypes

        ctypes.memset(start + 128 if at_end else start - 1, 0, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    memory.array(np.arange(3.0), False)
    memory.check()


@linux
@pytest.mark.parametrize("name", ["cpu", "npu+cpu", "opencl+cpu"])
def test_some_faults(name, capsys):
    assert main(["--part", f"faults/{name}", "--amount", "4"]) == 0
    assert name in capsys.readouterr().out


@linux
def test_a_hang():
    stress = ["--part", "faults/hangs-npu+cpu", "--seed", "1", "--case", "0"]
    assert main(stress) == 0


def test_faults_reach_every_device():
    """Small models ran on the cpu alone, so no launch of another device ever failed."""
    pytest.importorskip("pyopencl")
    found = faults.target(random_graph(101, 8, quantised=True), ("npu", "opencl", "cpu"), 1)
    launched = {device for device, point in found.calls if point == "launch"}
    assert launched == {"npu", "opencl", "cpu"}
    hangs = {(one.device, one.point) for one in faults.hang_sweep(found)}
    assert {("npu", "launch"), ("npu", "wait"), ("opencl", "launch")} <= hangs


@linux
def test_a_short_overload_breaks_nothing(monkeypatch):
    """Its times are the machine's; `-m timed` and the programme hold the bars."""
    from lab.stress import overload

    monkeypatch.setattr(overload, "WARM_S", 0.5)
    monkeypatch.setattr(overload, "MEASURE_S", 0.5)
    row = overload.run(StressRun("overload", "sleep", 2, 0))
    if row.skipped:
        pytest.skip(row.skipped)
    assert not row.failures and set(row.ends) <= {"200", "429"} and row.ends["200"] > 5
    assert {one.name for one in row.figures} >= {"goodput of capacity", "p99 of refusals"}


@linux
@pytest.mark.parametrize("window", [7, 300])
def test_an_overload_of_a_model_with_open_shapes(window, monkeypatch, tmp_path):
    """Windows of 7 do not fit into a picture of one element, those of 300 into no usual one."""
    from lab.stress import overload

    b = GraphBuilder("open")
    x, sizes = b.input("x", TensorType(("n", "h", "w", 3), "float32")), (window, window)
    save(
        b.finish(
            b.add("max_pool", x, kernel=sizes, strides=sizes, pads=(0, 0, 0, 0), dilations=(1, 1))
        ),
        tmp_path / "m.trm",
    )
    monkeypatch.setattr(overload, "WARM_S", 0.5)
    monkeypatch.setattr(overload, "MEASURE_S", 0.5)
    asked = StressRun("overload", "model", 1, 0, models=[tmp_path / "m.trm"])
    if missing := overload.missing_packages():
        pytest.skip(missing)
    if window == 7:
        row = overload.run(asked)
        assert not row.failures and row.ends["200"] > 5
    else:
        with pytest.raises(RunError, match=r"answered no request\n.*400"):
            overload.run(asked)


def test_a_request_without_a_free_connection_is_counted_and_not_sent():
    import asyncio

    from lab.stress import overload

    clients, load = overload.Clients(1, b""), overload.Load()
    clients._held = overload.CONNECTIONS
    asyncio.run(clients.ask(load))
    assert load.unsent == 1 and not load.seconds and not load.broken


@linux
@pytest.mark.parametrize(("name", "amount"), [("traffic", 4), ("loads", 20), ("kills", 2)])
def test_a_short_soak(name, amount):
    """Growth in so short a run says nothing; answers, drops and leftovers do."""
    from lab.stress import soak

    row = soak.run(StressRun("soak", name, amount, 3))
    if row.skipped:
        pytest.skip(row.skipped)
    assert not row.failures and row.cases >= min(amount, 20)


def test_an_answer_of_no_version_is_a_mismatch():
    from lab.stress import soak

    clients = soak.CheckedClients(1, b"")
    clients.take(b"head" + (soak.X * np.float32(3)).tobytes())
    assert clients.versions == {3: 1} and not clients.mismatches
    for factor in (4, 3, 4, 7, 1, 7):  # an old version may end its last runs
        clients.take((soak.X * np.float32(factor)).tobytes())
    assert clients.switches == 4
    torn = np.concatenate([soak.X[:2] * np.float32(3), soak.X[2:] * np.float32(2)])
    clients.take(torn.tobytes())
    assert len(clients.mismatches) == 1
