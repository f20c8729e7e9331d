"""The processes of `trireme bench`: they answer, hold nothing of trireme, and say why they fail."""

import pathlib
import time

import numpy as np
import pytest
from bench_engine import ENGINE

from trireme.tools.bench import peers
from trireme.tools.bench.process import WorkerFailed, WorkerProcess


@pytest.fixture
def start(tmp_path):
    from trireme.tools.bench.agree import save_arrays

    (tmp_path / "engine.py").write_text(ENGINE)
    save_arrays(tmp_path / "feeds.npz", {"a/b": np.zeros(2, np.float32)})
    opened = []

    def open_one(model):
        task = {
            "file": str(tmp_path / "engine.py"),
            "module": "json",
            "model": model,
            "threads": 1,
            "cpus": [],
        }
        opened.append(WorkerProcess("fake", task))
        return opened[-1]

    open_one.feeds = str(tmp_path / "feeds.npz")
    yield open_one
    for process in opened:
        process.close()
        assert not pathlib.Path(f"/proc/{process.pid}").exists()


def test_a_worker_answers(start, tmp_path):
    from trireme.tools.bench.agree import load_arrays

    worker = start("works")
    assert worker.ask("convert", 10, folder="")["model"] == "works!"
    loaded = worker.ask("load", 10, feeds=start.feeds)
    assert worker.ask("facts", 10)["facts"] == {"version": "7"}
    assert loaded["first_s"] >= loaded["load_s"]
    assert loaded["peak_bytes"] >= loaded["imported_bytes"] > 0
    worker.ask("save", 10, to=str(tmp_path / "out.npz"))
    (array,) = load_arrays(tmp_path / "out.npz").items()
    assert array[0] == "a/b" and (array[1] == 1).all()
    moments = loaded["moments"]
    assert worker.started < moments["inputs"] < moments["imported"] < moments["ready"]
    assert worker.ask("settle", 10, seconds=0.01)["steady"] > moments["first"] > moments["ready"]
    assert 0 < loaded["cpu_s"] < 10
    times = worker.ask("turn", 10, seconds=0.01)["times_ns"]
    assert len(times) >= 3 and min(times) > 0
    assert worker.choose_executor() and worker.cpu_s() > 0


def test_a_worker_holds_nothing_of_trireme(start, tmp_path):
    listing = tmp_path / "engine.py"
    listing.write_text(
        ENGINE.replace('"version": "7"', '"seen": [m for m in sys.modules if "trireme" in m]')
    )
    worker = start("works")
    worker.ask("load", 10, feeds=start.feeds)
    seen = worker.ask("facts", 10)["facts"]["seen"]
    assert not [name for name in seen if not name.startswith("__editable__")]


def test_a_failed_worker_says_why(start):
    with pytest.raises(WorkerFailed, match="ValueError: no kernel for it"):
        start("refuses").ask("load", 10, feeds=start.feeds)
    with pytest.raises(WorkerFailed, match=r"died at 'load' \(killed by signal 6\)"):
        start("crashes").ask("load", 10, feeds=start.feeds)
    started = time.monotonic()
    with pytest.raises(WorkerFailed, match="hung: no answer to 'load' within 1 s"):
        start("hangs").ask("load", 1, feeds=start.feeds)
    assert time.monotonic() - started < 10


def test_adapters_import_no_trireme():
    for peer in peers.PEERS.values():
        assert "trireme" not in peer.file.read_text().replace("of trireme", "")
